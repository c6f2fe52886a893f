"""Measures of lists of recommended items, all exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.arrays import INT32_MAX
from keras_bandgnn.checks import int_array, positive_int, refuse
from keras_bandgnn.data.link_ends import NodePairs, as_pairs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from keras_bandgnn.aliases import Pairs


def recall_at(
    items: ArrayLike, pairs: Pairs, k: int, users: ArrayLike | None = None
) -> float:
    """Return the share of a user's held-out items that are among the first k.

    It is the mean over users with held-out items of hits / number of these items, as
    He et al. 2020, https://arxiv.org/abs/2002.02126, evaluate LightGCN.

    Args:
        items: int [U, at least k], the items of each user, the best one first, -1 for
            none; `LinkPredictor.recommend` returns them.
        pairs: Held-out `NodePairs` of user and item, or int [Q, 2].
        k: Number of items that count.
        users: int [U], the users of the rows; by default 0 to U - 1. Pairs of other
            users do not count.

    Raises:
        ValueError: For other shapes, or if no user has a held-out item.

    Example:
    >>> recall_at([[3, 0], [1, 2]], [[0, 3], [0, 1], [1, 2]], k=2)
    0.75
    """
    hits, counts = _hits(items, pairs, k, users)
    return float(np.mean(hits.sum(axis=1) / counts))


def ndcg_at(
    items: ArrayLike, pairs: Pairs, k: int, users: ArrayLike | None = None
) -> float:
    """Return the normalised discounted cumulative gain of the first k items.

    A hit at place r, from 1, gains 1 / log2(r + 1). The sum is divided by that of the
    best list of a user, min(k, number of held-out items) hits at its top. It is the
    mean over users with held-out items.

    Args:
        items: See `recall_at`, also for the others.
        pairs: Held-out pairs.
        k: Number of items that count.
        users: Users of the rows.

    Raises:
        ValueError: As `recall_at`.

    Example:
    >>> ndcg_at([[3, 0], [1, 2]], [[0, 3], [1, 2]], k=2)
    0.8154648767857288
    """
    hits, counts = _hits(items, pairs, k, users)
    gains = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(gains)[np.minimum(counts, k) - 1]
    return float(np.mean(hits @ gains / ideal))


def mrr_at(
    items: ArrayLike, pairs: Pairs, k: int, users: ArrayLike | None = None
) -> float:
    """Return the mean of 1 / place of the first hit among the first k items, or 0.

    Args:
        items: See `recall_at`, also for the others.
        pairs: Held-out pairs.
        k: Number of items that count.
        users: Users of the rows.

    Raises:
        ValueError: As `recall_at`.

    Example:
    >>> mrr_at([[3, 0], [1, 2]], [[0, 3], [1, 2]], k=2)
    0.75
    """
    hits, _ = _hits(items, pairs, k, users)
    return float(np.mean(hits.any(axis=1) / (1 + hits.argmax(axis=1))))


def coverage(items: ArrayLike, num_items: int) -> float:
    """Return the share of all items that are recommended to at least one user.

    Args:
        items: int [U, k], items, -1 for none.
        num_items: Number of all items.

    Raises:
        ValueError: For other shapes, or items that are not below `num_items`.

    Example:
    >>> coverage([[3, 0], [3, -1]], num_items=4)
    0.5
    """
    items = _lists(items)
    positive_int("num_items", num_items)
    if items.max(initial=-1) >= num_items:
        refuse("items", f"items below num_items={num_items}", int(items.max()))
    return len(np.unique(items[items >= 0])) / num_items


def _lists(items) -> np.ndarray:
    """Return the argument `items`, int64 [U, k], or raise a ValueError."""
    items = int_array("items", items, 2).astype(np.int64)
    if items.min(initial=0) < -1:
        refuse("items", "items from 0, or -1 for none", int(items.min()))
    return items


def user_items(name: str, pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return the users and the items of pairs, int64 [Q], or raise a ValueError.

    Args:
        name: The argument, for errors.
        pairs: `NodePairs`, whose numbers are taken as they are, or int [Q, 2].
    """
    if not isinstance(pairs, NodePairs):
        pairs = as_pairs(name, pairs, INT32_MAX)
    return pairs.senders.astype(np.int64), pairs.receivers.astype(np.int64)


def _hits(items, pairs, k, users) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the first k items are held out, and the number that are.

    Returns:
        bool [n, k] and int64 [n], of the rows whose users have held-out items.
    """
    items = _lists(items)
    if positive_int("k", k) > items.shape[1]:
        advice = f"Recommend k={k} items."
        refuse("items", f"lists of at least {k} items", items.shape, advice)
    if users is None:
        users = np.arange(len(items))
    else:
        users = int_array("users", users).astype(np.int64)
        if len(users) != len(items):
            refuse("users", f"a user for each of {len(items)} rows", len(users))
    senders, receivers = user_items("pairs", pairs)
    width = 1 + max(int(receivers.max(initial=0)), int(items.max(initial=0)))
    keys = np.unique(senders * width + receivers)
    counts = np.diff(
        np.searchsorted(keys, [users * width, (users + 1) * width]), axis=0
    )
    rows = np.flatnonzero(counts[0])
    if not len(rows):
        raise ValueError(
            "Expected `pairs` with an item of at least one user of the rows. Received: "
            f"{len(senders)} pairs of other users. Pass the users of the rows."
        )
    first = items[rows, :k]
    hits = np.isin(users[rows, None] * width + first, keys) & (first >= 0)
    return hits, counts[0, rows]
