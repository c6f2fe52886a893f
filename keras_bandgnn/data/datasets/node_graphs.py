"""One large graph with labelled nodes: Planetoid, Amazon, Coauthor."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from keras_bandgnn.data.datasets.parts import undirected
from keras_bandgnn.data.datasets.pickle_arrays import read_pickle
from keras_bandgnn.data.datasets.tables import read_matrix
from keras_bandgnn.data.flat import FlatGraphs

_MASKS = {
    "train_mask": "train_mask",
    "val_mask": "valid_mask",
    "test_mask": "test_mask",
}
_VALIDATION_NODES = 500


def read_npz(files: Mapping[str, Path], *, split: str | None, progress: bool):
    """Reads a graph from plain arrays, in one of two layouts.

    The first has `edge_index` [2, E], `y` [N], features as CSR (`x_indptr`,
    `x_indices`, `x_data` unless all are 1, `x_shape`) and perhaps masks. The second,
    that of gnn-benchmark, has `adj_*`, `attr_*` and `labels`, and no masks; its
    members of Python objects (names) are not touched.

    Args:
        files: `{"npz": path}`.
        split: Not used; the splits are of nodes.
        progress: Not used.

    Returns:
        `FlatGraphs` with one graph: edges both ways, no loops; node features
        `feature` float32 [N, F] and masks int32 [N]; label int32 [N].

    Raises:
        ValueError: If arrays are missing.
    """
    path = files["npz"]
    with np.load(path, allow_pickle=False) as arrays:
        names = set(arrays.files)
        if {"edge_index", "y", "x_indptr", "x_indices", "x_shape"} <= names:
            return _compact(arrays)
        if {"adj_indices", "adj_indptr", "attr_indices", "labels"} <= names:
            return _gnn_benchmark(arrays)
    raise ValueError(
        f"Expected {path} to hold edge_index, y and x_*, or adj_*, attr_* and labels. "
        f"Received: {', '.join(sorted(names))}. Check that it is the right file."
    )


def _compact(arrays: Mapping[str, np.ndarray]) -> FlatGraphs:
    label = arrays["y"]
    indptr, indices = arrays["x_indptr"], arrays["x_indices"]
    data = arrays["x_data"] if "x_data" in arrays else np.ones(len(indices), np.int8)
    # Some files give the shape as [F, N]; the rows are nodes in all of them.
    columns = [int(size) for size in arrays["x_shape"] if size != len(label)]
    width = columns[0] if columns else len(label)
    feature = _dense(data, indices, indptr, (len(label), width))
    node = {ours: arrays[theirs] for theirs, ours in _MASKS.items() if theirs in arrays}
    if "x_known_mask" in arrays:
        node["known_mask"] = arrays["x_known_mask"]
    senders, receivers = arrays["edge_index"].astype(np.int64)
    return _one_graph(senders, receivers, feature, label, node)


def _gnn_benchmark(arrays: Mapping[str, np.ndarray]) -> FlatGraphs:
    label, indptr = arrays["labels"], arrays["adj_indptr"]
    rows = np.repeat(np.arange(len(label)), np.diff(indptr))
    feature = _dense(
        arrays["attr_data"],
        arrays["attr_indices"],
        arrays["attr_indptr"],
        tuple(arrays["attr_shape"]),
    )
    return _one_graph(rows, arrays["adj_indices"], feature, label, {})


def read_planetoid(files: Mapping[str, Path], *, split: str | None, progress: bool):
    """Reads the eight original files `ind.<name>.*`; no pickle is run.

    The test nodes are put in the order of the graph. Nodes that the files leave out
    (15 in CiteSeer) have no features and the label -1. Training nodes are those of
    `x`, validation nodes the next 500, test nodes those of `test.index`.

    Args:
        files: Paths by role: `x`, `tx`, `allx`, `y`, `ty`, `ally`, `graph`, `test`.
        split: Not used; the splits are of nodes.
        progress: Not used.

    Returns:
        As `read_npz`.

    Raises:
        ValueError: If a file holds anything but arrays and lists.
    """
    part = {role: read_pickle(path) for role, path in files.items() if role != "test"}
    test = read_matrix(files["test"], files["test"].name)[:, 0]
    known, count = part["allx"].shape[0], int(test.max()) + 1
    place = np.full(known + len(test), -1)
    place[:known] = np.arange(known)
    place[known:] = test
    stacked = sp.vstack([part["allx"], part["tx"]]).tocoo()
    feature = np.zeros((count, stacked.shape[1]), np.float32)
    feature[place[stacked.row], stacked.col] = stacked.data
    classes = np.concatenate([part["ally"], part["ty"]])
    label = np.full(count, -1)
    label[place] = np.where(classes.any(axis=1), classes.argmax(axis=1), -1)
    index, train = np.arange(count), len(part["y"])
    node = {
        "train_mask": index < train,
        "valid_mask": (index >= train) & (index < train + _VALIDATION_NODES),
        "test_mask": np.isin(index, test),
    }
    lists = part["graph"]
    senders = np.repeat(list(lists), [len(ends) for ends in lists.values()])
    receivers = np.array([end for ends in lists.values() for end in ends], np.int64)
    return _one_graph(senders, receivers, feature, label, node)


def _dense(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    matrix = sp.csr_matrix((data, indices.astype(np.int64), indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix.astype(np.float32).toarray()


def _one_graph(
    senders: np.ndarray,
    receivers: np.ndarray,
    feature: np.ndarray,
    label: np.ndarray,
    node: Mapping[str, np.ndarray],
) -> FlatGraphs:
    senders, receivers = undirected(senders, receivers, len(label))
    return FlatGraphs(
        num_nodes=[len(label)],
        num_edges=[len(senders)],
        senders=senders,
        receivers=receivers,
        node={"feature": feature, **node},
        label=label,
        label_level="node",
    )
