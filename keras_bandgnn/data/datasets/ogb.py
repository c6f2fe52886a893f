"""Sets of the Open Graph Benchmark, in their published CSV format."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_bandgnn.arrays import INT32_MAX
from keras_bandgnn.checks import refuse
from keras_bandgnn.data.datasets.parts import SPLITS, both_ways
from keras_bandgnn.data.datasets.tables import read_integers, read_matrix
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.reading import refuse_file

_NODE_SPLITS = ("train_mask", "valid_mask", "test_mask")


def read(
    files: Mapping[str, Path],
    *,
    inverse_edges: bool = False,
    scheme: str | None = None,
) -> FlatGraphs:
    """Read `raw/*.csv.gz` and `split/<scheme>/*.csv.gz`.

    Args:
        files: `{"edges": path of raw/edge.csv.gz, ...}`; the others are in the same
            folder.
        inverse_edges: Whether to add the reverse of each edge. `load` sets it as the
            benchmark does for each of its sets.
        scheme: Name of the folder in `split`; required if there are several.

    Returns:
        `feature` of nodes [N, F] and edges [E, F], int32 or float32 as in the files,
        and further files `node_<name>`, `edge_<name>` as `<name>`. Node label int32
        [N] or [N, T] with masks, for one graph; else graph label [n] or [n, T] with
        context `split`. Missing labels are NaN.

    Raises:
        ValueError: If files disagree in length.
    """
    raw = files["edges"].parent
    num_nodes, num_edges, ends = _sizes_and_ends(raw)
    node = _features(raw, "node", int(num_nodes.sum()))
    edge = _features(raw, "edge", len(ends))
    senders, receivers = ends[:, 0], ends[:, 1]
    if inverse_edges:
        senders, receivers, *repeated = both_ways(senders, receivers, *edge.values())
        edge, num_edges = dict(zip(edge, repeated, strict=True)), 2 * num_edges
    label, level = _label(raw, num_nodes)
    rows = int(num_nodes.sum()) if level == "node" else len(num_nodes)
    splits = _splits(raw.parent / "split", scheme, rows)
    context = {}
    if splits is not None and level == "node":
        for mask, ids in zip(_NODE_SPLITS, splits, strict=True):
            node[mask] = np.zeros(rows, np.int32)
            node[mask][ids] = 1
    elif splits is not None:
        context["split"] = np.full(rows, -1, np.int32)
        for code, ids in enumerate(splits):
            context["split"][ids] = code
    return FlatGraphs(
        num_nodes=num_nodes,
        num_edges=num_edges,
        senders=senders,
        receivers=receivers,
        node=node,
        edge=edge,
        context=context,
        label=label,
        label_level=level,
    )


def _file(raw: Path, name: str) -> Path:
    return raw / f"{name}.csv.gz"


def _table(raw: Path, name: str) -> np.ndarray | None:
    path = _file(raw, name)
    return read_matrix(path) if path.exists() else None


def _sizes_and_ends(raw: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nodes and edges of each graph, and the ends of edges [E, 2]."""
    num_nodes = read_integers(_file(raw, "num-node-list"), 1)[:, 0]
    num_edges = read_integers(_file(raw, "num-edge-list"), 1)[:, 0]
    ends = read_integers(_file(raw, "edge"), 2)
    for name, counts in (("num-node-list", num_nodes), ("num-edge-list", num_edges)):
        if (
            counts.min() < 0
            or counts.max() > INT32_MAX
            or len(counts) != len(num_nodes)
        ):
            received = f"{len(counts)} counts from {counts.min()} to {counts.max()}"
            expected = f"to have {len(num_nodes)} counts from 0"
            refuse_file(_file(raw, name), expected, received)
    if len(ends) != num_edges.sum():
        expected = f"to have {num_edges.sum()} lines, as many as edges"
        refuse_file(_file(raw, "edge"), expected, f"{len(ends)}")
    return num_nodes, num_edges, ends


def _label(raw: Path, num_nodes: np.ndarray) -> tuple[np.ndarray | None, str]:
    """Return the labels of nodes or else of graphs, None without any, and which."""
    label, level, rows = _table(raw, "node-label"), "node", int(num_nodes.sum())
    if label is None:
        label, level, rows = _table(raw, "graph-label"), "graph", len(num_nodes)
    if label is not None and len(label) != rows:
        name = _file(raw, f"{level}-label")
        refuse_file(name, f"to have {rows} lines, one a {level}", f"{len(label)}")
    if label is not None and label.shape[1] == 1:
        label = label[:, 0]
    return label, level


def _features(raw: Path, level: str, count: int) -> dict[str, np.ndarray]:
    feature = _table(raw, f"{level}-feat")
    features = {} if feature is None else {"feature": feature}
    for path in sorted(raw.glob(f"{level}_*.csv.gz")):
        name = path.name.removesuffix(".csv.gz").removeprefix(f"{level}_")
        values = read_matrix(path)
        features[name] = values[:, 0] if values.shape[1] == 1 else values
    for name, values in features.items():
        if len(values) != count:
            raise ValueError(
                f"Expected {count} rows of the {level} feature {name!r} in {raw}. "
                f"Received: {len(values)}. Download the data set again."
            )
    return features


def _splits(folder: Path, scheme: str | None, count: int) -> list[np.ndarray] | None:
    names = sorted(f.name for f in folder.iterdir()) if folder.is_dir() else []
    if not names and scheme is None:
        return None
    if scheme is None and len(names) == 1:
        (scheme,) = names
    if scheme not in names:
        refuse("scheme", f"one of the folders {names} in {folder}", scheme)
    splits = []
    for name in SPLITS:
        path = folder / scheme / f"{name}.csv.gz"
        ids = read_integers(path).reshape(-1)
        if not 0 <= ids.min() <= ids.max() < count or len(np.unique(ids)) < len(ids):
            received = f"{len(ids)} from {ids.min()} to {ids.max()}"
            refuse_file(path, f"to have distinct ids in [0, {count})", received)
        splits.append(ids)
    return splits
