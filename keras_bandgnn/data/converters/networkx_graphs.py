"""Conversion from and to networkx."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bandgnn.checks import having, instance
from keras_bandgnn.data.converters.attributes import (
    is_mask,
    label_level_of,
    refuse_names,
    refuse_sets,
)
from keras_bandgnn.data.files import json_text
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

_DEFAULTS = {"node": "node_default", "edge": "edge_default"}
_GRAPH_LEVEL = ("label", "candidates", "slot", "info")
_RESERVED = {
    "node": ("label",),
    "edge": ("label", "edge_type"),
    "context": _GRAPH_LEVEL,
}


def from_networkx(
    graph: Any,
    node: Iterable[str] | None = None,
    edge: Iterable[str] | None = None,
    context: Iterable[str] | None = None,
) -> Graph:
    """Convert a networkx graph of any type.

    Nodes are numbered in iteration order. If their names are not 0 to N - 1 and can be
    represented in JSON, `info["nodes"]` lists them. An undirected edge becomes two
    edges, where all reverse edges come last; a self-loop is one edge. Attributes become
    features of the same name, except:

    * edge attribute `edge_type`: the type,
    * attribute `label` of the nodes, of the edges or of the graph: the label, in which
      NaN is a value that is not known,
    * graph attributes `candidates` and `slot`, node numbers, and `info`,
    * masks of splits, such as `train_mask`, which are 0 where they are missing,
    * what networkx adds to graphs of GraphML and GEXF: `node_default` and
      `edge_default` of the graph are values of nodes and edges without one; text `id`
      of edges, `viz`, and a text `label` that differs for all nodes are left out.

    Other graph attributes that are not numeric are stored in `info`.

    Args:
        graph: `networkx.Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
        node: Node attributes to convert; all if omitted.
        edge: Edge attributes to convert; all if omitted.
        context: Numeric graph attributes to convert; all if omitted.

    Raises:
        ValueError: If an attribute is missing from a node or an edge, is not numeric or
            has varying shapes; the message names the attribute and the node or edge.
            If several of nodes, edges and graph have a label.

    Example:
    >>> import networkx  # doctest: +SKIP
    >>> from_networkx(networkx.path_graph(3))  # doctest: +SKIP
    Graph(num_nodes=3, num_edges=4)
    """
    having("graph", graph, "nodes", "a graph of networkx")
    names = list(graph.nodes)
    number = {name: i for i, name in enumerate(names)}
    ends = [(number[a], number[b]) for a, b in graph.edges()]
    senders, receivers = np.array(ends, np.int32).reshape(-1, 2).T
    nodes = _columns("node", names, attribute_rows(graph, "node"), node)
    edges = _columns("edge", list(graph.edges()), attribute_rows(graph, "edge"), edge)
    if not graph.is_directed():
        back = np.flatnonzero(senders != receivers)
        edges = {k: np.concatenate([v, v[back]]) for k, v in edges.items()}
        senders, receivers = (
            np.concatenate([senders, receivers[back]]),
            np.concatenate([receivers, senders[back]]),
        )
    fields, features, info = _graph_attributes(graph.graph, context)
    labels = {"graph": fields, "node": nodes, "edge": edges}
    level = label_level_of(
        "the attribute", {k: "label" in v for k, v in labels.items()}
    )
    if level != "graph":
        fields |= {"label": labels[level].pop("label"), "label_level": level}
    if names != list(range(len(names))):
        info |= _name_list(names)
    return Graph(
        len(names),
        senders,
        receivers,
        edge_type=edges.pop("edge_type", None),
        node=nodes,
        edge=edges,
        context=features,
        info=info,
        **fields,
    )


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


def _columns(
    kind: str, names: list, rows: Sequence[Mapping], keys: Iterable[str] | None
) -> dict[str, np.ndarray]:
    """Return an array per attribute of nodes or edges."""
    if keys is None:
        keys = dict.fromkeys(
            key
            for row in rows
            for key, value in row.items()
            if not is_of_format(kind, key, value)
        )
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


def _graph_attributes(
    attributes: Mapping[str, Any], keys: Iterable[str] | None
) -> tuple[dict, dict, dict]:
    """Split graph attributes into arguments of `Graph`, context features and info."""
    fields = {k: v for k, v in attributes.items() if k in _GRAPH_LEVEL}
    info = dict(fields.pop("info", {}))
    features = {}
    for key, value in attributes.items():
        if key in _GRAPH_LEVEL or is_of_format("graph", key, value):
            continue
        array = _numbers(value)
        if array is None:
            json_text(f"graph attribute {key!r}", value)
            info[key] = value
        elif keys is None or key in keys:
            features[key] = array
    return fields, features, info


def _name_list(names: list) -> dict[str, list]:
    try:
        return {"nodes": json.loads(json_text("nodes", names))}
    except ValueError:  # names can be arbitrary objects
        return {}


def to_networkx(graph: Graph) -> Any:
    """Convert to a `networkx.MultiDiGraph` with the attributes of `from_networkx`.

    Nodes get the names in `info["nodes"]`, if any; names that are lists become tuples.
    Scalars become Python numbers, other features read-only arrays.

    Needs `pip install networkx`.

    Args:
        graph: The graph.

    Raises:
        ValueError: If a feature has the name of one of these attributes, such as
            `label`.
        ImportError: If networkx is not installed.

    Example:
    >>> to_networkx(Graph(2, [0], [1])).number_of_edges()  # doctest: +SKIP
    1
    """
    instance("graph", graph, Graph, "a Graph")
    refuse_sets(graph, "networkx")
    for level, reserved in _RESERVED.items():
        refuse_names("networkx", level, getattr(graph, level), reserved)
    out = optional_import("networkx", "networkx").MultiDiGraph()
    names = list(range(graph.num_nodes))
    info = dict(graph.info)
    if "nodes" in info:
        node_names = info.pop("nodes")
        rows = names if graph.origin is None else graph.origin.tolist()
        names = [_hashable(node_names[row]) for row in rows]
    nodes = dict(graph.node)
    if graph.label is not None and graph.label_level == "node":
        nodes["label"] = graph.label
    out.add_nodes_from(zip(names, _attribute_rows(nodes, graph.num_nodes), strict=True))
    edges = {"edge_type": graph.edge_type, **graph.edge}
    if graph.label is not None and graph.label_level == "edge":
        edges["label"] = graph.label
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    rows = _attribute_rows(edges, graph.num_edges)
    out.add_edges_from(
        (names[a], names[b], row) for (a, b), row in zip(ends, rows, strict=True)
    )
    out.graph.update({k: _scalar_or_array(v) for k, v in graph.context.items()})
    if graph.label is not None and graph.label_level == "graph":
        out.graph["label"] = _scalar_or_array(graph.label)
    if graph.candidates is not None:
        out.graph["candidates"] = graph.candidates
    if graph.slot is not None:
        out.graph["slot"] = graph.slot
    if info:
        out.graph["info"] = info
    return out


def _attribute_rows(
    features: Mapping[str, np.ndarray], count: int
) -> list[dict[str, Any]]:
    rows = [{} for _ in range(count)]
    for key, array in features.items():
        values = array.tolist() if array.ndim == 1 else array
        for row, value in zip(rows, values, strict=True):
            row[key] = value
    return rows


def _scalar_or_array(array: np.ndarray) -> Any:
    return array if array.ndim else array.item()


def _hashable(name: Any) -> Any:
    return tuple(map(_hashable, name)) if isinstance(name, list) else name
