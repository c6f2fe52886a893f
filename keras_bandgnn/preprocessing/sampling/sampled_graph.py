"""`SampledGraph` and `Subgraph`: a large graph, and a part of it that forms a batch."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bandgnn.arrays import TIME
from keras_bandgnn.data.flat import FlatGraphs


class Subgraph(NamedTuple):
    """Nodes and edges of a graph, numbered anew.

    Nodes are in the order in which they were found: first those that a batch trains
    on, then those at a distance of one edge, and so on. Edges are sorted by receiver.

    Attributes:
        nodes: int64 [n], ids in the graph.
        edges: int64 [e], ids in the graph.
        sender: int32 [e], positions in `nodes`.
        receiver: int32 [e], positions in `nodes`, ascending.
        node_ends: Number of nodes within each distance 0, 1, ..., L; the nodes that
            the batch trains on come first, `node_ends[0]` of them.
        edge_ends: Number of edges into the nodes within each distance 0, ..., L - 1.
        edge_weight: float32 [e], factor of each message that makes sums unbiased, or
            None.
        node_weight: float32 [node_ends[0]], factor of each loss, or None.
        time: int64 [n], time of the seed of each node, all of whose edges are earlier;
            None without times. Then a node may occur once for each seed.
    """

    nodes: np.ndarray
    edges: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    node_ends: tuple[int, ...]
    edge_ends: tuple[int, ...]
    edge_weight: np.ndarray | None = None
    node_weight: np.ndarray | None = None
    time: np.ndarray | None = None


class SampledGraph:
    """A graph by its edges into each node, from which subgraphs are cut.

    Several graphs count as one that is not connected. Columns stay where they are: a
    memory-mapped store is read row by row.

    Args:
        flat: The graphs.

    Attributes:
        num_nodes: N.
        num_edges: E.
        pointer: int64 [N + 1], first edge into each node.
        senders: int32 [E].
        degree: int64 [N], edges into each node.
    """

    def __init__(self, flat: FlatGraphs):
        self.flat = flat
        starts = flat.node_ptr[:-1]
        self.num_nodes = int(flat.node_ptr[-1])
        self.num_edges = len(flat.senders)
        self.senders, receivers = flat.senders, flat.receivers
        if len(flat) > 1:
            shift = np.repeat(starts, flat.num_edges).astype(np.int32)
            self.senders, receivers = self.senders + shift, receivers + shift
        self.degree = np.bincount(receivers, minlength=self.num_nodes)
        self.pointer = np.concatenate([[0], np.cumsum(self.degree)])
        # What samplers have computed of the graph, by the sampler's arguments.
        self.notes: dict = {}
        self._receivers = receivers
        self._loops: np.ndarray | None = None
        self._typed: tuple | None = None
        self._histories: dict = {}
        self._local = threading.local()
        self._lock = threading.Lock()

    def __getstate__(self):
        state = {k: v for k, v in self.__dict__.items() if k not in ("_local", "_lock")}
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._local, self._lock = threading.local(), threading.Lock()

    @property
    def receivers(self) -> np.ndarray:
        """int32 [E], ascending."""
        return self._receivers

    @property
    def loops(self) -> np.ndarray:
        """int64 [N], edges from each node to itself."""
        if self._loops is None:
            is_loop = self.senders == self._receivers
            self._loops = np.bincount(
                self._receivers[is_loop], minlength=self.num_nodes
            )
        return self._loops

    def by_type(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return edges by receiver and type.

        Returns:
            int64 [E], edge ids in that order; int64 [N * P + 1], the first of each
            receiver and type; P.
        """
        with self._lock:
            if self._typed is None:
                kind = self.flat.edge_type
                num_types = 1 + int(kind.max(initial=0))
                key = self._receivers.astype(np.int64) * num_types + kind
                order = np.argsort(key, kind="stable")
                counts = np.bincount(key, minlength=self.num_nodes * num_types)
                self._typed = order, np.concatenate([[0], np.cumsum(counts)]), num_types
        return self._typed

    def histories(self, rows: str = "node"):
        """Return the `EdgeHistories` of edges by receiver, or also by another key.

        Args:
            rows: "node", the receiver; "type", that and the type, receiver * P + type;
                or "loop", the same of edges from a node to itself alone.
        """
        from keras_bandgnn.preprocessing.sampling.edge_histories import EdgeHistories

        if rows not in self._histories:
            key, count = self._receivers.astype(np.int64), self.num_nodes
            times = np.asarray(self.flat.edge[TIME])
            if rows != "node":
                num_types = self.by_type()[2]
                key, count = key * num_types + self.flat.edge_type, count * num_types
            if rows == "loop":
                is_loop = self.senders == self._receivers
                key, times = key[is_loop], times[is_loop]
            histories = EdgeHistories(key, times, count)
            with self._lock:
                self._histories.setdefault(rows, histories)
        return self._histories[rows]

    def type_degrees(self, num_types: int, some=slice(None)) -> np.ndarray:
        """Return the edges into each node per type, int64 [N, P].

        Args:
            num_types: P.
            some: The edges that count, bool [E] or a slice.
        """
        key = self._receivers[some].astype(np.int64) * num_types
        key += np.asarray(self.flat.edge_type)[some]
        counts = np.bincount(key, minlength=self.num_nodes * num_types)
        return counts.reshape(-1, num_types)

    def edges_into(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all edges into some nodes, and how many go into each."""
        first = self.pointer[nodes]
        counts = self.pointer[nodes + 1] - first
        return ranges(first, counts), counts

    def numbering(self) -> np.ndarray:
        """Return int32 [N] of -1, this thread's own; it must be -1 again after use."""
        numbers = getattr(self._local, "numbering", None)
        if numbers is None:
            numbers = self._local.numbering = np.full(self.num_nodes, -1, np.int32)
        return numbers

    def induced(self, nodes: np.ndarray) -> Subgraph:
        """Return the subgraph of some nodes with all edges between them.

        Args:
            nodes: int64 [n], distinct.
        """
        number = self.numbering()
        number[nodes] = np.arange(len(nodes), dtype=np.int32)
        try:
            edges, counts = self.edges_into(nodes)
            sender = number[self.senders[edges]]
            inside = sender >= 0
            receiver = np.arange(len(nodes), dtype=np.int32).repeat(counts)[inside]
        finally:
            number[nodes] = -1
        edges = edges[inside]
        ends = (len(nodes),)
        return Subgraph(nodes, edges, sender[inside], receiver, ends, (len(edges),))


def node_ids(graph: SampledGraph, name: str, argument: str) -> np.ndarray:
    """Return a node feature that is an id from 0, int64 [N], after checking it.

    Args:
        graph: The graph.
        name: Name of the feature.
        argument: What it was given as, for errors.
    """
    ids = graph.flat.node.get(name)
    if ids is None or ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"Expected a node feature {name!r}, an id per node, as `{argument}`. "
            f"Received: node features {sorted(graph.flat.node)}. Compile the graph "
            f"with ClusterCompile, or leave `{argument}` out."
        )
    if ids.min() < 0:
        raise ValueError(
            f"Expected ids of at least 0 in node[{name!r}]. Received: {ids.min()}."
        )
    return np.asarray(ids, np.int64)


def ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return first[0], first[0] + 1, ..., then first[1], first[1] + 1, and so on."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + (first - (ends - counts)).repeat(counts)


def key_of(*numbers: int | Sequence[int]) -> np.random.Generator:
    """Return a generator of random numbers that depends on some numbers alone."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(numbers)))
