"""From the nodes that a model saw to those of the graphs that were given."""

from collections.abc import Iterator

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import applied_layers
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader


def caller_rows(given, loader: GraphLoader) -> Iterator[tuple[np.ndarray, int]]:
    """Yield where the nodes of each graph are in the caller's order.

    Args:
        given: The graphs as a task got them. Nodes of graphs that were compiled before
            (a loader, a compiled store) are counted as before that.
        loader: What the task made of them.

    Yields:
        For each graph int [n], the row of each of its nodes, and the number of rows.
        Rows that do not occur are of nodes that the preprocessor leaves out.
    """
    given = [given] if isinstance(given, Graph) else given
    compiled = isinstance(given, GraphLoader)
    compiled = compiled or bool(applied_layers(given))
    index = 0
    for part in loader.parts:
        for low, high in zip(part.node_ptr[:-1], part.node_ptr[1:], strict=True):
            origin = np.arange(high - low, dtype=np.int32)
            if part.origin is not None:
                origin = part.origin[low:high]
            if compiled or not isinstance(given[index], Graph):
                places = np.empty(origin.size, np.int64)
                places[np.argsort(origin)] = np.arange(origin.size)
                yield places, origin.size
            else:
                graph = given[index]
                own = np.arange(graph.num_nodes)
                own = own if graph.origin is None else graph.origin
                order = np.argsort(own)
                places = order[np.searchsorted(own, origin, sorter=order)]
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
