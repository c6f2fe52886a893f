"""`GeometryLayer`: edges from the positions of atoms."""

import sys
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bandgnn.data.datasets.progress import progress_bar
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import level_of, pointers
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.atoms import Atoms, atoms_of
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.neighbours import Pairs, chunks

# Graphs of an iterable are connected together up to so many nodes.
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
        `edge["shift"]`: int32 [E, 3], the cell that the sender lies in, for graphs
            with `context["cell"]`; 0 in those that are not periodic.

    Subclasses override `find(atoms)`. A `FlatGraphs` gives a `FlatGraphs`, without a
    loop over graphs that are not periodic; other iterables give an iterator.
    """

    def __call__(
        self, graphs: Graph | FlatGraphs | Iterable[Graph]
    ) -> Graph | FlatGraphs | Iterator[Graph]:
        """Applies the layer to one graph, to a set, or lazily to each of several."""
        if isinstance(graphs, FlatGraphs):
            with _bar(len(graphs)) as advance:
                return self._connect(graphs, 0, advance)
        if isinstance(graphs, Graph):
            return self.call(graphs)
        super().__call__(graphs)  # refuses what is not iterable
        return self._each(graphs)

    def call(self, graph: Graph) -> Graph:
        """Returns the graph with its new edges."""
        return self._connect(FlatGraphs.from_graphs([graph]), 0, lambda more: None)[0]

    def find(self, atoms: Atoms) -> Pairs:
        """Returns the neighbours of all atoms, sorted by receiver."""
        raise NotImplementedError

    def _each(self, graphs: Iterable[Graph]) -> Iterator[Graph]:
        total = len(graphs) if hasattr(graphs, "__len__") else None
        done = 0
        with _bar(total) as advance:
            for chunk in _chunks(graphs):
                yield from self._connect(_joined(chunk, done), done, advance)
                done += len(chunk)

    def _connect(self, part: FlatGraphs, first: int, advance) -> FlatGraphs:
        atoms = atoms_of(part, first)
        self.check(atoms, first)
        start = pointers(atoms.num_nodes)
        found = []
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
            found.append(
                {k: v.astype(np.int32) if k in whole else v for k, v in edges.items()}
            )
            advance(end - begin)
        columns = {k: v for k, v in part.columns().items() if level_of(k) != "edge"}
        columns |= {k: np.concatenate([c[k] for c in found]) for k in found[0]}
        columns["edge_type"] = np.zeros_like(columns["senders"])
        return FlatGraphs.from_columns(columns, part.info)

    def check(self, atoms: Atoms, first: int) -> None:
        """Raises a ValueError for graphs that the layer cannot connect."""


def _bar(total: int | None):
    return progress_bar("Finding neighbours", total, sys.stderr.isatty())


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
