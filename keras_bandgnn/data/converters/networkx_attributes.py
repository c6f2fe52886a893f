"""Attributes of graphs of networkx, as arrays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.data.converters.attributes import is_mask
from keras_bandgnn.data.files import json_text

_DEFAULTS = {"node": "node_default", "edge": "edge_default"}
GRAPH_LEVEL = ("label", "candidates", "slot", "info")
"""Attributes of the graph that are fields of `Graph`."""


def attribute_rows(graph: Any, level: str) -> list[dict[str, Any]]:
    """Return the attributes of each node or edge of networkx, or of the graph.

    Nodes and edges have the defaults that networkx reads from GraphML and GEXF, and no
    `label` that is a caption: a text that differs for all nodes.

    Args:
        graph: A graph of networkx.
        level: `"node"`, `"edge"` or `"graph"`.
    """
    if level == "graph":
        return [graph.graph]
    items = graph.nodes(data=True) if level == "node" else graph.edges(data=True)
    default = graph.graph.get(_DEFAULTS[level])
    default = default if isinstance(default, Mapping) else {}
    rows = [{**default, **item[-1]} for item in items]
    labels = [row.get("label") for row in rows]
    text = level == "node" and all(isinstance(label, str) for label in labels)
    if text and len(rows) > 1 and len(set(labels)) == len(rows):
        rows = [{k: v for k, v in row.items() if k != "label"} for row in rows]
    return rows


def is_of_format(level: str, name: str, value: Any) -> bool:
    """Return whether networkx has an attribute from the form of a file, no feature.

    These are defaults, the `mode` and `viz` of GEXF, and text `id` of edges.
    """
    if level == "graph" and name == "mode":
        return value in ("static", "dynamic")
    if level == "edge" and name == "id":
        return isinstance(value, str)
    of_graph = level == "graph" and name in _DEFAULTS.values()
    return isinstance(value, Mapping) and (of_graph or name == "viz")


def columns_of(
    kind: str, names: list, rows: Sequence[Mapping], keys: Iterable[str] | None
) -> dict[str, np.ndarray]:
    """Return an array per attribute of nodes or edges."""
    if keys is None:
        keys = _names(kind, rows)
    columns = {}
    for key in keys if rows else ():
        values = [row.get(key) for row in rows]
        if is_mask(key, values):
            shape = next(np.shape(value) for value in values if value is not None)
            empty = np.zeros(shape, int)
            values = [empty if value is None else value for value in values]
        array = _numbers(values)
        if array is None:
            _explain(kind, key, names, values)
        columns[key] = array
    return columns


def values_of(
    kind: str, names: list, rows: Sequence[Mapping]
) -> dict[str, list | np.ndarray]:
    """Return a list per attribute of nodes or edges, with None where it is missing.

    Labels and masks are arrays, as those of `columns_of`.
    """
    keys = _names(kind, rows)
    columns = {key: [row.get(key) for row in rows] for key in keys}
    fixed = [k for k, values in columns.items() if k == "label" or is_mask(k, values)]
    return {**columns, **columns_of(kind, names, rows, fixed)}


def _names(kind: str, rows: Sequence[Mapping]) -> Iterable[str]:
    """Return the names of the attributes that are no part of a form of files."""
    return dict.fromkeys(
        key
        for row in rows
        for key, value in row.items()
        if not is_of_format(kind, key, value)
    )


def _numbers(value: Any) -> np.ndarray | None:
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return None
    return array if array.dtype.kind in "biuf" else None


def _explain(kind: str, key: str, names: list, values: list) -> None:
    """Raise an error for the first invalid value."""
    for name, value in zip(names, values, strict=True):
        array = _numbers(value)
        if value is None:
            problem, advice = "no value", "Set it everywhere"
        elif array is None:
            problem, advice = f"{value!r:.60}", "Map the values to numbers"
        elif array.shape != np.shape(values[0]):
            problem = f"shape {array.shape} after {np.shape(values[0])}"
            advice = "Pad the values to one shape"
        else:
            continue
        raise ValueError(
            f"Expected the {kind} attribute {key!r} to be numbers of one shape. "
            f"Received: {problem} for {kind} {name!r}. {advice}, or choose the "
            f"attributes to convert with {kind}=[...]."
        )


def graph_attributes(
    attributes: Mapping[str, Any], keys: Iterable[str] | None
) -> tuple[dict, dict, dict]:
    """Split graph attributes into arguments of `Graph`, context features and info."""
    fields = {k: v for k, v in attributes.items() if k in GRAPH_LEVEL}
    info = dict(fields.pop("info", {}))
    features = {}
    for key, value in attributes.items():
        if key in GRAPH_LEVEL or is_of_format("graph", key, value):
            continue
        array = _numbers(value)
        if array is None:
            json_text(f"graph attribute {key!r}", value)
            info[key] = value
        elif keys is None or key in keys:
            features[key] = array
    return fields, features, info
