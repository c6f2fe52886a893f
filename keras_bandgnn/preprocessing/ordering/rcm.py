"""Reverse Cuthill-McKee, on the symmetrised adjacency that orderings use."""

import numpy as np

from keras_bandgnn.graph import Graph


def links(graph: Graph):
    """Return the symmetric adjacency without loops; entries count parallel edges.

    Returns:
        A `scipy.sparse.csr_array` float64 [N, N] with sorted indices.
    """
    from scipy.sparse import csr_array

    # Loops are on the diagonal anyway and would only distort the degrees.
    real = graph.senders != graph.receivers
    senders, receivers = graph.senders[real], graph.receivers[real]
    row = np.concatenate([senders, receivers])
    column = np.concatenate([receivers, senders])
    size = (graph.num_nodes, graph.num_nodes)
    adjacency = csr_array((np.ones(row.shape[0]), (row, column)), shape=size)
    adjacency.sort_indices()
    return adjacency


def rows_of(adjacency) -> np.ndarray:
    """Return the row of each entry of a CSR array, int64."""
    return np.repeat(np.arange(adjacency.shape[0]), np.diff(adjacency.indptr))


def reverse_cuthill_mckee(adjacency) -> np.ndarray:
    """Return the Reverse Cuthill-McKee order of a symmetric CSR array, int32 [N]."""
    from scipy.sparse import csgraph

    return csgraph.reverse_cuthill_mckee(adjacency, symmetric_mode=True)


def positions(order: np.ndarray) -> np.ndarray:
    """Return the position of each node in an order, int64 [N]."""
    position = np.empty(order.size, np.int64)
    position[order] = np.arange(order.size)
    return position


def lost(adjacency, row: np.ndarray, position: np.ndarray, block_size: int) -> float:
    """Return the weight outside the band, |i - j| >= S; each pair counts twice."""
    far = np.abs(position[row] - position[adjacency.indices]) >= block_size
    return float(adjacency.data @ far)
