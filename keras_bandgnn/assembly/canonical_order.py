"""Colour refinement: a node order that does not depend on the numbering."""

import numpy as np

from keras_bandgnn.graph import Graph

# Features that follow the numbering, or that differ by rounding from one numbering to
# another.
_NUMBERED = ("laplacian", "random_walk", "cluster")
# Feature entries hashed at a time.
_ENTRIES = 1 << 22
# Refinement stops after this many visits of nodes and edges; more for large graphs.
_VISITS = 1 << 22
_ROUNDS = 64


def mixed(values: np.ndarray) -> np.ndarray:
    """Return a pseudo-random bijection of uint64 (the finaliser of splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def canonical_rank(graph: Graph) -> np.ndarray:
    """Return a rank for each node that does not depend on how nodes are numbered.

    Nodes are distinguished by their features, by their roles (candidates, the slot),
    and repeatedly by their neighbours (Weisfeiler and Leman). Where nodes remain
    indistinguishable, one of them is singled out, which distinguishes the others. So
    the numbering decides only between nodes that refinement cannot distinguish. In
    nearly all graphs these are symmetric, and it does not matter which is taken:
    renumbering a graph gives the same result.

    Exceptions are graphs whose indistinguishable nodes are not symmetric (such as
    strongly regular ones), and large ones for which refinement stops early (long
    rings, for example).

    Args:
        graph: Any graph. Eigenvectors, random walks and clusters, which preprocessing
            layers add as features, are ignored.

    Returns:
        int64 [N], a permutation.

    Reference:
        McKay and Piperno 2014, without the search among equal choices.

    Example:
    >>> canonical_rank(Graph(3, [0, 1], [1, 2])).tolist()[1] == canonical_rank(
    ...     Graph(3, [2, 0], [0, 1])
    ... ).tolist()[0]
    True
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    size = graph.num_nodes
    refine = _Refinement(graph)
    colour = _first_colours(graph)
    while True:
        colour = refine(colour)
        _, kind, count = np.unique(colour, return_inverse=True, return_counts=True)
        alike = np.flatnonzero(count[kind] > 1)
        part = np.zeros(size, np.int64)
        if not alike.size:
            break
        # Distinguished nodes cut the others into parts that can be treated one by one:
        # equal parts can only be exchanged as a whole.
        unknown = count[kind] > 1
        inner = unknown[graph.senders] & unknown[graph.receivers]
        ends = graph.senders[inner], graph.receivers[inner]
        linked = csr_array((np.ones(ends[0].size), ends), shape=(size, size))
        part = connected_components(linked, directed=False)[1].astype(np.int64)
        singled_out = _first_of_pairs(part[alike], colour[alike], alike)
        if not singled_out.size or refine.exhausted:
            break
        colour = colour.copy()
        colour[singled_out] = mixed(~colour[singled_out])
    rank = np.empty(size, np.int64)
    rank[np.lexsort((np.arange(size), part, colour))] = np.arange(size)
    return rank


def _first_of_pairs(part, colour, nodes) -> np.ndarray:
    """Return, for each part, the first node of its rarest repeated colour."""
    order = np.lexsort((nodes, colour, part))
    part, colour, nodes = part[order], colour[order], nodes[order]
    begins = np.ones(nodes.size, bool)
    begins[1:] = (part[1:] != part[:-1]) | (colour[1:] != colour[:-1])
    first = np.flatnonzero(begins)
    length = np.diff(first, append=nodes.size)
    first, length = first[length > 1], length[length > 1]
    order = np.lexsort((colour[first], length, part[first]))
    first = first[order]
    is_first = np.ones(first.size, bool)
    is_first[1:] = part[first][1:] != part[first][:-1]
    return nodes[first[is_first]]


class _Refinement:
    """Colours of nodes from those of their neighbours, until none is split further."""

    def __init__(self, graph: Graph):
        self.size = graph.num_nodes
        # Edges count in both directions, which are two types.
        to = np.concatenate([graph.receivers, graph.senders])
        order = np.argsort(to, kind="stable")
        self.by = np.concatenate([graph.senders, graph.receivers])[order]
        kind = 2 * graph.edge_type.astype(np.uint64)
        self.kind = np.concatenate([kind, kind + np.uint64(1)])[order]
        self.ptr = np.zeros(self.size + 1, np.int64)
        np.cumsum(np.bincount(to, minlength=self.size), out=self.ptr[1:])
        self.visit = graph.num_edges + self.size
        self.visits = max(_VISITS, _ROUNDS * self.visit)

    @property
    def exhausted(self) -> bool:
        """Whether the budget of visits is used up."""
        return self.visits < self.visit

    def __call__(self, colour: np.ndarray) -> np.ndarray:
        count = _distinct(colour)
        while count < self.size and not self.exhausted:
            self.visits -= self.visit
            sent = mixed(colour[self.by] * np.uint64(31) + self.kind)
            # The sum does not depend on the order of the edges. Differences of running
            # sums are right although these overflow.
            running = np.zeros(len(sent) + 1, np.uint64)
            np.cumsum(sent, out=running[1:])
            total = running[self.ptr]
            colour = mixed(mixed(colour) + total[1:] - total[:-1])
            before, count = count, _distinct(colour)
            if count == before:
                break
        return colour


def _distinct(colour: np.ndarray) -> int:
    ordered = np.sort(colour)
    return 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def _first_colours(graph: Graph) -> np.ndarray:
    """Return a hash of each node's features and roles, uint64 [N]."""
    colour = np.zeros(graph.num_nodes, np.uint64)
    for name in sorted(set(graph.node) - set(_NUMBERED)):
        colour = mixed(colour ^ _rows(graph.node[name]))
    if graph.candidates is not None:
        place = np.arange(1, graph.candidates.size + 1, dtype=np.uint64)
        np.add.at(colour, graph.candidates, mixed(place))
    if graph.slot is not None:
        slot = [graph.slot]
        colour[slot] = mixed(~colour[slot])
    return mixed(colour)


def _rows(values: np.ndarray) -> np.ndarray:
    """Return a hash of each row, uint64 [N]."""
    values = np.ascontiguousarray(values.reshape(len(values), -1))
    words = values.view(f"u{values.dtype.itemsize}")
    factor = mixed(np.arange(words.shape[1], dtype=np.uint64)) | np.uint64(1)
    out = np.zeros(len(words), np.uint64)
    step = max(1, _ENTRIES // max(words.shape[1], 1))
    for low in range(0, len(words), step):
        rows = words[low : low + step].astype(np.uint64)
        out[low : low + step] = (rows * factor).sum(axis=1, dtype=np.uint64)
    return mixed(out)
