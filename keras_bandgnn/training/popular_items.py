"""`most_popular`: the baseline of recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import positive_int, refuse
from keras_bandgnn.training.recommendation_metrics import user_items

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Pairs


def most_popular(
    pairs: Pairs,
    num_users: int,
    num_items: int,
    k: int = 10,
    exclude: Pairs | None = None,
) -> np.ndarray:
    """Return the k items that most users have, for each user without those to exclude.

    A model of users and items is to beat it. Of items that as many users have the lower
    number comes first.

    Args:
        pairs: `NodePairs` of user and item to count, or int [Q, 2]; repeated ones count
            once.
        num_users: U.
        num_items: Number of all items.
        k: Items for each user.
        exclude: Pairs that are no answers, in the same form, such as `pairs`; None for
            none.

    Returns:
        int64 [U, k]; -1 where a user has fewer items.

    Raises:
        ValueError: For users or items that are not below their numbers.

    Example:
    >>> pairs = [[0, 1], [1, 1], [1, 2]]
    >>> most_popular(pairs, num_users=2, num_items=3, k=2, exclude=pairs).tolist()
    [[2, 0], [0, -1]]
    """
    sizes = positive_int("num_users", num_users), positive_int("num_items", num_items)
    positive_int("k", k)
    _, items = np.divmod(np.unique(_keys("pairs", pairs, *sizes)), num_items)
    counts = np.bincount(items, minlength=num_items)
    order = np.argsort(-counts, kind="stable")
    place = np.argsort(order)
    taken = np.empty(0, np.int64)
    if exclude is not None:
        users, items = np.divmod(_keys("exclude", exclude, *sizes), num_items)
        taken = np.unique(users * num_items + place[items])
    # The r-th place of a user that is not taken: places before it are free or taken.
    starts = np.arange(num_users + 1) * num_items
    before = np.searchsorted(taken, starts)
    free = num_items - np.diff(before)
    number = np.arange(min(k, num_items))
    rank = (starts - before)[:-1, None] + number
    passed = np.searchsorted(taken - np.arange(len(taken)), rank, side="right")
    best = rank + passed - starts[:-1, None]
    out = np.full((num_users, k), -1, np.int64)
    here = number < free[:, None]
    out[:, : len(number)][here] = order[best[here]]
    return out


def _keys(name: str, pairs, num_users: int, num_items: int) -> np.ndarray:
    """Return user * num_items + item of pairs, int64 [Q], or raise a ValueError."""
    users, items = user_items(name, pairs)
    for ids, count, owner in ((users, num_users, "users"), (items, num_items, "items")):
        if ids.max(initial=-1) >= count:
            refuse(name, f"{owner} below num_{owner}={count}", int(ids.max()))
    return users * num_items + items
