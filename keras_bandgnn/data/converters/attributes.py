"""Graphs from named attributes whose level (node, edge, graph) follows from their size.

This is the convention of torch_geometric, and of data sets of dictionaries that follow
it: `edge_index`, `edge_attr`, `x`, `y` and any other names.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.checks import one_of
from keras_bandgnn.data.files import json_text
from keras_bandgnn.graph import LABEL_LEVELS, Graph

_NODE_NAMES = ("x", "pos", "z", "node_feat")
_FIXED = ("edge_index", "edge_type", "num_nodes", "candidate_index", "slot_index")

_MASK = re.compile(r"(edge_)?(train|val|valid|validation|test|stopping)_mask")

Attributes = Mapping[str, Any]


def is_hetero_data(data: Any) -> bool:
    """Return whether data is a `HeteroData` of torch_geometric."""
    return hasattr(data, "node_types") and hasattr(data, "edge_types")


def refuse_sets(graph: Any, form: str) -> None:
    """Raise a ValueError for a graph with node sets, which a form cannot hold."""
    if graph.sets:
        raise ValueError(
            f"Expected a graph without node sets, as {form} has no tables for them. "
            f"Received: the sets {[*graph.sets]}. Use keras_bandgnn.data.to_sets or "
            "to_pyg."
        )


def is_mask(name: str, values: Any) -> bool:
    """Return whether an attribute is the mask of a split, such as `train_mask`.

    Args:
        name: Its name.
        values: Its values, bools or integers 0 and 1; None where missing.

    Example:
    >>> is_mask("train_mask", [True, None]), is_mask("train_mask", [1, 2])
    (True, False)
    """
    if not _MASK.fullmatch(name):
        return False
    try:
        array = np.asarray([value for value in values if value is not None])
    except ValueError:  # ragged
        return False
    binary = array.dtype.kind in "biu" and array.size > 0
    return binary and bool(array.min() >= 0 and array.max() <= 1)


def refuse_names(form: str, level: str, names: Iterable, reserved: Iterable) -> None:
    """Raise a ValueError for features whose names have another meaning in a form.

    Without this, a feature called `label` would come back as the label.

    Args:
        form: The form, for the error.
        level: `"node"`, `"edge"` or `"context"`.
        names: Names of the graph's features of this level.
        reserved: Names that the form uses for something else.
    """
    for name in names:
        if name in reserved:
            raise ValueError(
                f"Expected {level} features with names other than {tuple(reserved)}, "
                f"which {form} needs itself. Received: {level}[{name!r}]. Rename the "
                "feature."
            )


def label_level_of(form: str, labels: Mapping[str, bool]) -> str:
    """Return the level that has a label, `"graph"` if none; refuse several.

    Args:
        form: What may have a label, for the error, such as "a column".
        labels: Whether there is a label, by level.
    """
    levels = [level for level, has in labels.items() if has]
    if len(levels) > 1:
        raise ValueError(
            f"Expected {form} `label` of the graphs, of the nodes or of the edges. "
            f"Received: both of {' and of '.join(levels)}. Remove one of them, or "
            "rename one that is a feature."
        )
    return levels[0] if levels else "graph"


def as_numpy(value: Any) -> Any:
    """Convert tensors, numbers and lists of numbers to arrays; keep other values.

    Torch tensors are detached and copied to the host; bfloat16 becomes float32.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        return value.numpy()
    if value is None or isinstance(value, str | bytes | Mapping):
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # rows of differing lengths
        return value
    return array if array.dtype.kind in "biuf" else value


def whole_times(values: Any) -> Any:
    """Return dates as int64 milliseconds since 1970, in UTC; other values unchanged.

    Args:
        values: A column: numbers, datetime64, or dates of Python or pandas in a list, a
            series or an index.

    Example:
    >>> whole_times(np.array(["1970-01-01T00:00:01.5"], "datetime64[us]")).tolist()
    [1500]
    """
    is_pandas = type(values).__module__.partition(".")[0] == "pandas"
    if is_pandas or getattr(getattr(values, "dtype", None), "kind", "") == "O":
        values = values.tolist()
    if isinstance(values, list) and any(hasattr(v, "timestamp") for v in values):
        # NaT of pandas has the method, too, and equals nothing.
        values = [_naive(value) if value == value else None for value in values]
        values = np.array(values, "datetime64[us]")
    is_date = isinstance(values, np.ndarray) and values.dtype.kind == "M"
    if not is_date or np.isnat(values).any():
        return values
    return values.astype("datetime64[ms]").astype(np.int64)


def _naive(value: Any) -> Any:
    """Return a date of Python or pandas in UTC, without its time zone."""
    if getattr(value, "tzinfo", None) is None:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


def sized(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes as arrays, with `num_nodes`; drop None.

    Raises:
        ValueError: If `edge_index` [2, E] or the number of nodes is missing.
    """
    values = {k: as_numpy(v) for k, v in attributes.items() if v is not None}
    edge_index = values.get("edge_index")
    shape = getattr(edge_index, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"Expected `edge_index` of shape [2, E]. Received: {shape}. Put "
            "the senders in the first row and the receivers in the second row."
        )
    if "num_nodes" not in values:
        counted = [n for n in _NODE_NAMES if n in values]
        if not counted:
            raise ValueError(
                "Expected `num_nodes`, or node features named x, pos, z or node_feat. "
                f"Received: {sorted(values)}. Add num_nodes."
            )
        values["num_nodes"] = len(values[counted[0]])
    values["num_nodes"] = int(np.asarray(values["num_nodes"]).reshape(()))
    if "edge_label" in values and "edge_label_index" not in values:
        # Of these edges; with an index, of other pairs.
        label_level_of("one attribute", {"edge": True, "graph": "y" in values})
        values |= {"y": values.pop("edge_label"), "label_level": "edge"}
    return values


def levels_of(samples: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Infer the level of each attribute from its number of rows in all samples.

    An attribute whose rows match the nodes or the edges in every sample belongs to
    them, otherwise to the graph. If a name contains "edge", edges take precedence. The
    level stays undecided if an attribute has one row in samples of one node or edge
    each, or matches both nodes and edges in all samples. A label `y` of one row in
    graphs of one edge is one of the graph.

    Args:
        samples: Results of `sized` for some graphs.

    Returns:
        `"node"`, `"edge"` or `"context"` by name, including the label `y`.

    Example:
    >>> ends = np.zeros((2, 4), int)
    >>> two = {"edge_index": ends, "num_nodes": 2, "a": np.ones(2), "b": np.ones(2)}
    >>> three = {"edge_index": ends, "num_nodes": 3, "a": np.ones(3), "b": np.ones(2)}
    >>> levels_of([two, three])
    {'a': 'node', 'b': 'context'}
    """
    levels = {}
    for name in dict.fromkeys(name for values in samples for name in values):
        having = [v for v in samples if isinstance(v.get(name), np.ndarray)]
        if name in _FIXED or not having:
            continue
        fits = set.intersection(*(_fitting(v[name], v) for v in having))
        if name == "y" and all(len(v[name]) == 1 for v in having if v[name].ndim):
            fits -= {"edge"}
        if name in _NODE_NAMES:
            levels[name] = "node"
        elif "edge" in name and "edge" in fits:
            levels[name] = "edge"
        elif not fits:
            levels[name] = "context"
        elif len(fits) == 1 and any(len(v[name]) != 1 for v in having):
            levels[name] = fits.pop()
    return levels


def _fitting(array: np.ndarray, values: dict[str, Any]) -> set[str]:
    rows = len(array) if array.ndim else -1
    counts = {"node": values["num_nodes"], "edge": values["edge_index"].shape[1]}
    return {level for level, count in counts.items() if count == rows}


def graph_of(values: dict[str, Any], levels: Mapping[str, str]) -> Graph:
    """Create a graph from sized attributes.

    `y` is the label, of the level that the text `label_level` says if there is one,
    `edge_type` the types, `candidate_index` the candidates and `slot_index` the slot. A
    leading axis of 1, used for batching, is dropped from graph attributes and labels.
    Other values that are not arrays are stored in `info`.

    Args:
        values: Result of `sized`.
        levels: `"node"`, `"edge"` or `"context"` by name.

    Raises:
        ValueError: If the level of an attribute is unknown, or `Graph` rejects it.
    """
    parts = {"node": {}, "edge": {}, "context": {}}
    info, fields = {}, {}
    if (declared := values.get("label_level")) in LABEL_LEVELS:
        values = {k: v for k, v in values.items() if k != "label_level"}
        levels = {**levels, "y": "context" if declared == "graph" else declared}
    for name, value in values.items():
        if name in _FIXED:
            continue
        if not isinstance(value, np.ndarray):
            json_text(name, value)
            info[name] = value
            continue
        level = one_of(f"levels[{name!r}]", _level_of(name, levels), tuple(parts))
        if level == "context" and value.shape[:1] == (1,):
            value = value[0]
        if name == "y":
            fields["label"] = value
            fields["label_level"] = "graph" if level == "context" else level
        else:
            parts[level][name] = value
    if "candidate_index" in values:
        fields["candidates"] = values["candidate_index"]
    if "slot_index" in values:
        fields["slot"] = int(np.asarray(values["slot_index"]).reshape(()))
    senders, receivers = values["edge_index"]
    return Graph(
        values["num_nodes"],
        senders,
        receivers,
        edge_type=values.get("edge_type"),
        **parts,
        **fields,
        info=info,
    )


def _level_of(name: str, levels: Mapping[str, str]) -> str:
    if name not in levels:
        how = f'Pass levels={{"{name}": "context"}}, "node" or "edge" to from_pyg'
        if name == "y":
            how = 'Pass label_level="graph" or "node" or "edge" to from_pyg, or add it'
            how += " to the data"
        raise ValueError(
            f"Expected the shape of `{name}` to determine whether it belongs to nodes, "
            "edges or the graph. Received: one row, or as many rows as both nodes and "
            f"edges. {how}, or create the Graph yourself."
        )
    return levels[name]
