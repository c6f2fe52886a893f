"""Random draws of edges from the rows of many nodes at once."""

import numpy as np

from keras_bandgnn.preprocessing.sampling.sampled_graph import ranges


def uniform(degree: np.ndarray, limit: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw `limit` distinct numbers below each degree, or all of them.

    Returns:
        int64 [rows, limit], and how many of each row count.
    """
    counts = np.minimum(degree, limit)
    offsets = np.empty((len(degree), limit), np.int64)
    offsets[:] = np.arange(limit)
    many = np.flatnonzero(degree > limit)
    # Floyd's method for all rows at once: the i-th draw is below
    # degree - limit + i + 1, and a number that was drawn before gives way to the
    # largest one.
    drawn = np.empty((limit, len(many)), np.int64)
    for i, chance in enumerate(rng.random((limit, len(many)))):
        largest = degree[many] - limit + i
        value = (chance * (largest + 1)).astype(np.int64)
        taken = (drawn[:i] == value).any(axis=0)
        drawn[i] = np.where(taken, largest, value)
    offsets[many] = drawn.T
    return offsets, counts


def uniform_again(degree: np.ndarray, limit: int, rng) -> tuple:
    """Draw `limit` numbers below each degree, which may repeat."""
    chance = rng.random((len(degree), limit))
    offsets = (chance * degree[:, None]).astype(np.int64)
    return offsets, np.where(degree > 0, limit, 0)


def weighted(first, degree, limit: int, weight, rng) -> tuple:
    """Draw at most `limit` distinct edges of each row, in proportion to weights.

    The largest of u ** (1 / w) with u uniform (Efraimidis and Spirakis 2006).
    """
    edges = ranges(first, degree)
    rows = np.arange(len(degree)).repeat(degree)
    some = weight[edges] > 0
    edges, rows = edges[some], rows[some]
    chance = np.log(rng.random(len(edges))) / weight[edges]
    order = np.lexsort((-chance, rows))
    counts = np.bincount(rows, minlength=len(degree))
    place = np.arange(len(rows)) - (np.cumsum(counts) - counts).repeat(counts)
    top = order[place < limit]
    return edges[top], np.minimum(counts, limit)


def weighted_again(first, degree, limit: int, weight, rng) -> tuple:
    """Draw `limit` edges of each row in proportion to weights; they may repeat."""
    edges = ranges(first, degree)
    ends = np.cumsum(degree)
    total = np.concatenate([[0.0], np.cumsum(weight[edges])])
    low, high = total[ends - degree], total[ends]
    if limit == -1:
        counts = np.where(high > low, degree, 0)
    else:
        counts = np.where(high > low, limit, 0)
    rows = np.arange(len(degree)).repeat(counts)
    chance = low[rows] + rng.random(len(rows)) * (high - low)[rows]
    place = np.searchsorted(total, chance, side="right") - 1
    # Rounding must not leave the row.
    place = np.clip(place, (ends - degree)[rows], ends[rows] - 1)
    return edges[place], counts
