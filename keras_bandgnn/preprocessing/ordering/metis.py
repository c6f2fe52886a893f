"""Parts of a graph by METIS, and the order of nodes by such parts."""

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import
from keras_bandgnn.preprocessing.ordering.bisection import split
from keras_bandgnn.preprocessing.ordering.rcm import (
    links,
    positions,
    reverse_cuthill_mckee,
    rows_of,
)


def metis(graph: Graph, block_size: int) -> np.ndarray:
    """Return the order of the nodes by clusters with few edges between them.

    METIS makes clusters of about `block_size` nodes. Clusters that share many edges
    come near each other; nodes of a cluster are in Reverse Cuthill-McKee order. The
    arguments and the result are those of `bisection`.

    Raises:
        ImportError: Without `pymetis`.

    Reference:
        Karypis and Kumar 1998.
    """
    import_pymetis("ordering='metis'", 'use ordering="bisection"')
    adjacency = links(graph)
    order = reverse_cuthill_mckee(adjacency)
    count = -(-graph.num_nodes // block_size)
    if count == 1:
        return order
    cluster = parts(adjacency, count)
    place = line_up(adjacency, cluster, count)
    return np.lexsort((positions(order), place[cluster])).astype(np.int32)


def import_pymetis(purpose: str, instead: str = ""):
    """Return the module `pymetis`, or raise an error that names the extra."""
    return optional_import("pymetis", "keras-bandgnn[metis]", purpose, instead)


def parts(adjacency, count: int, seed: int = 0) -> np.ndarray:
    """Return the part of each node, int [N]: of equal size, with few links between.

    Args:
        adjacency: Symmetric CSR array [N, N] that counts edges, without a diagonal.
        count: Number of parts, at most N. METIS may leave some of them empty.
        seed: Of the random choices of METIS.
    """
    if count == 1:
        return np.zeros(adjacency.shape[0], np.int64)
    pymetis = import_pymetis("parts by METIS")
    _, part = pymetis.part_graph(
        count,
        adjacency=pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices),
        eweights=adjacency.data.astype(int).tolist(),
        options=pymetis.Options(seed=seed),
    )
    return np.asarray(part)


def line_up(adjacency, part: np.ndarray, count: int) -> np.ndarray:
    """Return each part's place on a line, int64 [count], linked parts close by.

    Args:
        adjacency: Symmetric CSR array [N, N] of weights.
        part: int [N], below `count`.
        count: Number of parts.
    """
    from scipy.sparse import csr_array

    ends = part[rows_of(adjacency)], part[adjacency.indices]
    between = ends[0] != ends[1]
    shared = csr_array(
        (adjacency.data[between], (ends[0][between], ends[1][between])),
        shape=(count, count),
    )
    shared.sort_indices()
    return positions(split(shared, np.arange(count), 1))
