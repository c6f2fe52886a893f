"""From the nodes and edges of a model's batches back to the caller's order."""

from collections.abc import Iterator

import numpy as np

from keras_bandgnn.arrays import INT32_MAX
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import applied_layers
from keras_bandgnn.preprocessing.loading.loader import Loader


def caller_rows(
    graphs, loader: Loader, level: str = "node"
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
        Of the edges of `AttentionEdges` only target edges have rows, and pairs have -1.

    Raises:
        ValueError: For edges that are not the caller's.
    """
    graphs = [graphs] if isinstance(graphs, Graph) else graphs
    compiled = isinstance(graphs, Loader)
    compiled = compiled or bool(applied_layers(graphs))
    nodes = _node_rows(graphs, loader, compiled)
    return nodes if level == "node" else _edge_rows(graphs, loader, compiled, nodes)


def _node_rows(graphs, loader: Loader, compiled: bool) -> Iterator:
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


def set_rows(loader: Loader, name: str) -> Iterator[tuple[np.ndarray, int]]:
    """Yield where the nodes of each graph are in the table of a node set.

    Args:
        loader: The task's loader of the graphs.
        name: The node set.

    Yields:
        For each graph int [n], the row of each of its nodes, -1 for those of other
        sets, and the number of rows.
    """
    for part in loader.parts:
        kind = [*part.sets].index(name)
        rows = np.where(part.node["set"] == kind, part.node["set_row"], -1)
        counts = np.diff(part.set_ptr[name])
        for low, high, count in zip(
            part.node_ptr[:-1], part.node_ptr[1:], counts, strict=True
        ):
            yield rows[low:high], int(count)


def _edge_rows(graphs, loader: Loader, compiled: bool, nodes) -> Iterator:
    index = 0
    for part in loader.parts:
        for low, high in zip(part.edge_ptr[:-1], part.edge_ptr[1:], strict=True):
            # Ends of the edges as the caller numbers the nodes.
            row, _ = next(nodes)
            edges, types = np.arange(low, high), None
            if "target" in part.edge:
                edges = edges[part.edge["target"][low:high] > 0]
                types = part.edge["target"][edges] - 1
            places = np.full(high - low, -1, np.int64)
            ends = row[part.receivers[edges]], row[part.senders[edges]]
            if compiled or not isinstance(graphs[index], Graph):
                # Layers and sorting keep the order of the edges of a receiver.
                order = edges[np.argsort(ends[0], kind="stable")] - low
                places[order] = np.arange(len(order))
                yield places, len(order)
            else:
                graph = graphs[index]
                places[edges - low] = _matches(*ends, types, graph, index)
                yield places, graph.num_edges
            index += 1


def _matches(receivers, senders, types, graph: Graph, index: int) -> np.ndarray:
    """Return the edge of a graph that each compiled edge is, int [E].

    Edges between the same two nodes are in the same order in both.

    Args:
        receivers: int [E], ends of the compiled edges, nodes of the graph.
        senders: int [E].
        types: int [E], types of target edges, which are all edges of their types and of
            later ones; None if the compiled edges are those of the graph.
        graph: The caller's graph.
        index: Its position, for the error.
    """
    rows = np.arange(graph.num_edges)
    if types is not None and len(types) < graph.num_edges:
        rows = np.flatnonzero(graph.edge_type >= types.min(initial=INT32_MAX))
    keys, graph_keys = (
        np.asarray(a, np.int64) * graph.num_nodes + b
        for a, b in (
            (receivers, senders),
            (graph.receivers[rows], graph.senders[rows]),
        )
    )
    order, own_order = (np.argsort(k, kind="stable") for k in (keys, graph_keys))
    keys, graph_keys = keys[order], graph_keys[own_order]
    # The k-th edge between two nodes is the k-th there.
    again = np.arange(len(keys)) - np.searchsorted(keys, keys)
    match = np.searchsorted(graph_keys, keys) + again
    if (match >= len(graph_keys)).any() or (graph_keys[match] != keys).any():
        raise ValueError(
            "Expected a preprocessor that keeps the edges of the graphs, to predict "
            f"for them. Received: edges that graph {index} does not have. Leave out "
            "layers that replace the edges, such as RadiusGraph; set `target_type` of "
            "graph transformers."
        )
    places = np.empty(len(keys), np.int64)
    places[order] = rows[own_order[match]]
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
    real = places >= 0
    out[places[real]] = rows[real]
    return out
