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

    graph = read_integers(files["indicator"], 1)[:, 0]
    ids, graph, num_nodes = np.unique(graph, return_inverse=True, return_counts=True)
    if ids[0] not in (0, 1) or ids[-1] - ids[0] + 1 != len(ids):
        received = f"{len(ids)} graphs, numbered from {ids[0]} to {ids[-1]}"
        refuse_file(
            files["indicator"], "to number graphs from 1 without gaps", received
        )
    order = np.argsort(graph, kind="stable")
    start = np.concatenate([[0], np.cumsum(num_nodes)])
    local = np.empty(len(graph), np.int64)
    local[order] = np.arange(len(graph)) - np.repeat(start[:-1], num_nodes)
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
    by_graph = np.argsort(home[:, 0], kind="stable")
    ends = local[ends[by_graph]]
    edge_type, edge = None, {}
    labels = rows("edge_labels", by_graph)
    if labels is not None:
        labels = _from_zero(labels)
        if labels.shape[1] == 1:
            edge_type = labels[:, 0]
        else:
            edge["label"] = labels
    attributes = rows("edge_attributes", by_graph)
    if attributes is not None:
        edge["feature"] = attributes.astype(np.float64)
    node = {}
    kinds = rows("node_labels", order)
    if kinds is not None:
        kinds = _from_zero(kinds)
        node["type"] = kinds[:, 0] if kinds.shape[1] == 1 else kinds
    attributes = rows("node_attributes", order)
    if attributes is not None:
        node["feature"] = attributes.astype(np.float64)
    return FlatGraphs(
        num_nodes=num_nodes,
        num_edges=np.bincount(home[:, 0], minlength=len(ids)),
        senders=ends[:, 0],
        receivers=ends[:, 1],
        edge_type=edge_type,
        node=node,
        edge=edge,
        label=_label(table("graph_labels"), table("graph_attributes"), target, name),
    )


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
