"""Recursive bisection of a graph into chunks, all parts of a level at once."""

import numpy as np

from keras_bandgnn.preprocessing.ordering.rcm import (
    positions,
    reverse_cuthill_mckee,
    rows_of,
)

_STEPS = 30
# Smoothing damps all modes but those whose eigenvalue is above 1 - _DAMPED.
_DAMPED = 0.1
# How strongly an edge that leaves a part pulls its end to that side.
_PULL = 0.5
# Largest distance of a cut from the middle of a part (share of its nodes).
_SLACK = 0.1
_EXCHANGES = 4


def split(adjacency, order: np.ndarray, largest: int) -> np.ndarray:
    """Cut a graph into halves with few links between them, down to a size.

    A part starts in Reverse Cuthill-McKee order. Chebyshev smoothing turns the
    positions towards the Fiedler vector of the part (with links to nodes outside as a
    pull to their side), the part is cut near the middle where few links cross, and
    nodes are exchanged in pairs between the halves (Kernighan and Lin 1970).

    Args:
        adjacency: Symmetric CSR array [N, N] of weights, without a diagonal.
        order: int [N], used to place parts without links.
        largest: Nodes of a part that is not cut further, at least 1.

    Returns:
        int64 [N]: the node that comes k-th.
    """
    size = adjacency.shape[0]
    row = rows_of(adjacency)
    position = positions(order)
    bounds = np.array([0, size])
    while np.diff(bounds).max() > largest:
        level = BisectionLevel(adjacency, row, position, bounds)
        value = level.smoothed()
        position = level.positions_by(value)
        cuts = level.cuts(position)
        whole = np.diff(bounds) <= largest
        cuts[whole] = bounds[1:][whole]
        upper = level.exchanged(position >= cuts[level.part])
        position = level.positions_by(position, upper)
        bounds = np.unique(np.concatenate([bounds, cuts]))
    return np.argsort(position)


class BisectionLevel:
    """One level of the recursion: a graph without the links between its parts."""

    def __init__(self, adjacency, row, position, bounds):
        from scipy.sparse import csr_array

        self.bounds, self.sizes = bounds, np.diff(bounds)
        self.count = self.sizes.size
        self.part = np.repeat(np.arange(self.count), self.sizes)[position]
        step = self.part[adjacency.indices] - self.part[row]
        keep = step == 0
        self.row, self.column = row[keep], adjacency.indices[keep]
        self.weight = adjacency.data[keep]
        filled = np.bincount(self.row, minlength=adjacency.shape[0])
        pointer = np.concatenate([[0], np.cumsum(filled)]).astype(np.int32)
        self.inner = csr_array(
            (self.weight, self.column, pointer), shape=adjacency.shape
        )
        outward = np.zeros(step.size)
        np.divide(_PULL * adjacency.data, step, out=outward, where=~keep)
        self.pull = np.bincount(row, outward, adjacency.shape[0])

    def sums(self, values) -> np.ndarray:
        """Return the sum over the nodes of each part."""
        return np.bincount(self.part, values, self.count)

    def positions_by(self, *keys) -> np.ndarray:
        """Return positions sorted by part, then by keys, the last one first."""
        return positions(np.lexsort((*keys, self.part)))

    def smoothed(self) -> np.ndarray:
        """Return a value per node, along its part: linked nodes get close values."""
        start = self.positions_by(positions(reverse_cuthill_mckee(self.inner)))
        middle = (self.bounds[:-1] + self.bounds[1:] - 1) / 2
        value = (start - middle[self.part]) * (2 / self.sizes)[self.part]
        # The end with more links to later parts comes last.
        value *= np.where(self.sums(self.pull * value) < 0, -1, 1)[self.part]
        mass = np.bincount(self.row, self.weight, value.size) + np.abs(self.pull)
        mass = np.maximum(mass, 1)
        share = mass / self.sums(mass)[self.part]
        before = np.zeros_like(value)
        for step in range(_STEPS):
            mean = (value + (self.inner @ value + self.pull) / mass) / 2
            # [0, 1 - _DAMPED] goes to [-1, 1], where Chebyshev polynomials are small.
            new = (2 * mean - (1 - _DAMPED) * value) / (1 - _DAMPED)
            if step:
                new = 2 * new - before
            new -= self.sums(share * new)[self.part]
            deviation = np.sqrt(np.maximum(self.sums(share * new**2), 1e-12))
            before, value = value / deviation[self.part], new / deviation[self.part]
        return value

    def cuts(self, position: np.ndarray) -> np.ndarray:
        """Return the position of the first node behind the cut of each part."""
        ends = np.sort([position[self.row], position[self.column]], axis=0)
        changes = np.bincount(ends[0] + 1, self.weight, position.size + 1)
        changes -= np.bincount(ends[1] + 1, self.weight, position.size + 1)
        crossing = np.cumsum(changes)[:-1]
        part = np.repeat(np.arange(self.count), self.sizes)
        offset = np.arange(position.size) - self.bounds[part]
        off_middle = np.abs(offset - self.sizes[part] // 2) / self.sizes[part]
        cost = crossing / (0.25 - np.minimum(off_middle, 0.4) ** 2)
        cost[off_middle > _SLACK] = np.inf
        return np.lexsort((off_middle, cost, part))[self.bounds[:-1]]

    def exchanged(self, upper: np.ndarray) -> np.ndarray:
        """Return which nodes are in the upper half after exchanges across the cut."""
        side = np.where(upper, 1.0, -1.0)
        force = self.inner @ side + self.pull
        score = self.sums(side * (force + self.pull))
        limit = self.sizes // 2
        for _ in range(_EXCHANGES):
            gain = -side * force
            order = np.lexsort((-gain, side, self.part))
            lower_count = self.sums(side < 0).astype(np.int64)
            part = np.repeat(np.arange(self.count), self.sizes)
            rank = np.arange(side.size) - self.bounds[part]
            pairs = np.minimum(lower_count, self.sizes - lower_count)
            index = np.flatnonzero(rank < np.minimum(pairs, limit)[part])
            down, up = order[index], order[index + lower_count[part[index]]]
            better = gain[down] + gain[up] > 0
            down, up = down[better], up[better]
            trial = side.copy()
            trial[down], trial[up] = 1, -1
            trial_force = self.inner @ trial + self.pull
            trial_score = self.sums(trial * (trial_force + self.pull))
            improved = trial_score > score
            # Exchanged nodes that are linked spoil the gain: try fewer, the best ones.
            used = np.bincount(self.part[down], minlength=self.count)
            limit = np.where(improved, limit, used // 4)
            score = np.where(improved, trial_score, score)
            side = np.where(improved[self.part], trial, side)
            force = np.where(improved[self.part], trial_force, force)
            if not limit.any():
                break
        return side > 0
