"""Order of nodes by clusters of METIS."""

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.orderings_links import (
    cuthill_mckee,
    links,
    positions,
    rows_of,
)
from keras_bandgnn.preprocessing.orderings_split import split


def metis(graph: Graph, block_size: int) -> np.ndarray:
    """Order of the nodes by clusters with few edges between them.

    METIS makes clusters of about `block_size` nodes. Clusters that share many edges
    come near each other; nodes of a cluster are in Reverse Cuthill-McKee order.

    Args:
        graph: Any graph.
        block_size: S of the banded plan.

    Returns:
        int32 [N]: the node that comes k-th.

    Raises:
        ImportError: Without `pymetis`.

    Reference:
        Karypis and Kumar 1998.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            "Expected pymetis for ordering='metis'. Received: it is not installed. "
            'Run pip install "keras-bandgnn[metis]", or use ordering="bisection".'
        ) from error
    from scipy.sparse import csr_array

    adjacency = links(graph)
    order = cuthill_mckee(adjacency)
    count = -(-graph.num_nodes // block_size)
    if count == 1:
        return order
    _, cluster = pymetis.part_graph(
        count,
        adjacency=pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices),
        eweights=adjacency.data.astype(int).tolist(),
        options=pymetis.Options(seed=0),
    )
    cluster = np.asarray(cluster)
    ends = cluster[rows_of(adjacency)], cluster[adjacency.indices]
    between = ends[0] != ends[1]
    shared = csr_array(
        (adjacency.data[between], (ends[0][between], ends[1][between])),
        shape=(count, count),
    )
    shared.sort_indices()
    place = positions(split(shared, np.arange(count), 1))
    return np.lexsort((positions(order), place[cluster])).astype(np.int32)
