"""Order of nodes by their distance to the nodes that are read."""

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.ordering.rcm import links, reverse_cuthill_mckee


def breadth_first(graph: Graph) -> np.ndarray:
    """Return the nodes ordered by their distance to a read node.

    Read nodes are the candidates and the slot. They come first (those with few
    neighbours before others), then the senders of their messages, then the senders
    of messages to these, and so on: what is read after t steps depends on the nodes
    of the first t + 1 levels only. Nodes of a level are sorted as by Cuthill and
    McKee, by the position of their first neighbour in the level before, then by
    their number of neighbours. Nodes that reach no read node come last, in Reverse
    Cuthill-McKee order.

    A graph without read nodes starts at a pseudo-peripheral node of its largest
    component, and edges count in both directions.

    Args:
        graph: Any graph.

    Returns:
        int32 [N]: the node that comes k-th.

    Reference:
        Cuthill and McKee 1969; pseudo-peripheral nodes: George and Liu 1979.

    Example:
    >>> graph = Graph(5, [0, 1, 2, 3], [1, 2, 3, 4], candidates=[3])
    >>> breadth_first(graph).tolist()
    [3, 2, 1, 0, 4]
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    adjacency = links(graph)
    degree = np.diff(adjacency.indptr)
    by_degree = np.argsort(degree, kind="stable")
    rank = np.empty_like(by_degree)
    rank[by_degree] = np.arange(graph.num_nodes)
    size = graph.num_nodes
    read = [] if graph.candidates is None else list(graph.candidates)
    read += [] if graph.slot is None else [graph.slot]
    row, column = graph.receivers, graph.senders
    if not read:
        read = [_pseudo_peripheral(adjacency, degree)]
        row, column = np.concatenate([[row, column], [column, row]], axis=1)
    # The search takes the neighbours of a node in the order of its row, so ids by
    # degree break the ties. It starts at an additional node before the read ones.
    row = np.append(rank[row], np.full(len(read), size))
    column = np.append(rank[column], rank[read])
    messages = csr_array((np.ones(row.size), (row, column)), shape=(size + 1, size + 1))
    messages.sort_indices()
    visited = breadth_first_order(messages, size, return_predecessors=False)
    order = by_degree[visited[1:]]
    if order.size < size:
        missing = np.ones(size, bool)
        missing[order] = False
        fallback = reverse_cuthill_mckee(adjacency)
        order = np.append(order, fallback[missing[fallback]])
    return order.astype(np.int32)


def _pseudo_peripheral(adjacency, degree: np.ndarray) -> int:
    """Return a pseudo-peripheral node of the largest component."""
    from scipy.sparse.csgraph import connected_components, dijkstra

    _, component = connected_components(adjacency, directed=False)
    largest = np.flatnonzero(component == np.bincount(component).argmax())
    node, height = largest[degree[largest].argmin()], -1
    while True:
        distance = dijkstra(adjacency, indices=node, unweighted=True)[largest]
        if distance.max() <= height:
            return int(node)
        height = distance.max()
        farthest = largest[distance == height]
        node = farthest[degree[farthest].argmin()]
