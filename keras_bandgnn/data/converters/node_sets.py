"""Graphs of several node sets and edge sets, from dictionaries of arrays and back."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.arrays import TIME, check_set_name, checked_ids
from keras_bandgnn.checks import boolean, instance, mapping, optional, refuse
from keras_bandgnn.data.converters.attributes import as_numpy, whole_times
from keras_bandgnn.graph import EDGE_SETS, EdgeSet, Graph, edge_sets

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Arrays, Item, Labels, Values


def from_sets(
    nodes: Values,
    edges: Mapping[EdgeSet, Item] | None = None,
    *,
    label: Labels | Mapping | None = None,
    node: Mapping[str, Arrays] | None = None,
    reverse: bool = False,
    context: Arrays | None = None,
    info: Values | None = None,
) -> Graph:
    """Build a graph whose nodes are of several kinds, such as authors and papers.

    Node sets are numbered in the order of their names, as are edge sets, whose number
    is the type of their edges. Nodes of a set follow one another, in the order of their
    rows. Columns `time` are the times of nodes and edges, which all sets have or none.

    Args:
        nodes: Node set -> its features by name, each [rows, ...]; or the number of its
            nodes, which then share one embedding (the feature `kind`, all 0).
        edges: None, or (source set, relation, target set) -> the ends of its edges, int
            [2, E], numbers of nodes within their sets; or a dict with `edge_index` and
            features of the edges, which are 0 in edge sets that lack them.
        label: Node set -> labels of its nodes, [rows, ...], or edge set -> labels of
            its edges, for one set. Others have no label: -1 among classes, NaN among
            numbers. What is no dict is the label of the graph.
        node: Feature that several sets share -> node set -> its rows, such as masks.
            Nodes of other sets have 0.
        reverse: Whether to add, for each edge set, the edges in the other direction,
            with the relation `rev_<relation>`: messages go from source to target.
        context: See `Graph`.
        info: See `Graph`; `edge_sets` is added.

    Raises:
        ValueError: If a name, a number of rows or a node does not fit.

    Example:
    >>> graph = from_sets(
    ...     {"user": {"age": [[20.0], [30.0]]}, "item": 3},
    ...     {("user", "buys", "item"): [[0, 1, 1], [0, 0, 2]]},
    ... )
    >>> graph.num_nodes, graph.node["set"].tolist(), graph.info["edge_sets"]
    (5, [0, 0, 0, 1, 1], [['user', 'buys', 'item']])
    """
    mapping("nodes", nodes)
    edges = {} if edges is None else edges
    instance("edges", edges, Mapping, "a dict with (source, relation, target) as keys")
    optional(mapping, "info", info)
    boolean("reverse", reverse)
    for name in nodes:
        check_set_name(name)
    tables = {name: _table(name, nodes[name]) for name in sorted(nodes)}
    times = {name: t.pop(TIME) for name, t in tables.items() if TIME in t}
    if times:
        node = {**(optional(mapping, "node", node) or {}), TIME: times}
        blank = {name: len(rows) for name, rows in times.items() if not tables[name]}
        tables |= {name: _table(name, count) for name, count in blank.items()}
    sizes = {name: len(next(iter(t.values()))) for name, t in tables.items()}
    counts = np.array([*sizes.values()], int)
    firsts = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) - firsts.repeat(counts)
    columns = {"set": np.arange(len(counts)).repeat(counts), "set_row": rows}
    for name, values in (optional(mapping, "node", node) or {}).items():
        if name == TIME:
            _check_times("node set", tables, mapping(f"node[{name!r}]", values))
        columns[name] = _spread(f"node[{name!r}]", values, sizes, 0)
    parts = {}
    for key, value in edges.items():
        parts[key] = _edges(key, value, sizes)
    for source, relation, target in edges if reverse else ():
        back = target, f"rev_{relation}", source
        if back in parts:
            refuse("edges", f"no edge set {back} with reverse=True", sorted(edges))
        ends, features = parts[source, relation, target]
        parts[back] = ends[::-1], features
    keys = sorted(parts)
    num_edges = {key: parts[key][0].shape[1] for key in keys}
    targets, level = _targets(label, sizes, num_edges)
    first = dict(zip(sizes, firsts.tolist(), strict=True))
    ends = [parts[s, r, t][0] + [[first[s]], [first[t]]] for s, r, t in keys]
    ends = np.concatenate(ends, axis=1) if ends else np.zeros((2, 0), np.int32)
    return Graph(
        num_nodes=len(rows),
        senders=ends[0],
        receivers=ends[1],
        edge_type=np.arange(len(keys)).repeat([*num_edges.values()]),
        node=columns,
        edge=_joined({key: parts[key] for key in keys}),
        context=context,
        label=targets,
        label_level=level,
        info={**(info or {}), EDGE_SETS: [list(key) for key in keys]},
        sets=tables,
    )


def _targets(
    label: Any, sizes: Mapping[str, int], num_edges: Mapping[EdgeSet, int]
) -> tuple[Any, str]:
    """Return the labels of a graph and their level; see `label` of `from_sets`."""
    if not isinstance(label, Mapping):
        return label, "graph"
    if len(label) != 1:
        expected = "the labels of one node set, {'author': y}, or of one edge set"
        refuse("label", expected, sorted(map(str, label)), "Leave out the others.")
    ((name, values),) = label.items()
    is_class = np.asarray(as_numpy(values)).dtype.kind in "iub"
    missing = -1 if is_class else np.nan
    if isinstance(name, tuple):
        return _spread("label", label, num_edges, missing), "edge"
    return _spread("label", label, sizes, missing), "node"


def _table(name: str, features: Any) -> dict[str, Any]:
    """Return the features of a node set."""
    if isinstance(features, int | np.integer) and not isinstance(features, bool):
        return {"kind": np.zeros(int(features), np.int32)}
    kind = f"nodes[{name!r}]"
    instance(kind, features, Mapping, "a dict of features, or the number of its nodes")
    if not features:
        refuse(kind, "a feature, or the number of its nodes", features)
    table = {key: as_numpy(values) for key, values in features.items()}
    if TIME in table:
        table[TIME] = whole_times(table[TIME])
    lengths = {key: np.shape(values)[:1] for key, values in table.items()}
    if len(set(lengths.values())) > 1 or () in lengths.values():
        refuse(kind, "features with one row for each node of the set", lengths)
    return table


def _check_times(what: str, names: Iterable, timed: Container) -> None:
    """Raise a ValueError if some sets have times, but not all of them."""
    if missing := [name for name in names if name not in timed]:
        raise ValueError(
            f"Expected times of every {what}, or of none. Received: none of "
            f"{missing[0]!r}. For what was there before all else, give the earliest "
            "time."
        )


def _spread(what: str, values: Mapping, sizes: Mapping[Any, int], fill) -> np.ndarray:
    """Return rows of all sets, of those of some node or edge sets; others are `fill`.

    Args:
        what: Name for errors.
        values: Node set or edge set -> its rows.
        sizes: Number of rows of each set.
        fill: 0, or the value of the other rows.
    """
    parts = {}
    for name, rows in instance(what, values, Mapping, "a dict of sets").items():
        _check_known(what, name, sizes)
        parts[name] = np.asarray(as_numpy(rows))
        if parts[name].shape[:1] != (sizes[name],):
            raise ValueError(
                f"Expected `{what}[{name!r}]` to have {sizes[name]} rows, one for each "
                f"row of the set. Received: shape {parts[name].shape}."
            )
    if not parts:
        refuse(what, "rows of at least one set", values)
    dtype = np.result_type(*parts.values(), *([] if fill == 0 else [np.int64(0)]))
    shape = next(iter(parts.values())).shape[1:]
    dtype = np.result_type(dtype, np.float32) if fill != fill else dtype
    blank = (np.full((n, *shape), fill, dtype) for n in sizes.values())
    joined = [parts.get(k, rows) for k, rows in zip(sizes, blank, strict=True)]
    return np.concatenate(joined).astype(dtype)


def _check_known(what: str, name: Any, sizes: Mapping[Any, int]) -> None:
    if name not in sizes:
        kind = "edge" if isinstance(name, tuple) else "node"
        raise ValueError(
            f"Expected {kind} sets of {sorted(sizes)} in {what}. Received: {name!r}."
        )


def _edges(key: Any, value: Any, sizes: Mapping[str, int]) -> tuple:
    """Return the ends of an edge set, int [2, E], and its features."""
    if (
        not isinstance(key, tuple)
        or len(key) != 3
        or not all(isinstance(part, str) and part for part in key)
    ):
        refuse("edges", "keys (source set, relation, target set)", key)
    what = f"edges[{key!r}]"
    features = {}
    if isinstance(value, Mapping):
        features = {name: as_numpy(rows) for name, rows in value.items()}
        value = features.pop("edge_index", None)
        if TIME in features:
            features[TIME] = whole_times(features[TIME])
    ends = as_numpy(value)
    if np.shape(ends)[:1] != (2,) or np.ndim(ends) != 2:
        refuse(what, "ends int [2, E], or a dict with `edge_index`", value)
    ends = np.asarray(ends)
    if not ends.size:
        ends = ends.astype(np.int32)
    for name, part in zip((key[0], key[2]), ends, strict=True):
        _check_known(what, name, sizes)
        checked_ids(what, part, sizes[name], f"nodes of {name!r}")
    return ends, features


def _joined(parts: Mapping[EdgeSet, tuple]) -> dict[str, np.ndarray]:
    """Return the features of all edges; 0 in edge sets that lack one."""
    timed = [key for key, (_, features) in parts.items() if TIME in features]
    if timed:
        _check_times("edge set", parts, timed)
    columns: dict[str, np.ndarray] = {}
    for key, (ends, features) in parts.items():
        for name, rows in features.items():
            if np.shape(rows)[:1] != ends.shape[1:]:
                raise ValueError(
                    f"Expected `edges[{key!r}][{name!r}]` to have {ends.shape[1]} "
                    f"rows, one for each edge. Received: shape {np.shape(rows)}."
                )
            like = columns.setdefault(name, np.asarray(rows)[:0])
            if np.shape(rows)[1:] != like.shape[1:]:
                raise ValueError(
                    f"Expected `{name}` of edges with rows of shape {like.shape[1:]} "
                    f"in all edge sets. Received: {np.shape(rows)[1:]} in {key}."
                )
    return {
        name: np.concatenate(
            [
                np.asarray(
                    features.get(name, np.zeros((ends.shape[1], *like.shape[1:]), "i1"))
                )
                for ends, features in parts.values()
            ]
        )
        for name, like in columns.items()
    }


def has_features(table: Mapping[str, np.ndarray]) -> bool:
    """Return whether a node set has features, and not one embedding for all nodes."""
    return [*table] != ["kind"] or bool(table["kind"].any())


def to_sets(graph: Graph) -> dict[str, dict]:
    """Return the arguments of `from_sets` that make this graph.

    Nodes that were dropped are left out, and the others keep their order within their
    set. Labels are those of the nodes, or edges, of sets that have one.

    Args:
        graph: A graph with node sets.

    Returns:
        `{"nodes": ..., "edges": ..., "label": ..., "node": ...}`; the last two only if
        there are labels of nodes or edges, or features beside those of the sets.

    Example:
    >>> graph = from_sets({"a": 2, "b": 1}, {("a", "to", "b"): [[1], [0]]})
    >>> parts = to_sets(graph)
    >>> parts["edges"]["a", "to", "b"]["edge_index"].tolist()
    [[1], [0]]
    """
    instance("graph", graph, Graph, "a Graph")
    if not graph.sets:
        refuse("graph", "a graph with node sets", graph)
    numbers, rows = graph.node["set"], graph.node["set_row"]
    inside = np.zeros(graph.num_nodes, np.int32)
    members = {}
    for number, name in enumerate(graph.sets):
        members[name] = np.flatnonzero(numbers == number)
        inside[members[name]] = np.arange(len(members[name]))
    out: dict[str, dict] = {
        "nodes": {
            name: {k: v[rows[members[name]]] for k, v in table.items()}
            for name, table in graph.sets.items()
        },
        "edges": {},
    }
    places = {}
    for kind, key in enumerate(edge_sets(graph)):
        here = graph.edge_type == kind
        places[key] = np.flatnonzero(here)
        ends = np.stack([inside[graph.senders[here]], inside[graph.receivers[here]]])
        features = {name: values[here] for name, values in graph.edge.items()}
        out["edges"][key] = {"edge_index": ends, **features}
    shared = {k: v for k, v in graph.node.items() if k not in ("set", "set_row")}
    if shared:
        out["node"] = {
            k: {name: v[at] for name, at in members.items()} for k, v in shared.items()
        }
    if graph.label is not None and graph.label_level != "graph":
        at = members if graph.label_level == "node" else places
        labelled = {name: graph.label[rows] for name, rows in at.items()}
        missing = np.isnan if graph.label.dtype.kind == "f" else (lambda v: v < 0)
        some = {k: v for k, v in labelled.items() if not missing(v).all()}
        out["label"] = some or dict(list(labelled.items())[:1])
    return out
