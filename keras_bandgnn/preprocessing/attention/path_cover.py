"""One path through all nodes that follows as many edges as a greedy search finds."""

import numpy as np

from keras_bandgnn.assembly.canonical_order import canonical_rank
from keras_bandgnn.checks import instance
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.attention.adjacency import distinct

# Degrees above this count as equal; two of them and an edge's number fit into 63 bits.
_DEGREE_BITS = 15


def canonical_path(graph: Graph) -> np.ndarray:
    """Return `path_order` of a graph, however its nodes are numbered.

    It depends on the numbers only between nodes that `canonical_rank` cannot tell
    apart, which are symmetric in nearly all graphs.

    Args:
        graph: Any graph.

    Returns:
        int32 [N]: the node that comes k-th.

    Example:
    >>> canonical_path(Graph(3, [1, 1], [0, 2], node={"kind": [4, 5, 6]})).tolist()[1]
    1
    """
    instance("graph", graph, Graph, "a Graph")
    rank = canonical_rank(graph)
    order = path_order(rank[graph.senders], rank[graph.receivers], graph.num_nodes)
    return np.argsort(rank)[order].astype(np.int32)


def path_order(senders, receivers, num_nodes: int) -> np.ndarray:
    """Return an order of all nodes along a path that uses many edges.

    Directions, duplicates and self-loops do not matter. Paths grow from single nodes:
    in each round an edge joins the ends of two paths if it is the best edge of both,
    the one between the ends that have the fewest edges left. Paths that no edge joins
    are set one after another. The result depends on the edges and on how the nodes are
    numbered, not on the order of the edges; see `canonical_path`.

    Args:
        senders: int [E], the node that each edge starts from.
        receivers: int [E], the node that each edge ends at.
        num_nodes: Number of nodes N.

    Returns:
        int32 [N]: the node that comes k-th.

    Example:
    >>> path_order([3, 1, 0], [1, 0, 2], 4).tolist()
    [2, 0, 1, 3]
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    link, other = _cover(np.asarray(senders), np.asarray(receivers), num_nodes)
    ends = np.flatnonzero(other >= 0)
    first = ends[ends <= other[ends]]
    last = other[first]
    row = np.concatenate([link[0], last[:-1]])
    column = np.concatenate([link[1], first[1:]])
    shape = (num_nodes, num_nodes)
    joined = csr_array((np.ones(row.size), (row, column)), shape=shape)
    joined = (joined + joined.T).tocsr()
    order = breadth_first_order(joined, first[0], return_predecessors=False)
    return order.astype(np.int32)


def _cover(senders, receivers, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cover's links, int [2, L], and each end's other end (-1 inside)."""
    low, high = np.minimum(senders, receivers), np.maximum(senders, receivers)
    keys = distinct(low.astype(np.int64) * num_nodes + high)
    low, high = np.divmod(keys, num_nodes)
    low, high = low[low < high], high[low < high]
    lot = _lots(low.size)
    other = np.arange(num_nodes)
    best = np.empty(num_nodes, np.int64)
    links = []
    while low.size:
        degree = np.bincount(low, minlength=num_nodes)
        degree += np.bincount(high, minlength=num_nodes)
        # Edges to spare count: an end that has one link already needs only one more.
        degree += other != np.arange(num_nodes)
        np.minimum(degree, (1 << _DEGREE_BITS) - 1, out=degree)
        one, two = degree[low], degree[high]
        rank = np.minimum(one, two) << _DEGREE_BITS | np.maximum(one, two)
        rank = rank << (63 - 2 * _DEGREE_BITS) | lot
        # A path is named by its smaller end.
        one, two = np.minimum(low, other[low]), np.minimum(high, other[high])
        best.fill(np.iinfo(np.int64).max)
        np.minimum.at(best, one, rank)
        np.minimum.at(best, two, rank)
        taken = (best[one] == rank) & (best[two] == rank)
        a, b = low[taken], high[taken]
        links.append([a, b])
        # Each path takes one link, so no two of them change the same end.
        far_a, far_b = other[a], other[b]
        other[a[far_a != a]] = -1
        other[b[far_b != b]] = -1
        other[far_a], other[far_b] = far_b, far_a
        keep = (other[low] >= 0) & (other[high] >= 0) & (other[low] != high)
        low, high, lot = low[keep], high[keep], lot[keep]
    return np.concatenate([np.zeros((2, 0), np.int64), *links], axis=1), other


def _lots(count: int) -> np.ndarray:
    """Return a fixed shuffle of 0, ..., count - 1: chains of ties would be slow."""
    number = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    lot = np.empty(count, np.int64)
    lot[np.argsort(number ^ (number >> np.uint64(32)), kind="stable")] = np.arange(
        count
    )
    return lot
