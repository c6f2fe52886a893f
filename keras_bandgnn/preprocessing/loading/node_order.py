"""From the nodes and edges of a model's batches back to the caller's order."""

from collections.abc import Iterator

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import applied_layers
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader


def caller_rows(
    graphs, loader: GraphLoader, level: str = "node"
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield where the nodes, or the edges, of each graph are in the caller's order.

    Args:
        graphs: The graphs as passed to a task. Nodes of compiled graphs (a loader, a
            compiled store) are counted as before compilation, and their edges as a
            `FlatGraphs` had them then, sorted by receiver.
        loader: The task's loader of these graphs.
        level: "node" or "edge".

    Yields:
        For each graph int [n], the row of each of its nodes (or edges), and the number
        of rows. Rows that do not occur are of those that the preprocessor leaves out.

    Raises:
        ValueError: For edges that are not the caller's.
    """
    graphs = [graphs] if isinstance(graphs, Graph) else graphs
    compiled = isinstance(graphs, GraphLoader)
    compiled = compiled or bool(applied_layers(graphs))
    nodes = _node_rows(graphs, loader, compiled)
    return nodes if level == "node" else _edge_rows(graphs, loader, compiled, nodes)


def _node_rows(graphs, loader: GraphLoader, compiled: bool) -> Iterator:
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


def _edge_rows(graphs, loader: GraphLoader, compiled: bool, nodes) -> Iterator:
    index = 0
    for part in loader.parts:
        for low, high in zip(part.edge_ptr[:-1], part.edge_ptr[1:], strict=True):
            # Ends of the edges as the caller numbers the nodes.
            row, _ = next(nodes)
            ends = row[part.receivers[low:high]], row[part.senders[low:high]]
            if compiled or not isinstance(graphs[index], Graph):
                # Layers and sorting keep the order of the edges of a receiver.
                places = np.empty(high - low, np.int64)
                places[np.argsort(ends[0], kind="stable")] = np.arange(high - low)
                yield places, int(high - low)
            else:
                graph = graphs[index]
                yield _matches(*ends, graph, index), graph.num_edges
            index += 1


def _matches(receivers, senders, graph: Graph, index: int) -> np.ndarray:
    """Return the edge of a graph that each compiled edge is, int [E].

    Edges between the same two nodes are in the same order in both.

    Args:
        receivers: int [E], ends of the compiled edges, nodes of the graph.
        senders: int [E].
        graph: The caller's graph.
        index: Its position, for the error.
    """
    keys, own = (
        np.asarray(a, np.int64) * graph.num_nodes + b
        for a, b in ((receivers, senders), (graph.receivers, graph.senders))
    )
    order, own_order = (np.argsort(k, kind="stable") for k in (keys, own))
    keys, own = keys[order], own[own_order]
    # The k-th edge between two nodes is the k-th there.
    again = np.arange(len(keys)) - np.searchsorted(keys, keys)
    found = np.searchsorted(own, keys) + again
    if (found >= len(own)).any() or (own[found] != keys).any():
        raise ValueError(
            "Expected a preprocessor that keeps the edges of the graphs, to predict "
            f"for them. Received: edges that graph {index} does not have. Leave out "
            "layers that replace the edges, such as RadiusGraph or AttentionEdges."
        )
    places = np.empty(len(keys), np.int64)
    places[order] = own_order[found]
    return places


def scatter_to_caller_order(
    rows: np.ndarray, places: np.ndarray, count: int
) -> np.ndarray:
    """Return rows of nodes or edges in the caller's order; NaN for those left out.

    Args:
        rows: float [n, ...].
        places: int [n], see `caller_rows`.
        count: Number of rows to return.
    """
    out = np.full((count, *rows.shape[1:]), np.nan, rows.dtype)
    out[places] = rows
    return out
