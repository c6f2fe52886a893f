"""Graphs from and to networkx."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_bandgnn.checks import having, instance
from keras_bandgnn.data.files import json_text
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import

_GRAPH_LEVEL = ("label", "candidates", "slot", "info")


def from_networkx(
    graph: Any,
    node: Iterable[str] | None = None,
    edge: Iterable[str] | None = None,
    context: Iterable[str] | None = None,
) -> Graph:
    """Makes a graph of a networkx graph of any kind.

    Nodes are numbered in the order of iteration. If their names are not 0 to N - 1,
    `info["nodes"]` lists them, as far as JSON can hold them. Edges of an undirected
    graph lead both ways, first all of them one way and then back; a self-loop is one
    edge. Attributes are features of the same name. Those with a meaning:

    * edge attribute `edge_type`: the type,
    * node attribute `label`, or graph attribute `label`: the label,
    * graph attributes `candidates` and `slot`, node numbers, and `info`.

    Other attributes of the graph that are no numbers go to `info`.

    Args:
        graph: `networkx.Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
        node: Node attributes to take; all when omitted.
        edge: Edge attributes to take; all when omitted.
        context: Numeric graph attributes to take; all when omitted.

    Raises:
        ValueError: If an attribute is missing somewhere, is not numeric or differs in
            shape; the message names the attribute and the node or edge.

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
    nodes = _columns("node", graph.nodes(data=True), node)
    edges = _columns("edge", ((e[:2], e[2]) for e in graph.edges(data=True)), edge)
    if not graph.is_directed():
        back = np.flatnonzero(senders != receivers)
        edges = {k: np.concatenate([v, v[back]]) for k, v in edges.items()}
        senders, receivers = (
            np.concatenate([senders, receivers[back]]),
            np.concatenate([receivers, senders[back]]),
        )
    fields, features, info = _of_graph(graph.graph, context)
    if "label" in nodes:
        if "label" in fields:
            raise ValueError(
                "Expected `label` to be an attribute of the nodes or of the graph. "
                "Received: both. Remove one, or leave it out with node=[...]."
            )
        fields |= {"label": nodes.pop("label"), "label_level": "node"}
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


def _columns(
    kind: str, items: Iterable[tuple[Any, Mapping]], wanted: Iterable[str] | None
) -> dict[str, np.ndarray]:
    """One array per attribute of nodes or edges, given as (name, attributes)."""
    items = list(items)
    if wanted is None:
        wanted = dict.fromkeys(key for _, attributes in items for key in attributes)
    columns = {}
    for key in wanted if items else ():
        values = [attributes.get(key) for _, attributes in items]
        array = _numbers(values)
        if array is None:
            _explain(kind, key, [name for name, _ in items], values)
        columns[key] = array
    return columns


def _numbers(value: Any) -> np.ndarray | None:
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return None
    return array if array.dtype.kind in "biuf" else None


def _explain(kind: str, key: str, names: list, values: list) -> None:
    """Raises an error about the first value that does not fit."""
    for name, value in zip(names, values, strict=True):
        array = _numbers(value)
        if value is None:
            problem, advice = "no value", "Give each one a value"
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
            f"attributes to take with {kind}=[...]."
        )


def _of_graph(
    attributes: Mapping[str, Any], wanted: Iterable[str] | None
) -> tuple[dict, dict, dict]:
    """Arguments of `Graph`, context features and facts among the graph attributes."""
    fields = {k: v for k, v in attributes.items() if k in _GRAPH_LEVEL}
    info = dict(fields.pop("info", {}))
    features = {}
    for key, value in attributes.items():
        if key in _GRAPH_LEVEL:
            continue
        array = _numbers(value)
        if array is None:
            json_text(f"graph attribute {key!r}", value)
            info[key] = value
        elif wanted is None or key in wanted:
            features[key] = array
    return fields, features, info


def _name_list(names: list) -> dict[str, list]:
    try:
        return {"nodes": json.loads(json_text("nodes", names))}
    except ValueError:  # Names may be any objects; what JSON cannot hold is left out.
        return {}


def to_networkx(graph: Graph) -> Any:
    """Makes a `networkx.MultiDiGraph`, with the attributes that `from_networkx` reads.

    Nodes get the names in `info["nodes"]`, where there are any; lists among them
    become tuples. Scalars become Python numbers, larger features read-only arrays.

    Needs `pip install networkx`.

    Args:
        graph: The graph.

    Raises:
        ImportError: If networkx is not installed.

    Example:
    >>> to_networkx(Graph(2, [0], [1])).number_of_edges()  # doctest: +SKIP
    1
    """
    instance("graph", graph, Graph, "a Graph")
    out = optional_import("networkx", "networkx").MultiDiGraph()
    names = list(range(graph.num_nodes))
    info = dict(graph.info)
    if "nodes" in info:
        given = info.pop("nodes")
        rows = names if graph.origin is None else graph.origin.tolist()
        names = [_hashable(given[row]) for row in rows]
    nodes = dict(graph.node)
    if graph.label is not None and graph.label_level == "node":
        nodes["label"] = graph.label
    out.add_nodes_from(zip(names, _rows(nodes, graph.num_nodes), strict=True))
    edges = {"edge_type": graph.edge_type, **graph.edge}
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    rows = _rows(edges, graph.num_edges)
    out.add_edges_from(
        (names[a], names[b], row) for (a, b), row in zip(ends, rows, strict=True)
    )
    out.graph.update({k: _python(v) for k, v in graph.context.items()})
    if graph.label is not None and graph.label_level == "graph":
        out.graph["label"] = _python(graph.label)
    if graph.candidates is not None:
        out.graph["candidates"] = graph.candidates
    if graph.slot is not None:
        out.graph["slot"] = graph.slot
    if info:
        out.graph["info"] = info
    return out


def _rows(features: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    rows = [{} for _ in range(count)]
    for key, array in features.items():
        values = array.tolist() if array.ndim == 1 else array
        for row, value in zip(rows, values, strict=True):
            row[key] = value
    return rows


def _python(array: np.ndarray) -> Any:
    return array if array.ndim else array.item()


def _hashable(name: Any) -> Any:
    return tuple(map(_hashable, name)) if isinstance(name, list) else name
