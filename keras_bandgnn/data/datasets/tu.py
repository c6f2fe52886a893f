"""Graph sets in the text format of TU Dortmund: MUTAG, PROTEINS, ENZYMES and others."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bandgnn.checks import one_of
from keras_bandgnn.data.datasets.tables import read_integers, read_matrix
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import refuse_file


def read(
    files: Mapping[str, Path],
    *,
    target: str | None = None,
) -> FlatGraphs:
    """Read `<name>_A.txt`, `<name>_graph_indicator.txt` and the optional files.

    Args:
        files: `{"edges": path, "indicator": path}`.
        target: `"labels"` (classes) or `"attributes"` (numbers to be predicted); by
            default labels where the set has them.

    Returns:
        Edges as listed (both directions in these files). If the files exist:
        `edge_type` from one column of edge labels, counted from the smallest;
        edge features `label` int32 [E, K] (several columns) and `feature` float32
        [E, F]; node features `type` int32 [N] or [N, K], counted from the smallest,
        and `feature` float32 [N, F]. Label: classes int32 [n], numbered in the order
        of the labels in the files, or float32 [n] or [n, T].

    Raises:
        ValueError: If files disagree in length, or an edge joins two graphs.
    """
    folder = files["edges"].parent
    name = files["edges"].name.removesuffix("_A.txt")

    def table(what: str) -> np.ndarray | None:
        path = folder / f"{name}_{what}.txt"
        read = read_integers if what.endswith("labels") else read_matrix
        return read(path) if path.exists() else None

    def rows(what: str, order: np.ndarray) -> np.ndarray | None:
        return _rows(table(what), order, f"{name}_{what}.txt", folder)

    graph, num_nodes = _graph_of_nodes(files["indicator"])
    order = np.argsort(graph, kind="stable")
    start = np.concatenate([[0], np.cumsum(num_nodes)])
    local = np.empty(len(graph), np.int64)
    local[order] = np.arange(len(graph)) - np.repeat(start[:-1], num_nodes)
    ends = _ends(files, graph)
    graph_of_edge = graph[ends[:, 0]]
    by_graph = np.argsort(graph_of_edge, kind="stable")
    ends = local[ends[by_graph]]
    edge_type, edge = _edge_features(
        rows("edge_labels", by_graph), rows("edge_attributes", by_graph)
    )
    return FlatGraphs(
        num_nodes=num_nodes,
        num_edges=np.bincount(graph_of_edge, minlength=len(num_nodes)),
        senders=ends[:, 0],
        receivers=ends[:, 1],
        edge_type=edge_type,
        node=_node_features(rows("node_labels", order), rows("node_attributes", order)),
        edge=edge,
        label=_label(table("graph_labels"), table("graph_attributes"), target, name),
    )


def _graph_of_nodes(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the graph of each node, int64 [N] from 0, and the nodes of each graph."""
    graph = read_integers(path, 1)[:, 0]
    ids, graph, num_nodes = np.unique(graph, return_inverse=True, return_counts=True)
    if ids[0] not in (0, 1) or ids[-1] - ids[0] + 1 != len(ids):
        received = f"{len(ids)} graphs, numbered from {ids[0]} to {ids[-1]}"
        refuse_file(path, "to number graphs from 1 without gaps", received)
    return graph, num_nodes


def _ends(files: Mapping[str, Path], graph: np.ndarray) -> np.ndarray:
    """Return the nodes that edges join, int64 [E, 2], from the graph of each node."""
    ends = read_integers(files["edges"], 2)
    if ends.size and not 1 <= ends.min() <= ends.max() <= len(graph):
        raise ValueError(
            f"Expected nodes from 1 to {len(graph)} in {files['edges']}, as many "
            f"as lines in {files['indicator'].name}. Received: {ends.min()} to "
            f"{ends.max()}. Download the data set again."
        )
    ends = ends - 1
    home = graph[ends]
    if (home[:, 0] != home[:, 1]).any():
        line = int(np.flatnonzero(home[:, 0] != home[:, 1])[0]) + 1
        raise ValueError(
            f"Expected both ends of an edge in one graph. Received: line {line} of "
            f"{files['edges']}. Download the data set again."
        )
    return ends


def _edge_features(
    labels: np.ndarray | None, attributes: np.ndarray | None
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Return the types of edges, from one column of labels, and their features."""
    edge_type, edge = None, {}
    if labels is not None:
        labels = _from_zero(labels)
        if labels.shape[1] == 1:
            edge_type = labels[:, 0]
        else:
            edge["label"] = labels
    if attributes is not None:
        edge["feature"] = attributes.astype(np.float64)
    return edge_type, edge


def _node_features(
    kinds: np.ndarray | None, attributes: np.ndarray | None
) -> dict[str, np.ndarray]:
    node = {}
    if kinds is not None:
        kinds = _from_zero(kinds)
        node["type"] = kinds[:, 0] if kinds.shape[1] == 1 else kinds
    if attributes is not None:
        node["feature"] = attributes.astype(np.float64)
    return node


def _rows(
    table: np.ndarray | None, order: np.ndarray, what: str, folder: Path
) -> np.ndarray | None:
    if table is None:
        return None
    if len(table) != len(order):
        raise ValueError(
            f"Expected {len(order)} lines in {what}. Received: {len(table)}. "
            f"Get the set in {folder} again."
        )
    return table[order]


def _from_zero(labels: np.ndarray) -> np.ndarray:
    return labels - labels.min(axis=0) if len(labels) else labels


def _label(
    labels: np.ndarray | None,
    attributes: np.ndarray | None,
    target: str | None,
    name: str,
) -> np.ndarray | None:
    targets = {"labels": labels, "attributes": attributes}
    have = tuple(key for key, value in targets.items() if value is not None)
    if target is not None:
        one_of(f"target (of {name})", target, have)
    if not have:
        return None
    if (target or have[0]) == "labels":
        return np.unique(labels[:, 0], return_inverse=True)[1]
    values = attributes.astype(np.float64)
    return values[:, 0] if values.shape[1] == 1 else values
