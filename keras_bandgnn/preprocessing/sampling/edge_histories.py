"""`EdgeHistories`: edges into each node in the order of time."""

import numpy as np


class EdgeHistories:
    """Edges of rows in the order of time, so that earlier ones are the first of a row.

    Times are compared by their ranks, int32, which a binary search within the row
    reads.

    Args:
        rows: int64 [E], row of each edge, such as its receiver; ascending or not.
        times: int64 [E].
        count: Number of rows R.

    Attributes:
        order: int64 [E], edges by row and time; those of equal times keep their order.
        pointer: int64 [R + 1], first of each row in `order`.

    Example:
    >>> histories = EdgeHistories(np.array([0, 0, 1]), np.array([30, 10, 20]), 2)
    >>> first, counts = histories.before(np.array([0, 1]), histories.ranks([20, 20]))
    >>> first.tolist(), counts.tolist(), histories.order[first].tolist()
    ([0, 2], [1, 0], [1, 2])
    """

    def __init__(self, rows: np.ndarray, times: np.ndarray, count: int):
        rows = np.asarray(rows, np.int64)
        by_time = np.argsort(times)
        ordered = times[by_time]
        new = np.ones(len(times), bool)
        np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
        self._moments = ordered[new]
        rank = np.empty(len(times), np.int32)
        rank[by_time] = np.cumsum(new) - 1
        self.order = _stable_order(rows * len(self._moments) + rank)
        self._ranks = rank[self.order]
        counts = np.bincount(rows, minlength=count)
        self.pointer = np.concatenate([[0], np.cumsum(counts)])

    def ranks(self, times) -> np.ndarray:
        """Return the number of distinct times of edges before some times, int64 [n].

        Args:
            times: int64 [n].
        """
        return np.searchsorted(self._moments, times, side="left")

    def before(
        self, rows: np.ndarray, ranks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return where rows begin in `order`, and how many edges are earlier.

        Args:
            rows: int64 [n].
            ranks: int64 [n], ranks of the times that edges are strictly earlier than.

        Returns:
            int64 [n] and int64 [n].
        """
        first = self.pointer[rows]
        low, high = first.copy(), self.pointer[rows + 1]
        steps = int((high - low).max(initial=0)).bit_length()
        if steps:
            ranks = np.asarray(ranks, np.int32)
            last = len(self._ranks) - 1
        for _ in range(steps):
            middle = (low + high) >> 1
            earlier = self._ranks[np.minimum(middle, last)] < ranks
            earlier &= low < high
            low = np.where(earlier, middle + 1, low)
            high = np.where(earlier, high, middle)
        return first, low - first


def _stable_order(keys: np.ndarray) -> np.ndarray:
    """Return the order of keys in which equal ones keep theirs, int64 [n].

    NumPy sorts faster if the order of equal keys is open; they are few, and put right.
    """
    order = np.argsort(keys)
    ordered = keys[order]
    same = np.zeros(len(keys) + 1, bool)
    same[1:-1] = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(same[1:] | same[:-1])
    if len(tied):
        edges = order[tied]
        order[tied] = edges[np.lexsort((edges, ordered[tied]))]
    return order
