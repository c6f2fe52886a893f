"""Measures of link prediction: ranks, and areas under curves, all exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import array, positive_int

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def mean_reciprocal_rank(ranks: ArrayLike) -> float:
    """Return the mean of 1 / rank.

    Args:
        ranks: Ranks from 1, any shape; `LinkPredictor.rank` returns them.

    Raises:
        ValueError: For no ranks, or ranks below 1.

    Example:
    >>> mean_reciprocal_rank([1, 2, 4])
    0.5833333333333334
    """
    return float(np.mean(1.0 / _ranks(ranks)))


def hits_at(ranks: ArrayLike, k: int) -> float:
    """Return the share of ranks of at most k.

    Args:
        ranks: Ranks from 1, any shape; `LinkPredictor.rank` returns them.
        k: The last rank that counts.

    Raises:
        ValueError: For no ranks, or numbers below 1.

    Example:
    >>> hits_at([1, 2, 4], 2)
    0.6666666666666666
    """
    return float(np.mean(_ranks(ranks) <= positive_int("k", k)))


def link_auc(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return the exact area under the ROC curve.

    It is the share of pairs of a positive and a negative score of which the positive
    one is larger; equal scores count half.

    Args:
        positive: Scores of true pairs, [P].
        negative: Scores of pairs that are not true, [M].

    Raises:
        ValueError: For no scores of one kind, or NaN.

    Example:
    >>> link_auc([2.0, 0.0], [1.0, 0.0])
    0.625
    """
    positive, negative = _scores("positive", positive), _scores("negative", negative)
    negative = np.sort(negative)
    below = np.searchsorted(negative, positive, "left")
    up_to = np.searchsorted(negative, positive, "right")
    return float(np.mean(below + up_to) / (2 * len(negative)))


def average_precision(positive: ArrayLike, negative: ArrayLike) -> float:
    """Return the exact mean of the precision at the score of each true pair.

    Equal scores are one threshold, as in scikit-learn.

    Args:
        positive: Scores of true pairs, [P].
        negative: Scores of pairs that are not true, [M].

    Raises:
        ValueError: For no scores of one kind, or NaN.

    Example:
    >>> average_precision([3.0, 1.0], [2.0])
    0.8333333333333333
    """
    positive, negative = _scores("positive", positive), _scores("negative", negative)
    ascending = np.sort(positive)
    hits = len(positive) - np.searchsorted(ascending, positive, "left")
    false = len(negative) - np.searchsorted(np.sort(negative), positive, "left")
    return float(np.mean(hits / (hits + false)))


def _ranks(ranks) -> np.ndarray:
    ranks = array("ranks", ranks)
    if not ranks.size or ranks.dtype.kind not in "iuf" or not (ranks >= 1).all():
        raise ValueError(
            "Expected `ranks` to be numbers of at least 1. Received: "
            f"{ranks.dtype} of shape {ranks.shape}."
        )
    return ranks.astype(np.float64)


def _scores(name: str, scores) -> np.ndarray:
    scores = array(name, scores)
    if not scores.size or scores.dtype.kind not in "iuf" or np.isnan(scores).any():
        raise ValueError(
            f"Expected `{name}` to be scores, at least one and none NaN. Received: "
            f"{scores.dtype} of shape {scores.shape}."
        )
    return scores.reshape(-1)
