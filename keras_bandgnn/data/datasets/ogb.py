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

    def path(name: str) -> Path:
        return raw / f"{name}.csv.gz"

    def table(name: str) -> np.ndarray | None:
        return read_matrix(path(name)) if path(name).exists() else None

    num_nodes = read_integers(path("num-node-list"), 1)[:, 0]
    num_edges = read_integers(path("num-edge-list"), 1)[:, 0]
    ends = read_integers(path("edge"), 2)
    for name, counts in (("num-node-list", num_nodes), ("num-edge-list", num_edges)):
        if (
            counts.min() < 0
            or counts.max() > INT32_MAX
            or len(counts) != len(num_nodes)
        ):
            received = f"{len(counts)} counts from {counts.min()} to {counts.max()}"
            refuse_file(path(name), f"to have {len(num_nodes)} counts from 0", received)
    if len(ends) != num_edges.sum():
        received = f"{len(ends)}"
        refuse_file(
            path("edge"), f"to have {num_edges.sum()} lines, as many as edges", received
        )
    node = _features(raw, "node", table("node-feat"), int(num_nodes.sum()))
    edge = _features(raw, "edge", table("edge-feat"), len(ends))
    senders, receivers = ends[:, 0], ends[:, 1]
    if inverse_edges:
        senders, receivers, *repeated = both_ways(senders, receivers, *edge.values())
        edge, num_edges = dict(zip(edge, repeated, strict=True)), 2 * num_edges
    label, level, rows = table("node-label"), "node", int(num_nodes.sum())
    if label is None:
        label, level, rows = table("graph-label"), "graph", len(num_nodes)
    if label is not None and len(label) != rows:
        name = path(f"{level}-label")
        refuse_file(name, f"to have {rows} lines, one a {level}", f"{len(label)}")
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
    if label is not None and label.shape[1] == 1:
        label = label[:, 0]
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


def _features(
    raw: Path, level: str, feature: np.ndarray | None, count: int
) -> dict[str, np.ndarray]:
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
