"""From the nodes of a model's batches back to the caller's order."""

from collections.abc import Iterator

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import applied_layers
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader


def caller_rows(graphs, loader: GraphLoader) -> Iterator[tuple[np.ndarray, int]]:
    """Yield where the nodes of each graph are in the caller's order.

    Args:
        graphs: The graphs as passed to a task. Nodes of compiled graphs (a loader, a
            compiled store) are counted as before compilation.
        loader: The task's loader of these graphs.

    Yields:
        For each graph int [n], the row of each of its nodes, and the number of rows.
        Rows that do not occur are of nodes that the preprocessor leaves out.
    """
    graphs = [graphs] if isinstance(graphs, Graph) else graphs
    compiled = isinstance(graphs, GraphLoader)
    compiled = compiled or bool(applied_layers(graphs))
    index = 0
    for part in loader.parts:
        for low, high in zip(part.node_ptr[:-1], part.node_ptr[1:], strict=True):
            origin = np.arange(high - low, dtype=np.int32)
            if part.origin is not None:
                origin = part.origin[low:high]
            if compiled or not isinstance(graphs[index], Graph):
                places = np.empty(origin.size, np.int64)
                places[np.argsort(origin)] = np.arange(origin.size)
                yield places, origin.size
            else:
                graph = graphs[index]
                ids = np.arange(graph.num_nodes)
                ids = ids if graph.origin is None else graph.origin
                order = np.argsort(ids)
                places = order[np.searchsorted(ids, origin, sorter=order)]
                yield places, graph.num_nodes
            index += 1


def scatter_to_caller_order(
    rows: np.ndarray, places: np.ndarray, count: int
) -> np.ndarray:
    """Return rows of nodes in the caller's order; NaN for nodes left out.

    Args:
        rows: float [n, ...].
        places: int [n], see `caller_rows`.
        count: Number of rows to return.
    """
    out = np.full((count, *rows.shape[1:]), np.nan, rows.dtype)
    out[places] = rows
    return out
