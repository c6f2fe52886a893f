"""One large graph with labelled nodes: citations, articles, heterophilous graphs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from keras_bandgnn.data.datasets.parts import dense_rows, undirected
from keras_bandgnn.data.datasets.pickle_arrays import read_pickle
from keras_bandgnn.data.datasets.tables import read_matrix
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import Arrays, open_npz, read_json, refuse_file, size_of

_MASKS = {
    "train_mask": "train_mask",
    "val_mask": "valid_mask",
    "test_mask": "test_mask",
}
_VALIDATION_NODES = 500


def read_gnn_benchmark(files: Mapping[str, Path]):
    """Read the arrays of gnn-benchmark: `adj_*`, `attr_*` and `labels`, without masks.

    Members with Python objects (names) are not read.

    Args:
        files: `{"npz": path}`.

    Returns:
        `FlatGraphs` with one graph: edges both ways, no loops; node feature `feature`
        float32 [N, F]; label int32 [N].

    Raises:
        ValueError: If arrays are missing or disagree in their number of nodes.
    """
    with open_npz(files["npz"]) as arrays:
        label = _classes(arrays, "labels")
        ends = arrays.take("adj_indices", "integers", (None,)).astype(np.int64)
        counts = _row_counts(arrays, "adj", len(ends), len(label))
        shape = arrays.take("attr_shape", "integers", (2,))
        if shape[0] != len(label):
            expected = f"of {len(label)} rows, as labels"
            arrays.refuse("attr_shape", expected, shape.tolist())
        columns = arrays.take("attr_indices", "integers", (None,))
        data = arrays.take("attr_data", "numbers", (len(columns),))
        sizes = _row_counts(arrays, "attr", len(columns), len(label))
    path = files["npz"]
    feature = dense_rows(path, "attr", data, columns, sizes, int(shape[1]))
    rows = np.repeat(np.arange(len(label)), counts)
    return _one_graph(path, rows, ends, feature, label, {})


def _row_counts(arrays: Arrays, name: str, values: int, rows: int) -> np.ndarray:
    """Read the pointers of a sparse matrix with a row per node."""
    counts = arrays.counts(f"{name}_indptr", values, f"{name}_indices")
    if len(counts) != rows:
        received = f"{len(counts)} rows"
        arrays.refuse(f"{name}_indptr", f"of {rows} rows, as labels", received)
    return counts


def _classes(arrays: Arrays, name: str) -> np.ndarray:
    """Read the class of each node, or -1; there are at most as many as nodes."""
    label = arrays.take(name, "integers", (None,))
    count = len(label)
    if not label.size or label.min() < -1 or label.max() >= count:
        received = f"{label.min(initial=0)} to {label.max(initial=0)} of {len(label)}"
        arrays.refuse(name, f"of classes in [-1, {count})", received)
    return label


def read_heterophilous(files: Mapping[str, Path]):
    """Read the arrays of Platonov et al. 2023, with their ten splits.

    They are `node_features` [N, F], `node_labels` [N], `edges` [E, 2], each undirected
    edge once, and `train_masks`, `val_masks` and `test_masks` [S, N].

    Args:
        files: `{"npz": path}`.

    Returns:
        As `read_gnn_benchmark`, with masks int32 [N, S]: column s is split s.

    Raises:
        ValueError: If arrays are missing or disagree in their number of nodes.
    """
    with open_npz(files["npz"]) as arrays:
        label = _classes(arrays, "node_labels")
        feature = arrays.take("node_features", "numbers", (len(label), None))
        ends = arrays.take("edges", "integers", (None, 2)).astype(np.int64)
        node, count = {}, None
        for theirs, ours in _MASKS.items():
            name = f"{theirs}s"
            masks = arrays.take(name, "integers", (count, len(label)))
            if masks.size and not 0 <= masks.min() <= masks.max() <= 1:
                arrays.refuse(name, "of 0 and 1", f"up to {masks.max()}")
            node[ours], count = masks.T.astype(np.int32), len(masks)
    return _one_graph(files["npz"], *ends.T, feature, label, node)


def read_wiki_cs(files: Mapping[str, Path]):
    """Read the JSON file of WikiCS, with its twenty splits.

    Args:
        files: `{"json": path}`.

    Returns:
        As `read_gnn_benchmark`, with `train_mask`, `valid_mask` and `stopping_mask`
        int32 [N, 20] and `test_mask` int32 [N]. The authors stop training early on
        `stopping_mask` and choose settings on `valid_mask`.

    Raises:
        ValueError: If fields are missing or disagree in their number of nodes.
    """
    path = files["json"]
    data = read_json(path, dict)
    label = _field(path, data, "labels", "biu", 1)
    if not label.size or label.min() < 0 or label.max() >= len(label):
        received = f"{label.min(initial=0)} to {label.max(initial=0)} of {len(label)}"
        refuse_file(path, f"to have labels in [0, {len(label)})", received)
    node = {}
    for name in ("train_masks", "val_masks", "stopping_masks", "test_mask"):
        masks = _field(path, data, name, "biu", 1 if name == "test_mask" else 2)
        if masks.shape[-1] != len(label) or not np.isin(masks, (0, 1)).all():
            expected = f"to have {name} of 0 and 1 for each of {len(label)} nodes"
            refuse_file(path, expected, f"shape {masks.shape}")
        ours = name.removesuffix("s").replace("val_", "valid_")
        node[ours] = masks.T.astype(np.int32)
    if len({mask.shape for mask in node.values() if mask.ndim == 2}) > 1:
        received = {name: mask.shape for name, mask in node.items()}
        refuse_file(path, "to have as many masks of each kind", received)
    feature = _field(path, data, "features", "biuf", 2)
    if len(feature) != len(label):
        expected = f"to have features of {len(label)} nodes, as labels"
        refuse_file(path, expected, len(feature))
    links = data.get("links")
    if not isinstance(links, list) or len(links) != len(label):
        refuse_file(path, f"to have links, a list of {len(label)} lists", links)
    ends = _neighbours(path, dict(enumerate(links)))
    return _one_graph(path, *ends, feature, label, node)


def _field(path: Path, data: dict, name: str, kinds: str, axes: int) -> np.ndarray:
    """Return a field of a JSON object as an array of numbers."""
    try:
        array = np.asarray(data.get(name, ()))
    except (ValueError, OverflowError) as error:  # rows of differing lengths
        refuse_file(path, f"to have {name!r}, a table", str(error), cause=error)
    if array.ndim != axes or array.dtype.kind not in kinds or not array.size:
        received = f"shape {array.shape} of type {array.dtype}"
        refuse_file(path, f"to have {name!r}, numbers along {axes} axes", received)
    return array


def read_planetoid(files: Mapping[str, Path]):
    """Read the eight original files `ind.<name>.*` without loading pickles.

    Test nodes are sorted into the order of the graph. Nodes that the files omit (15 in
    CiteSeer) have no features and the label -1. Training nodes are those of `x`,
    validation nodes the next 500, test nodes those of `test.index`.

    Args:
        files: Paths by role: `x`, `tx`, `allx`, `y`, `ty`, `ally`, `graph`, `test`.

    Returns:
        As `read_gnn_benchmark`.

    Raises:
        ValueError: If a file holds anything but arrays and lists.
    """
    part = {role: read_pickle(path) for role, path in files.items() if role != "test"}
    rows = {}
    for name in ("x", "tx", "allx"):
        rows[name] = _planetoid_rows(files[name], name, part[name])
        label = name.replace("x", "y")
        _check_classes(files[label], part[label], len(rows[name]))
    test = read_matrix(files["test"])
    first_test, count = len(rows["allx"]), int(test.max()) + 1
    listed = first_test + len(rows["tx"])
    if (
        test.dtype.kind != "i"
        or test.shape != (len(rows["tx"]), 1)
        or test.min() < first_test
        or len(np.unique(test)) < len(test)
        or count > 2 * listed  # a few nodes are left out
    ):
        expected = (
            f"to have {len(rows['tx'])} distinct ids of nodes from {first_test} on"
        )
        received = f"{len(test)}, from {test.min()} to {test.max()}"
        refuse_file(files["test"], f"{expected}, below {2 * listed}", received)
    for name in ("x", "tx"):
        if rows[name].shape[1] != rows["allx"].shape[1]:
            expected = f"to have {rows['allx'].shape[1]} features, as allx"
            refuse_file(files[name], expected, f"{rows[name].shape[1]}")
    if len(rows["x"]) > first_test or part["ally"].shape[1] != part["ty"].shape[1]:
        refuse_file(
            files["ty"], "to have the classes of ally, and x rows of allx", "others"
        )
    place = np.concatenate([np.arange(first_test), test[:, 0]])
    feature = np.zeros((count, rows["allx"].shape[1]), np.float32)
    feature[place] = np.concatenate([rows["allx"], rows["tx"]])
    classes = np.concatenate([part["ally"], part["ty"]])
    label = np.full(count, -1)
    label[place] = np.where(classes.any(axis=1), classes.argmax(axis=1), -1)
    index, train = np.arange(count), len(part["y"])
    node = {
        "train_mask": index < train,
        "valid_mask": (index >= train) & (index < train + _VALIDATION_NODES),
        "test_mask": np.isin(index, test),
    }
    ends = _neighbours(files["graph"], part["graph"])
    return _one_graph(files["graph"], *ends, feature, label, node)


def _planetoid_rows(path: Path, name: str, matrix: Any) -> np.ndarray:
    """Return the features of a sparse matrix, a row per node."""
    if not sp.issparse(matrix):
        refuse_file(path, "to hold a sparse matrix", type(matrix).__name__)
    counts = np.diff(matrix.indptr)
    return dense_rows(path, name, matrix.data, matrix.indices, counts, matrix.shape[1])


def _check_classes(path: Path, classes: Any, count: int) -> None:
    """Refuse what is no array of `count` rows, each with at most one 1."""
    if not isinstance(classes, np.ndarray) or classes.ndim != 2:
        refuse_file(path, "to hold an array of a row per node", type(classes).__name__)
    if len(classes) != count or not classes.shape[1]:
        received = f"shape {classes.shape}"
        refuse_file(path, f"to have a class for each of {count} rows", received)
    if not np.isin(classes, (0, 1)).all() or (classes.sum(axis=1) > 1).any():
        refuse_file(path, "to have rows of 0 with at most one 1", "others")


def _neighbours(path: Path, lists: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return senders and receivers from a dictionary of neighbours."""
    if not isinstance(lists, dict) or not all(
        type(node) is int and isinstance(ends, list) for node, ends in lists.items()
    ):
        refuse_file(
            path, "to hold a dictionary of lists of nodes", type(lists).__name__
        )
    counts = [len(ends) for ends in lists.values()]
    if sum(counts) > size_of(path):  # one list many times
        refuse_file(
            path, "to hold a byte or more for each edge", f"{sum(counts):,} edges"
        )
    flat = [end for ends in lists.values() for end in ends]
    if not all(type(end) is int for end in flat):
        refuse_file(path, "to hold lists of nodes", "lists of something else")
    return np.repeat(list(lists), counts).astype(np.int64), np.array(flat, np.int64)


def _one_graph(
    path: Path,
    senders: np.ndarray,
    receivers: np.ndarray,
    feature: np.ndarray,
    label: np.ndarray,
    node: Mapping[str, np.ndarray],
) -> FlatGraphs:
    for ends in (senders, receivers):
        bad = np.flatnonzero((ends < 0) | (ends >= len(label)))
        if bad.size:
            received = f"{ends[bad[0]]} in edge {bad[0]}"
            refuse_file(
                path, f"to have edges between nodes in [0, {len(label)})", received
            )
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
