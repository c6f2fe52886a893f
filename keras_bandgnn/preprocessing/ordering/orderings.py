"""`ORDERINGS`: orders of nodes for a narrow band, by name, and their local search."""

from collections.abc import Callable, Mapping

import numpy as np

from keras_bandgnn.checks import refuse
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.ordering.bisection import split
from keras_bandgnn.preprocessing.ordering.breadth_first import breadth_first
from keras_bandgnn.preprocessing.ordering.metis import metis
from keras_bandgnn.preprocessing.ordering.rcm import (
    links,
    lost,
    positions,
    reverse_cuthill_mckee,
    rows_of,
)
from keras_bandgnn.registration import registered_callable

_ROUNDS = 12
_PARTNERS = 4


def swap_into_band(adjacency, order: np.ndarray, block_size: int) -> np.ndarray:
    """Swap nodes as long as that adds to the weight of links with |i - j| < S.

    In a round each node with lost links looks for the places from which most of its
    links are in the band, tries a few nodes there as partners, and takes the best.
    All swaps of a round are made together; a swap shifts no other node. Linked nodes
    that move at the same time can spoil the gain, so a round counts only if it helps
    as a whole.

    Args:
        adjacency: Symmetric CSR array [N, N] of weights, without a diagonal.
        order: int [N], where to start.
        block_size: S.

    Returns:
        int64 [N]: the node that comes k-th; never worse than `order`.
    """
    search = _Search(adjacency, positions(order), block_size)
    rng = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        if not search.swap(rng):
            break
    return np.argsort(search.position)


class _Search:
    def __init__(self, adjacency, position: np.ndarray, block_size: int):
        self.adjacency, self.block_size = adjacency, block_size
        self.row = rows_of(adjacency)
        self.position = position
        self.lost = lost(adjacency, self.row, position, block_size)

    def _covered(self, nodes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the weight of links in the band if nodes were at places."""
        first = self.adjacency.indptr[nodes].astype(np.int64)
        counts = self.adjacency.indptr[nodes + 1] - first
        which = np.repeat(np.arange(nodes.size), counts)
        skipped = np.cumsum(counts) - counts
        entry = np.arange(which.size) + (first - skipped)[which]
        other = self.position[self.adjacency.indices[entry]]
        near = np.abs(places[which] - other) < self.block_size
        return np.bincount(which, near * self.adjacency.data[entry], nodes.size)

    def _places(self, now: np.ndarray, rng: np.random.Generator):
        """Return nodes that can improve, their best ranges of places, and the gain."""
        count = self.position.size
        key = self.row * count + self.position[self.adjacency.indices]
        by_key = np.argsort(key)
        key = key[by_key]
        weight = np.concatenate([[0], np.cumsum(self.adjacency.data[by_key])])
        # Links from each entry on that are within reach of one place.
        width = 2 * (self.block_size - 1)
        end = np.searchsorted(
            key, np.minimum(key + width, self.row * count + count - 1), side="right"
        )
        reached = weight[end] - weight[:-1]
        best = np.zeros(count)
        np.maximum.at(best, self.row, reached)
        better = best > now
        entry = np.flatnonzero((reached == best[self.row]) & better[self.row])
        # The first of shuffled entries: any of the best ranges of a node.
        entry = rng.permutation(entry)
        nodes, first = np.unique(self.row[entry], return_index=True)
        entry = entry[first]
        low = np.maximum(key[end[entry] - 1] - nodes * count - (self.block_size - 1), 0)
        high = np.minimum(key[entry] - nodes * count + self.block_size - 1, count - 1)
        return nodes, low, high, (best - now)[nodes]

    def swap(self, rng: np.random.Generator) -> bool:
        """Make the swaps of one round; return whether there were any."""
        now = self._covered(np.arange(self.position.size), self.position)
        nodes, low, high, gain = self._places(now, rng)
        at = np.argsort(self.position)
        spread = rng.random((nodes.size, _PARTNERS)) * (high - low + 1)[:, None]
        partners = at[low[:, None] + spread.astype(np.int64)]
        back = np.repeat(self.position[nodes], _PARTNERS)
        change = self._covered(partners.ravel(), back) - now[partners.ravel()]
        gain = gain[:, None] + change.reshape(partners.shape)
        best = np.arange(nodes.size), gain.argmax(axis=1)
        pairs, gain = np.stack([nodes, partners[best]]), gain[best]
        keep = (gain > 0) & (pairs[0] != pairs[1])
        pairs, gain = pairs[:, keep], gain[keep]
        # A node is in one swap: that of most gain, ties at random.
        priority = np.lexsort((rng.random(gain.size), gain)).argsort()
        highest = np.full(self.position.size, -1)
        np.maximum.at(highest, pairs.ravel(), np.tile(priority, 2))
        return self._apply(pairs[:, (highest[pairs] == priority).all(axis=0)])

    def _apply(self, pairs: np.ndarray) -> bool:
        position = self.position.copy()
        position[pairs] = position[pairs[::-1]]
        now = lost(self.adjacency, self.row, position, self.block_size)
        if now >= self.lost:
            return False
        self.position, self.lost = position, now
        return True


# Orderings by name.


def rcmk(graph: Graph) -> np.ndarray:
    """Return the Reverse Cuthill-McKee order of the symmetrised adjacency.

    Args:
        graph: Any graph.

    Returns:
        int32 [N]: the node that comes k-th.

    Reference:
        Cuthill and McKee 1969.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [3, 3, 1])
    >>> graph.subgraph(rcmk(graph)).bandwidth
    1
    """
    return reverse_cuthill_mckee(links(graph))


def bisection(graph: Graph, block_size: int) -> np.ndarray:
    """Return the order of the nodes by recursive bisection, for edges with |i - j| < S.

    The graph is cut into halves with few edges between them, these into halves and so
    on down to S nodes, each half next to the nodes with which it shares most edges.
    Swaps of nodes then bring further edges into the band. Where Reverse Cuthill-McKee
    or the given order covers more edges than the halves, the swaps start from that
    order instead, so no fewer edges are covered than by either. O(E log E) time per
    halving.

    Args:
        graph: Any graph.
        block_size: S of the banded plan.

    Returns:
        int32 [N]: the node that comes k-th.

    Reference:
        Recursive spectral bisection: Simon 1991. Exchanges between halves: Kernighan
        and Lin 1970.

    Example:
    >>> ring = np.arange(1000)
    >>> graph = Graph(1000, ring, (37 * ring + 5) % 1000)
    >>> ordered = graph.subgraph(bisection(graph, 64))
    >>> bool(np.mean(np.abs(ordered.senders - ordered.receivers) < 64) > 0.8)
    True
    """
    adjacency = links(graph)
    row = rows_of(adjacency)

    def outside(order: np.ndarray) -> float:
        return lost(adjacency, row, positions(order), block_size)

    order = min(reverse_cuthill_mckee(adjacency), natural(graph), key=outside)
    if not outside(order):
        return order
    order = min(order, split(adjacency, order, block_size), key=outside)
    return swap_into_band(adjacency, order, block_size).astype(np.int32)


def natural(graph: Graph) -> np.ndarray:
    """Return the nodes in their present order."""
    return np.arange(graph.num_nodes, dtype=np.int32)


_BY_NAME = {
    "rcmk": lambda graph, block_size: rcmk(graph),
    "natural": lambda graph, block_size: natural(graph),
    "breadth_first": lambda graph, block_size: breadth_first(graph),
    "bisection": bisection,
    "metis": metis,
}
ORDERINGS = tuple(_BY_NAME)
"""Names of the library's orderings."""


def checked_ordering(ordering: str | Callable | Mapping) -> str | Callable:
    """Return an ordering: a name, a function, or the one that an entry describes.

    Raises:
        ValueError: For other values, and for entries whose name is not registered.
    """
    if isinstance(ordering, Mapping):
        return registered_callable(ordering, "`ordering` to be an ordering")
    if isinstance(ordering, str) and ordering in ORDERINGS:
        return ordering
    if callable(ordering) and not isinstance(ordering, type):
        return ordering
    refuse(
        "ordering",
        f"one of {', '.join(map(repr, ORDERINGS))}, or a function of a graph and S "
        "that returns the nodes in their new order",
        ordering,
    )


def node_order(graph: Graph, ordering: str | Callable, block_size: int) -> np.ndarray:
    """Return the order of the nodes that an ordering gives a graph.

    Args:
        graph: Any graph.
        ordering: One of `ORDERINGS`, or a function of the graph and S that returns
            int [N].
        block_size: S of the banded plan.

    Returns:
        int32 [N]: the node that comes k-th, as `graph.subgraph` takes it.

    Raises:
        ValueError: For an unknown name, and for a function that does not return every
            node once.
        ImportError: For `"metis"` without `pymetis`.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [3, 3, 1], candidates=[1])
    >>> node_order(graph, "breadth_first", 64).tolist()
    [1, 2, 3, 0]
    """
    checked_ordering(ordering)
    if isinstance(ordering, str):
        return _BY_NAME[ordering](graph, block_size)
    order = np.asarray(ordering(graph, block_size))
    nodes = np.arange(graph.num_nodes)
    if order.shape != nodes.shape or not np.array_equal(np.sort(order), nodes):
        raise ValueError(
            f"Expected `ordering` to return each of {graph.num_nodes} nodes once. "
            f"Received: {order!r}. Return a permutation, such as "
            "np.argsort(key, kind='stable')."
        )
    return order.astype(np.int32)
