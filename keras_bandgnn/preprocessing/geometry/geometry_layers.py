"""Edges from the positions of atoms: by radius, by nearest neighbours, or all."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack, overload

import numpy as np

from keras_bandgnn import checks
from keras_bandgnn.arrays import cutoff_table
from keras_bandgnn.checks import positive_int
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import level_of, pointers
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.geometry.atoms import (
    Atoms,
    atoms_of,
    check_images,
    graph_name,
)
from keras_bandgnn.preprocessing.geometry.neighbours import (
    Pairs,
    chunks,
    everyone,
    nearest,
    nearest_of,
    within,
)
from keras_bandgnn.preprocessing.graph_layer import (
    GraphLayer,
    refuse_edge_labels,
    without_edge_sets,
)
from keras_bandgnn.progress import progress_bar
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Values

# Graphs of an iterable are connected together, up to this many nodes.
_NODES = 1 << 15


class GeometryLayer(GraphLayer):
    """Replaces the edges of graphs by those that follow from positions.

    Reads `node["position"]` [N, 3] and, of periodic structures, `context["cell"]`
    [3, 3] and `context["pbc"]` [3]. An edge leads from a neighbour to its atom; edges
    are sorted by receiver, sender and shift. Earlier edges, their types and features
    are dropped; the types are 0.

    Features:
        `edge["displacement"]`: float32 [E, 3], Angstrom, from the atom to its
            neighbour: position[sender] + shift @ cell - position[receiver].
        `edge["distance"]`: float32 [E], Angstrom.
        `edge["shift"]`: int32 [E, 3], the cell of the sender, for graphs
            with `context["cell"]`; 0 in those that are not periodic.

    Subclasses override `find(atoms)`. A `FlatGraphs` gives a `FlatGraphs`, without a
    loop over graphs that are not periodic; other iterables give an iterator.
    """

    @overload
    def __call__(self, graphs: Graph) -> Graph: ...

    @overload
    def __call__(self, graphs: FlatGraphs) -> FlatGraphs: ...

    @overload
    def __call__(self, graphs: Iterable[Graph]) -> Iterator[Graph]: ...

    def __call__(
        self, graphs: Graph | FlatGraphs | Iterable[Graph]
    ) -> Graph | FlatGraphs | Iterator[Graph]:
        """Apply the layer to one graph, to a set, or lazily to each of several."""
        if isinstance(graphs, FlatGraphs):
            with _bar(len(graphs)) as advance:
                return self._connect(graphs, 0, advance)
        if isinstance(graphs, Graph):
            return self.call(graphs)
        super().__call__(graphs)  # refuses what is not iterable
        return self._connected(graphs)

    def call(self, graph: Graph) -> Graph:
        """Return the graph with its new edges."""
        return self._connect(FlatGraphs.from_graphs([graph]), 0, lambda more: None)[0]

    def find(self, atoms: Atoms) -> Pairs:
        """Return the neighbours of all atoms, sorted by receiver."""
        raise NotImplementedError

    def _connected(self, graphs: Iterable[Graph]) -> Iterator[Graph]:
        total = len(graphs) if hasattr(graphs, "__len__") else None
        done = 0
        with _bar(total) as advance:
            for chunk in _chunks(map(self._checked, graphs)):
                yield from self._connect(_joined(chunk, done), done, advance)
                done += len(chunk)

    def _connect(self, part: FlatGraphs, first: int, advance) -> FlatGraphs:
        refuse_edge_labels(part, self)
        atoms = atoms_of(part, first)
        self.check(atoms, first, part.info)
        start = pointers(atoms.num_nodes)
        pieces = []
        for begin, end in chunks(atoms):
            pairs = self.find(atoms.part(begin, end))
            graph = np.repeat(np.arange(begin, end), atoms.num_nodes[begin:end])
            graph = graph[pairs.receiver]
            offset = start[begin] - start[graph]
            edges = {
                "num_edges": np.bincount(graph - begin, minlength=end - begin),
                "senders": pairs.sender + offset,
                "receivers": pairs.receiver + offset,
                "edge/displacement": pairs.displacement.astype(np.float32),
                "edge/distance": pairs.distance.astype(np.float32),
            }
            if atoms.cell is not None:
                edges["edge/shift"] = pairs.shift
            whole = ("num_edges", "senders", "receivers", "edge/shift")
            pieces.append(
                {k: v.astype(np.int32) if k in whole else v for k, v in edges.items()}
            )
            advance(end - begin)
        columns = {k: v for k, v in part.columns().items() if level_of(k) != "edge"}
        columns |= {k: np.concatenate([c[k] for c in pieces]) for k in pieces[0]}
        columns["edge_type"] = np.zeros_like(columns["senders"])
        info = part.info
        if part.sets:
            info = [without_edge_sets(entry) for entry in info]
        return FlatGraphs.from_columns(columns, info)

    def check(self, atoms: Atoms, first: int, info: Sequence[Values] = ()) -> None:
        """Raise a ValueError for graphs that the layer cannot connect.

        Args:
            atoms: The graphs.
            first: Number of the first graph, for errors.
            info: Their `info`, for errors.
        """


def _bar(total: int | None):
    return progress_bar("Finding neighbours", total, shown=True)


def _chunks(graphs: Iterable[Graph]) -> Iterator[list[Graph]]:
    chunk, nodes = [], 0
    for graph in graphs:
        chunk.append(graph)
        nodes += graph.num_nodes
        if nodes >= _NODES:
            yield chunk
            chunk, nodes = [], 0
    if chunk:
        yield chunk


def _joined(chunk: list[Graph], done: int) -> FlatGraphs:
    try:
        return FlatGraphs.from_graphs(chunk)
    except ValueError as error:
        raise ValueError(f"Counting from graph {done}: {error}") from error


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class RadiusGraph(GeometryLayer):
    """Connects each atom with all atoms at most a cutoff away, both ways.

    In periodic structures images of atoms in other cells are neighbours, too; with a
    cutoff beyond the cell there are several edges between two atoms, and edges from an
    atom to itself. Such structures need `pip install "keras-bandgnn[chem]"`.

    Edges have the types 0 and the features `displacement` float32 [E, 3] (Angstrom,
    position[sender] + shift @ cell - position[receiver], from the atom to its
    neighbour), `distance` float32 [E] (Angstrom) and, for graphs with a cell, `shift`
    int32 [E, 3], the cell of the sender. They are sorted by receiver, sender
    and shift. Earlier edges, their types and features are dropped.

    Args:
        cutoff: Largest distance of neighbours, Angstrom.
        max_neighbours: Keep at most this many nearest neighbours of each atom; then an
            edge may lack its reverse. Ties as in `KNearestGraph`. None keeps all.
        element_cutoffs: Atomic number -> Angstrom, at most `cutoff`, which other
            elements have: two atoms are neighbours within the mean of their two
            cutoffs. Reads `node["atomic_number"]`.

    Raises:
        ValueError: If a cutoff is not a positive number. When applied: for missing
            positions, wrong shapes, NaN, or a periodic graph with a flat cell or one
            far smaller than the cutoff. The message names the graph, and its file and
            frame if `info` has them.
        ImportError: When applied to a periodic graph, if vesin is not installed.

    Example:
    >>> from keras_bandgnn import Graph
    >>> water = [[0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]]
    >>> graph = RadiusGraph(1.2)(Graph(3, [], [], node={"position": water}))
    >>> graph.senders.tolist(), graph.receivers.tolist()
    ([1, 2, 0, 0], [0, 0, 1, 2])
    >>> graph.edge["displacement"].shape
    (4, 3)
    """

    def __init__(
        self,
        cutoff: float,
        max_neighbours: int | None = None,
        element_cutoffs: Mapping[int, float] | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        real = isinstance(cutoff, numbers.Real) and not isinstance(cutoff, bool)
        if not real or not 0 < cutoff < math.inf:
            raise ValueError(
                "Expected `cutoff` to be a positive number of Angstrom. "
                f"Received: cutoff={cutoff!r}. For all pairs use FullyConnectedGraph."
            )
        self.cutoff = float(cutoff)
        self.max_neighbours = max_neighbours
        if max_neighbours is not None:
            self.max_neighbours = positive_int("max_neighbours", max_neighbours)
        self.element_cutoffs = checks.element_cutoffs(element_cutoffs, self.cutoff)
        self._table: np.ndarray | None = None
        if self.element_cutoffs is not None:
            self._table = cutoff_table(self.element_cutoffs, self.cutoff)

    def check(self, atoms: Atoms, first: int, info: Sequence[Values] = ()) -> None:
        """Raise a ValueError for cells far too small for the cutoff."""
        check_images(atoms, self.cutoff, info, first)
        if self._table is not None and atoms.number is None:
            raise ValueError(
                "Expected node['atomic_number'] for RadiusGraph(element_cutoffs=...). "
                f"Received: graphs without it, from {graph_name(0, info, first)} on. "
                "Add it, or leave element_cutoffs out."
            )

    def reach(self, elements: np.ndarray) -> np.ndarray:
        """Return the cutoffs of elements, Angstrom.

        Args:
            elements: Atomic numbers, int [n].
        """
        elements = np.asarray(elements)
        if self._table is None:
            return np.full(elements.shape, self.cutoff)
        in_table = (elements >= 0) & (elements < len(self._table))
        return self._table[np.where(in_table, elements, -1)]

    def near(self, atoms: Atoms, pairs: Pairs) -> Pairs:
        """Return those of the pairs that are within their cutoff.

        Args:
            atoms: The structures.
            pairs: Pairs of their atoms.
        """
        if self._table is None:
            return pairs.take(pairs.distance <= self.cutoff)
        radius = self.reach(atoms.number)
        limit = (radius[pairs.receiver] + radius[pairs.sender]) / 2
        return pairs.take(pairs.distance <= limit)

    def find(self, atoms: Atoms) -> Pairs:
        """Return the neighbours within the cutoff."""
        pairs = within(atoms, self.cutoff)
        if self._table is not None:
            pairs = self.near(atoms, pairs)
        if self.max_neighbours is None:
            return pairs
        return nearest_of(pairs, self.max_neighbours)

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        config = {
            **super().get_config(),
            "cutoff": self.cutoff,
            "max_neighbours": self.max_neighbours,
        }
        if self.element_cutoffs is not None:
            # JSON has text as keys.
            config["element_cutoffs"] = {
                str(element): radius for element, radius in self.element_cutoffs.items()
            }
        return config


@serializable
class KNearestGraph(GeometryLayer):
    """Connects each atom with its k nearest neighbours.

    An edge leads from the neighbour to the atom; its reverse may be missing. In
    periodic structures images in other cells count as neighbours, those of the atom
    itself, too, so every atom has k. Otherwise an atom has all others if they are
    fewer than k: none in a graph of one atom. Periodic structures need
    `pip install "keras-bandgnn[chem]"`.

    Distances that differ by less than 1e-5 Angstrom are ties: the neighbour with the
    lower id wins, then the image with the lower shift.

    Edges have the types 0 and the features `displacement` float32 [E, 3] (Angstrom,
    position[sender] + shift @ cell - position[receiver], from the atom to its
    neighbour), `distance` float32 [E] (Angstrom) and, for graphs with a cell, `shift`
    int32 [E, 3], the cell of the sender. They are sorted by receiver, sender
    and shift. Earlier edges, their types and features are dropped.

    Args:
        k: Neighbours of each atom.

    Raises:
        ValueError: If `k` is not positive. When applied: for missing positions, wrong
            shapes, NaN, or a periodic graph with a flat cell.
        ImportError: When applied to a periodic graph, if vesin is not installed.

    Example:
    >>> from keras_bandgnn import Graph
    >>> line = [[0, 0, 0], [1, 0, 0], [3, 0, 0]]
    >>> graph = KNearestGraph(1)(Graph(3, [], [], node={"position": line}))
    >>> graph.senders.tolist(), graph.edge["distance"].tolist()
    ([1, 0, 1], [1.0, 1.0, 2.0])
    """

    def __init__(self, k: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.k = positive_int("k", k)

    def find(self, atoms: Atoms) -> Pairs:
        """Return the k nearest neighbours of each atom."""
        return nearest(atoms, self.k)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class FullyConnectedGraph(GeometryLayer):
    """Connects each atom with all others of its graph, both ways.

    N atoms have N (N - 1) edges: for small molecules. Periodic graphs are refused. One
    edge to the nearest image of each atom would leave out an atom's own images, and
    the same crystal in a larger cell would have other neighbours.

    Edges have the types 0 and the features `displacement` float32 [E, 3] (Angstrom,
    position[sender] - position[receiver], from the atom to its neighbour), `distance`
    float32 [E] (Angstrom) and, for graphs with a cell, `shift` int32 [E, 3], all 0.
    They are sorted by receiver and sender. Earlier edges, their types and features are
    dropped.

    Raises:
        ValueError: When applied: for periodic graphs, missing positions, wrong shapes
            or NaN.

    Example:
    >>> from keras_bandgnn import Graph
    >>> corner = [[0, 0, 0], [3, 0, 0], [0, 4, 0]]
    >>> graph = FullyConnectedGraph()(Graph(3, [], [], node={"position": corner}))
    >>> graph.edge["distance"].tolist()
    [3.0, 4.0, 3.0, 5.0, 4.0, 5.0]
    """

    def find(self, atoms: Atoms) -> Pairs:
        """Return all pairs."""
        return everyone(atoms)

    def check(self, atoms: Atoms, first: int, info: Sequence[Values] = ()) -> None:
        """Raise a ValueError for periodic graphs."""
        repeats = np.flatnonzero(atoms.periodic.any(axis=1))
        if repeats.size:
            raise ValueError(
                "Expected graphs without periods for FullyConnectedGraph. Received: "
                f"{graph_name(int(repeats[0]), info, first)} is periodic. Use "
                "RadiusGraph or KNearestGraph, or set context['pbc'] to 0 for a "
                "molecule in a box."
            )
