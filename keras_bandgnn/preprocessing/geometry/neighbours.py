"""Pairs of neighbouring atoms, in space or in a crystal with all its images."""

import itertools
from typing import NamedTuple

import numpy as np

from keras_bandgnn.data.flat_columns import pointers
from keras_bandgnn.optional import optional_import
from keras_bandgnn.preprocessing.geometry.atoms import Atoms

TIE = 1e-5
"""Distances that differ by less, in Angstrom, are equal: float32 rounds by as much."""

_MARGIN = 10 * TIE
# Up to this many atoms all pairs are faster than a search tree.
_FEW = 256
_GROWTH = 1.25
# Volume of a cell, as a share of the product of its edges, below which it is reduced.
_SKEWED = 0.1
_EXTRA = "keras-bandgnn[crystals]"


class Pairs(NamedTuple):
    """Neighbours, sorted by receiver, sender and shift. E pairs.

    Attributes:
        sender: int64 [E], the neighbour; nodes are counted through all graphs.
        receiver: int64 [E], the atom.
        shift: int64 [E, 3], cell of the sender.
        displacement: float64 [E, 3], from the atom to its neighbour, Angstrom.
        distance: float64 [E], its length.
    """

    sender: np.ndarray
    receiver: np.ndarray
    shift: np.ndarray
    displacement: np.ndarray
    distance: np.ndarray

    def take(self, rows: np.ndarray) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(*(array[rows] for array in self))


def within(atoms: Atoms, radius: float) -> Pairs:
    """Return all neighbours at most `radius` away.

    Example:
    >>> line = np.array([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]])
    >>> atoms = Atoms(np.array([3]), line, None, np.zeros((1, 3), bool))
    >>> pairs = within(atoms, 1.5)
    >>> pairs.sender.tolist(), pairs.receiver.tolist()
    ([1, 0], [0, 1])
    """
    pairs = _search(atoms, radius=radius)
    return pairs.take(pairs.distance <= radius)


def nearest(atoms: Atoms, k: int) -> Pairs:
    """Return the k nearest neighbours of each atom, or all if there are fewer.

    Example:
    >>> line = np.array([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]])
    >>> atoms = Atoms(np.array([3]), line, None, np.zeros((1, 3), bool))
    >>> nearest(atoms, 1).sender.tolist()
    [1, 0, 1]
    """
    return nearest_of(_search(atoms, k=k), k)


def everyone(atoms: Atoms) -> Pairs:
    """Return all pairs of different atoms of a graph, without images.

    Example:
    >>> atoms = Atoms(np.array([2]), np.eye(3)[:2], None, np.zeros((1, 3), bool))
    >>> everyone(atoms).sender.tolist()
    [1, 0]
    """
    sender, receiver = _all_of(atoms.num_nodes, np.arange(len(atoms.num_nodes)))
    return measured(atoms, sender, receiver, np.zeros((len(sender), 3), np.int64))


def nearest_of(pairs: Pairs, k: int) -> Pairs:
    """Keep the k nearest of each receiver; of ties those that come first."""
    order = np.lexsort((pairs.distance, pairs.receiver))
    receiver, distance = pairs.receiver[order], pairs.distance[order]
    first = np.ones(len(order), bool)
    first[1:] = receiver[1:] != receiver[:-1]
    farther = first.copy()
    farther[1:] |= distance[1:] - distance[:-1] > TIE
    order = order[np.lexsort((order, np.cumsum(farther)))]
    start = np.flatnonzero(first)
    counts = np.diff(start, append=len(order))
    rank = np.arange(len(order)) - np.repeat(start, counts)
    return pairs.take(np.sort(order[rank < k]))


def _search(atoms: Atoms, radius: float | None = None, k: int | None = None) -> Pairs:
    """Return at least the neighbours within the radius, or the k nearest with ties."""
    repeats = atoms.periodic.any(axis=1)
    few = ~repeats & (atoms.num_nodes <= _FEW)
    sender, receiver = _all_of(atoms.num_nodes, np.flatnonzero(few))
    shift = np.zeros((len(sender), 3), np.int64)
    if few.all():
        return measured(atoms, sender, receiver, shift)
    pieces = [(receiver, sender, shift)]
    start = pointers(atoms.num_nodes)
    for graph in np.flatnonzero(~few):
        position = atoms.position[start[graph] : start[graph + 1]]
        if repeats[graph]:
            cell, periodic = atoms.cell[graph], atoms.periodic[graph]
            ends = _images(position, cell, periodic, radius, k)
        else:
            ends = _tree(position, radius, k)
        pieces.append((ends[0] + start[graph], ends[1] + start[graph], ends[2]))
    receiver, sender, shift = (np.concatenate(a) for a in zip(*pieces, strict=True))
    order = np.lexsort((*shift.T[::-1], sender, receiver))
    return measured(atoms, sender[order], receiver[order], shift[order])


def measured(atoms: Atoms, sender, receiver, shift) -> Pairs:
    """Return pairs with their displacements and distances."""
    displacement = atoms.position[sender] - atoms.position[receiver]
    if atoms.cell is not None:
        graph = np.repeat(np.arange(len(atoms.num_nodes)), atoms.num_nodes)
        displacement += np.einsum("ei,eij->ej", shift, atoms.cell[graph[receiver]])
    distance = np.sqrt(np.einsum("ei,ei->e", displacement, displacement))
    return Pairs(sender, receiver, shift, displacement, distance)


def _all_of(num_nodes: np.ndarray, graphs: np.ndarray) -> tuple:
    """Return the sender and receiver of all pairs within some of the graphs."""
    from keras_bandgnn.data.datasets.parts import all_pairs

    none = np.zeros(0, np.int64)
    pairs = all_pairs(num_nodes[graphs], np.zeros(len(graphs), int), none, none, none)
    offset = np.repeat(pointers(num_nodes)[graphs], pairs["num_edges"])
    return pairs["senders"] + offset, pairs["receivers"] + offset


def _tree(position: np.ndarray, radius: float | None, k: int | None) -> tuple:
    """Return the receiver, sender and shift in one graph without a cell."""
    from scipy.spatial import cKDTree

    tree = cKDTree(position)
    if k is None:
        one, other = tree.query_pairs(radius + _MARGIN, output_type="ndarray").T
        receiver, sender = np.append(one, other), np.append(other, one)
    else:
        # Each atom is its own nearest neighbour.
        reach = tree.query(position, [min(k + 1, len(position))])[0][:, 0]
        lists = tree.query_ball_point(position, reach + _MARGIN)
        receiver = np.repeat(np.arange(len(lists)), [len(pieces) for pieces in lists])
        sender = np.fromiter(itertools.chain.from_iterable(lists), np.int64)
        other = sender != receiver
        receiver, sender = receiver[other], sender[other]
    return receiver, sender, np.zeros((len(sender), 3), np.int64)


def _images(
    position: np.ndarray,
    cell: np.ndarray,
    periodic: np.ndarray,
    radius: float | None,
    k: int | None,
) -> tuple:
    """Return the receiver, sender and shift in one periodic graph."""
    search = optional_import("vesin", _EXTRA).NeighborList
    count = len(position)
    box = _box(position, cell, periodic)
    change = np.eye(3, dtype=np.int64)
    if abs(np.linalg.det(box)) < _SKEWED * np.linalg.norm(box, axis=1).prod():
        # Many thin cells are within the radius; other vectors of the same lattice
        # are shorter.
        change = _shorter(box, periodic)
        box = change @ box
    fixed = radius is not None
    if not fixed:
        volume = (k + 1) / count * abs(np.linalg.det(box))
        radius = (3 / (4 * np.pi) * volume) ** (1 / 3)
    while True:
        # The order of pairs is set by the caller.
        cells = search(cutoff=radius + _MARGIN, full_list=True, n_threads=1)
        ends = cells.compute(position, box, periodic, "ijSd")
        receiver, sender, shift = (ids.astype(np.int64) for ids in ends[:3])
        if fixed:
            break
        distance = ends[3]
        close = np.bincount(receiver[distance <= radius], minlength=count)
        if close.min() >= k:
            break
        radius *= _GROWTH
    return receiver, sender, shift @ change


def _box(position: np.ndarray, cell: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Return the cell, with vectors that enclose the atoms where it is open."""
    if periodic.all():
        return cell
    from scipy.linalg import null_space

    across = null_space(cell[periodic]).T
    extent = np.ptp(position @ across.T, axis=0) + 1
    box = cell.copy()
    box[~periodic] = across * extent[:, None]
    return box


def _shorter(box: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Return int64 [3, 3], from vectors of a cell to shorter ones of the same lattice.

    Each of the periodic vectors is shortened by sums of the others until none is.
    """
    box, change = box.copy(), np.eye(3, dtype=np.int64)
    axes = np.flatnonzero(periodic)
    near = np.array([*itertools.product((-1, 0, 1), repeat=len(axes) - 1)])
    shortened = True
    while shortened:
        shortened = False
        for axis in axes:
            others = axes[axes != axis]
            share = np.linalg.lstsq(box[others].T, box[axis], rcond=None)[0]
            sums = np.rint(share).astype(np.int64) + near
            lengths = np.linalg.norm(box[axis] - sums @ box[others], axis=1)
            first = lengths.argmin()
            if lengths[first] < (1 - 1e-9) * np.linalg.norm(box[axis]):
                box[axis] -= sums[first] @ box[others]
                change[axis] -= sums[first] @ change[others]
                shortened = True
    return change


def chunks(atoms: Atoms, budget: int = 1 << 20) -> list[tuple[int, int]]:
    """Return the ranges of graphs that together have about `budget` pairs to look at.

    Example:
    >>> atoms = Atoms(np.array([4, 4, 4]), np.zeros((12, 3)), None, np.zeros((3, 3)))
    >>> chunks(atoms, budget=16)
    [(0, 1), (1, 2), (2, 3)]
    """
    nodes = atoms.num_nodes
    cost = nodes * np.where(atoms.periodic.any(axis=1), _FEW, np.minimum(nodes, _FEW))
    number = (np.cumsum(cost) - 1) // budget
    edges = [0, *np.flatnonzero(np.diff(number)) + 1, len(nodes)]
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]
