"""Orders of the nodes of a graph: which edges lie near the diagonal."""

import numpy as np

from keras_bandgnn.checks import one_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.orderings_breadth_first import breadth_first
from keras_bandgnn.preprocessing.orderings_links import (
    cuthill_mckee,
    links,
    lost,
    positions,
    rows_of,
)
from keras_bandgnn.preprocessing.orderings_metis import metis
from keras_bandgnn.preprocessing.orderings_split import split
from keras_bandgnn.preprocessing.orderings_swaps import swap_into_band

ORDERINGS = ("rcmk", "natural", "breadth_first", "bisection", "metis")
"""Names of the orderings."""


def node_order(graph: Graph, ordering: str, block_size: int) -> np.ndarray:
    """Order of the nodes by the name of the ordering.

    Args:
        graph: Any graph.
        ordering: One of `ORDERINGS`.
        block_size: S of the banded plan, for `"bisection"` and `"metis"`.

    Returns:
        int32 [N]: the node that comes k-th, as `graph.subgraph` takes it.

    Raises:
        ValueError: For an unknown name.
        ImportError: For `"metis"` without `pymetis`.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [3, 3, 1], candidates=[1])
    >>> node_order(graph, "breadth_first", 64).tolist()
    [1, 2, 3, 0]
    """
    one_of("ordering", ordering, ORDERINGS)
    if ordering == "natural":
        return _given(graph)
    if ordering == "rcmk":
        return reverse_cuthill_mckee(graph)
    if ordering == "breadth_first":
        return breadth_first(graph)
    return (bisection if ordering == "bisection" else metis)(graph, block_size)


def reverse_cuthill_mckee(graph: Graph) -> np.ndarray:
    """Order of the nodes by Reverse Cuthill-McKee on the symmetrised adjacency.

    Args:
        graph: Any graph.

    Returns:
        int32 [N]: the node that comes k-th.

    Reference:
        Cuthill and McKee 1969.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [3, 3, 1])
    >>> graph.subgraph(reverse_cuthill_mckee(graph)).bandwidth
    1
    """
    return cuthill_mckee(links(graph))


def bisection(graph: Graph, block_size: int) -> np.ndarray:
    """Order of the nodes by recursive bisection, for edges with |i - j| < S.

    The graph is cut into halves with few edges between them, these into halves and so
    on down to S nodes, each half beside the nodes that it shares most edges with.
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

    order = min(cuthill_mckee(adjacency), _given(graph), key=outside)
    if not outside(order):
        return order
    order = min(order, split(adjacency, order, block_size), key=outside)
    return swap_into_band(adjacency, order, block_size).astype(np.int32)


def _given(graph: Graph) -> np.ndarray:
    return np.arange(graph.num_nodes, dtype=np.int32)
