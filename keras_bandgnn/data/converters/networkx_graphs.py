"""Conversion from and to networkx."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.arrays import checked_ids
from keras_bandgnn.checks import having, instance, optional, refuse, sequence, string
from keras_bandgnn.data.converters.attributes import (
    is_mask,
    label_level_of,
    refuse_names,
)
from keras_bandgnn.data.converters.networkx_attributes import (
    GRAPH_LEVEL,
    attribute_rows,
    columns_of,
    graph_attributes,
    values_of,
)
from keras_bandgnn.data.converters.node_sets import (
    from_sets,
    has_features,
    to_sets,
)
from keras_bandgnn.data.files import json_text
from keras_bandgnn.graph import EDGE_SETS, Graph, edge_sets
from keras_bandgnn.optional import optional_import

if TYPE_CHECKING:
    import networkx

    from keras_bandgnn.aliases import Config

_RESERVED = {
    "node": ("label",),
    "edge": ("label", "edge_type"),
    "context": GRAPH_LEVEL,
}


def from_networkx(
    graph: networkx.Graph,
    node: Iterable[str] | None = None,
    edge: Iterable[str] | None = None,
    context: Iterable[str] | None = None,
    node_set: str | None = None,
    edge_set: str | None = None,
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

    With `node_set` the graph has node sets, see `from_sets`: nodes of a set have the
    same attributes and are numbered one after the other. An undirected edge within a
    set becomes two edges of its edge set. An undirected edge between two sets starts in
    the set that is first in alphabetical order; the other direction belongs to the edge
    set `rev_<relation>`.

    Args:
        graph: `networkx.Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
        node: Node attributes to convert; all if omitted.
        edge: Edge attributes to convert; all if omitted.
        context: Numeric graph attributes to convert; all if omitted.
        node_set: Node attribute that names the set of a node, such as `"kind"`.
        edge_set: With `node_set`, the edge attribute that names the relation, `"to"`
            for edges without one.

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
    if optional(string, "node_set", node_set) is not None:
        keys = {"node": node, "edge": edge, "context": context}
        return _graph_with_sets(graph, node_set, edge_set, keys)
    if edge_set is not None:
        refuse("edge_set", "omitted without `node_set`", edge_set)
    names = list(graph.nodes)
    number = {name: i for i, name in enumerate(names)}
    ends = [(number[a], number[b]) for a, b in graph.edges()]
    senders, receivers = np.array(ends, np.int32).reshape(-1, 2).T
    nodes = columns_of("node", names, attribute_rows(graph, "node"), node)
    edges = columns_of("edge", list(graph.edges()), attribute_rows(graph, "edge"), edge)
    if not graph.is_directed():
        (senders, receivers), rows = _both_directions(np.stack([senders, receivers]))
        edges = {key: values[rows] for key, values in edges.items()}
    fields, features, info = graph_attributes(graph.graph, context)
    labels = {"graph": fields, "node": nodes, "edge": edges}
    level = label_level_of(
        "the attribute", {k: "label" in v for k, v in labels.items()}
    )
    if level != "graph":
        fields |= {"label": labels[level].pop("label"), "label_level": level}
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


def _both_directions(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return edges in both directions, int [2, F], and the row of each, int [F].

    Args:
        ends: int [2, E]; loops stay one edge.
    """
    back = np.flatnonzero(ends[0] != ends[1])
    rows = np.concatenate([np.arange(ends.shape[1]), back])
    return np.concatenate([ends, ends[::-1, back]], axis=1), rows


def _graph_with_sets(
    graph: Any, node_set: str, edge_set: str | None, keys: Mapping[str, Any]
) -> Graph:
    """Return a graph with node sets; `keys` are the attributes to convert, by level."""

    def columns(level: str, names: list, rows: list[dict]) -> dict[str, np.ndarray]:
        some = keys[level]
        if some is not None:
            some = [key for key in some if any(key in row for row in rows)]
        return columns_of(level, names, rows, some)

    for level in ("node", "edge"):
        names = {key for row in attribute_rows(graph, level) for key in row}
        if absent := [key for key in keys[level] or () if key not in names]:
            refuse(level, f"attributes among {sorted(map(str, names))}", absent)
    parts, order = _set_arguments(graph, node_set, edge_set, columns)
    fields, context, info = graph_attributes(graph.graph, keys["context"])
    has_label = {"graph": "label" in fields, "node": bool(parts["label"])}
    label_level_of("the attribute", has_label)
    for key in info.pop(EDGE_SETS, ()):
        # Sets of `to_networkx` that have no nodes or edges.
        key = tuple(sequence("the graph attribute 'edge_sets'", key))
        parts["edges"].setdefault(key, np.zeros((2, 0), np.int32))
        for name in key[::2]:
            parts["nodes"].setdefault(name, 0)
    names = list(graph.nodes)
    info |= _name_list([names[i] for i in order])
    position = np.argsort(order)
    if "candidates" in fields:
        ids = checked_ids("candidates", fields["candidates"], len(names), "the nodes")
        fields["candidates"] = position[ids]
    if "slot" in fields:
        fields["slot"] = position[
            checked_ids("slot", [fields["slot"]], len(names), "the nodes")
        ][0]
    arguments = {key: value for key, value in parts.items() if value or key != "label"}
    out = from_sets(**arguments, context=context, info=info)
    return out.replace(**fields) if fields else out


def networkx_tables(
    graph: networkx.Graph, node_set: str, edge_set: str | None = None
) -> Config:
    """Return the tables of a networkx graph with node sets, for a `NodeSetEncoder`.

    Sets, edge sets, the order of nodes and `label` are those of `from_networkx` with
    `node_set`, but attributes may also be strings, and may be missing from some nodes
    or edges: the encoder learns them, and its presets read the tables of new graphs.

    Args:
        graph: See `from_networkx`.
        node_set: Node attribute that names the set of a node, such as `"kind"`.
        edge_set: Edge attribute that names the relation, `"to"` for edges without one.

    Returns:
        A dict of the arguments of `from_sets`, an item of the encoder. Columns are
        lists with None where an attribute is missing.

    Raises:
        ValueError: If a node has no set, or a label is not numeric.

    Example:
    >>> import networkx  # doctest: +SKIP
    >>> net = networkx.Graph()  # doctest: +SKIP
    >>> net.add_node("Ann", kind="author", town="Bonn")  # doctest: +SKIP
    >>> net.add_node("Graphs", kind="paper")  # doctest: +SKIP
    >>> net.add_edge("Ann", "Graphs", relation="writes")  # doctest: +SKIP
    >>> networkx_tables(net, "kind", "relation")["nodes"]  # doctest: +SKIP
    {'author': {'town': ['Bonn']}, 'paper': 1}
    """
    having("graph", graph, "nodes", "a graph of networkx")
    string("node_set", node_set)
    parts, _ = _set_arguments(graph, node_set, edge_set, values_of)
    fields, context, info = graph_attributes(graph.graph, None)
    info.pop(EDGE_SETS, None)
    if "label" in fields:
        label_level_of("the attribute", {"graph": True, "node": bool(parts["label"])})
        parts["label"] = fields["label"]
    parts |= {"context": context, "info": info}
    return {k: v for k, v in parts.items() if k in ("nodes", "edges") or np.size(v)}


def _set_arguments(
    graph: Any,
    node_set: str,
    edge_set: str | None,
    columns: Callable[[str, list, list[dict]], dict[str, Any]],
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the arguments of `from_sets` for a graph of networkx, and its order.

    Args:
        graph: The graph.
        node_set: See `from_networkx`.
        edge_set: See `from_networkx`.
        columns: Function of the level, and of the names and attributes of some nodes or
            edges, that returns their columns: `columns_of` or `values_of`.

    Returns:
        `nodes`, `edges`, `node` (the masks) and `label`, which may be empty; and the
        nodes of networkx in the order of the graph, int [N].
    """
    names, rows = list(graph.nodes), attribute_rows(graph, "node")
    kinds = _names_of_sets("node", node_set, names, rows)
    sets, numbers = np.unique(np.array(kinds, str), return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers, minlength=len(sets))
    inside = np.empty_like(order)
    inside[order] = np.arange(len(order)) - (counts.cumsum() - counts).repeat(counts)
    nodes, masks, labels = {}, {}, {}
    for number, name in enumerate(sets.tolist()):
        members = np.flatnonzero(numbers == number).tolist()
        some = [names[i] for i in members], [rows[i] for i in members]
        table = columns("node", *some)
        if "label" in table:
            labels[name] = table.pop("label")
        for key in [key for key, values in table.items() if is_mask(key, values)]:
            masks.setdefault(key, {})[name] = table.pop(key)
        nodes[name] = table or len(members)
    number_of = {name: i for i, name in enumerate(names)}
    edge_names, edge_rows = list(graph.edges()), attribute_rows(graph, "edge")
    relations = _names_of_sets("edge", edge_set, edge_names, edge_rows)
    pairs = [(number_of[a], number_of[b]) for a, b in edge_names]
    groups = _edge_groups(
        np.array(pairs, int).reshape(-1, 2).T,
        np.array(relations, str),
        numbers,
        graph.is_directed(),
    )
    edges = {}
    for (source, relation, target), (ends, at) in groups.items():
        some = [edge_names[i] for i in at], [edge_rows[i] for i in at]
        part = columns("edge", *some)
        if "label" in part:
            advice = "Rename the attribute `label` of edges."
            refuse(
                "graph", "a graph whose nodes or which itself has labels", graph, advice
            )
        key = str(sets[source]), relation, str(sets[target])
        edges[key] = {"edge_index": inside[ends], **part}
    return {"nodes": nodes, "edges": edges, "node": masks, "label": labels}, order


def _edge_groups(
    ends: np.ndarray, relations: np.ndarray, numbers: np.ndarray, directed: bool
) -> dict[tuple[int, str, int], tuple[np.ndarray, list[int]]]:
    """Return the ends and the rows of the edges of each edge set.

    Args:
        ends: int [2, E].
        relations: str [E].
        numbers: int [N], the number of each node's set.
        directed: Whether edges have one direction.
    """
    rows = np.arange(ends.shape[1])
    if not directed:
        ends = np.where(numbers[ends[0]] > numbers[ends[1]], ends[::-1], ends)
        ends, rows = _both_directions(ends)
        back = numbers[ends[0]] > numbers[ends[1]]
        names = np.char.add("rev_", relations[rows])
        relations = np.where(back, names, relations[rows])
    sources, targets = numbers[ends].tolist()
    places: dict[tuple, list[int]] = {}
    keys = zip(sources, relations.tolist(), targets, strict=True)
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return {key: (ends[:, at], rows[at].tolist()) for key, at in places.items()}


def _names_of_sets(
    level: str, attribute: str | None, names: list, rows: list[dict]
) -> list[str]:
    """Remove the attribute with the name of the set or relation; return its values."""
    default = "to" if level == "edge" else None
    values = [row.pop(attribute, default) for row in rows]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str) or not value:
            raise ValueError(
                f"Expected the {level} attribute {attribute!r} to be the name of a "
                f"{level} set. Received: {value!r:.60} for {level} {name!r}. Set it "
                f"with networkx.set_{level}_attributes."
            )
    return values


def _name_list(names: list) -> dict[str, list]:
    """Return the entry of `info` with the names of nodes, if they are not numbers."""
    if names == list(range(len(names))):
        return {}
    try:
        return {"nodes": json.loads(json_text("nodes", names))}
    except ValueError:  # names can be arbitrary objects
        return {}


def to_networkx(
    graph: Graph, node_set: str = "kind", edge_set: str = "relation"
) -> networkx.MultiDiGraph:
    """Convert to a `networkx.MultiDiGraph` with the attributes of `from_networkx`.

    Nodes get the names in `info["nodes"]`, if any; names that are lists become tuples.
    Scalars become Python numbers, other features read-only arrays.

    In a graph with node sets, nodes have the features of their set. A set without nodes
    comes back without features.

    Needs `pip install networkx`.

    Args:
        graph: The graph.
        node_set: Attribute for the name of a node's set, in graphs with node sets.
        edge_set: Attribute for the relation of an edge, in graphs with node sets.

    Raises:
        ValueError: If a feature has the name of one of these attributes, such as
            `label`. If a graph with node sets has labels of edges.
        ImportError: If networkx is not installed.

    Example:
    >>> to_networkx(Graph(2, [0], [1])).number_of_edges()  # doctest: +SKIP
    1
    """
    instance("graph", graph, Graph, "a Graph")
    names_of_sets = string("node_set", node_set), string("edge_set", edge_set)
    for level, reserved in _RESERVED.items():
        refuse_names("networkx", level, getattr(graph, level), reserved)
    out = optional_import("networkx", "networkx").MultiDiGraph()
    names = list(range(graph.num_nodes))
    info = dict(graph.info)
    if "nodes" in info:
        node_names = info.pop("nodes")
        rows = names if graph.origin is None else graph.origin.tolist()
        names = [_hashable(node_names[row]) for row in rows]
    rows, edge_rows = _rows_of(graph, *names_of_sets)
    out.add_nodes_from(zip(names, rows, strict=True))
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    out.add_edges_from(
        (names[a], names[b], row) for (a, b), row in zip(ends, edge_rows, strict=True)
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


def _rows_of(
    graph: Graph, node_set: str, edge_set: str
) -> tuple[list[dict], list[dict]]:
    """Return the attributes of each node and of each edge."""
    if graph.sets:
        return _rows_with_sets(graph, node_set, edge_set)
    nodes = dict(graph.node)
    edges = {"edge_type": graph.edge_type, **graph.edge}
    if graph.label is not None and graph.label_level != "graph":
        (nodes if graph.label_level == "node" else edges)["label"] = graph.label
    return (
        _attribute_rows(nodes, graph.num_nodes),
        _attribute_rows(edges, graph.num_edges),
    )


def _rows_with_sets(
    graph: Graph, node_set: str, edge_set: str
) -> tuple[list[dict], list[dict]]:
    """Return the attributes of each node and of each edge, with those of their sets."""
    if graph.label is not None and graph.label_level == "edge":
        refuse("graph", "a graph without labels of edges, as it has node sets", graph)
    parts = to_sets(graph)
    shared, labels = parts.get("node", {}), parts.get("label", {})
    refuse_names("networkx", "edge", graph.edge, ("label", edge_set))
    rows: list[dict] = [{} for _ in range(graph.num_nodes)]
    for number, (name, table) in enumerate(parts["nodes"].items()):
        table = table if has_features(table) else {}
        refuse_names("networkx", name, table, ("label", node_set, *shared))
        table |= {key: values[name] for key, values in shared.items()}
        if name in labels:
            table["label"] = labels[name]
        members = np.flatnonzero(graph.node["set"] == number)
        for i, row in zip(
            members.tolist(), _attribute_rows(table, len(members)), strict=True
        ):
            rows[i] = {node_set: name, **row}
    keys = edge_sets(graph)
    edges = [
        {edge_set: keys[kind][1], **row}
        for kind, row in zip(
            graph.edge_type.tolist(),
            _attribute_rows(graph.edge, graph.num_edges),
            strict=True,
        )
    ]
    return rows, edges


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
