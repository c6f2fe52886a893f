"""Conversion from and to the graphs of TF-GNN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.arrays import checked_ids, integers
from keras_bandgnn.checks import boolean, instance, mapping, refuse, sequence
from keras_bandgnn.data.converters.attributes import as_numpy, is_mask
from keras_bandgnn.data.converters.graph_schema import (
    Schema,
    checked_schema,
    is_float,
    read_graph_schema,
)
from keras_bandgnn.data.converters.node_sets import from_sets, has_features, to_sets
from keras_bandgnn.graph import Graph

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, FilePath, Item

_RAGGED = (
    "Pool its values to one row of fixed length, pad them, or leave the feature out of "
    "the schema."
)


def from_graph_tensor(
    tensor: Item,
    schema: Config | FilePath | None = None,
    *,
    label: tuple[str, ...] | None = None,
    reverse: bool = False,
) -> Graph | list[Graph]:
    """Convert a graph of TF-GNN to a graph with node sets.

    The tensor is a `GraphTensor`, or a dict of its pieces: `{"context": {"features":
    ...}, "node_sets": {set: {"sizes": [n], "features": ...}}, "edge_sets": {set:
    {"sizes": [m], "adjacency": {"source": (set, ids), "target": (set, ids)},
    "features": ...}}}`. With a schema it may also be a `tf.train.Example`, or a dict of
    its features, such as `nodes/author.#size`, `nodes/author.age`,
    `edges/writes.#source` and `context/year`. tensorflow_gnn need not be installed.

    The edge set `writes` from `author` to `paper` becomes `("author", "writes",
    "paper")`. Masks such as `train_mask` are features of all nodes. Features whose
    names start with `#`, which TF-GNN reserves, and auxiliary sets, whose names start
    with `_`, are left out.

    Args:
        tensor: A `GraphTensor`, its pieces, an `Example`, or a dict of its features.
        schema: The sets and features to read: what `read_graph_schema` returns, or the
            path or text that it reads. All if omitted.
        label: The feature that is the label: `("node", set, feature)` or `("context",
            feature)`.
        reverse: See `from_sets`.

    Returns:
        A graph; a list of graphs if the tensor has several components.

    Raises:
        ValueError: If a piece is missing or does not fit, or a feature is ragged.

    Example:
    >>> buys = {"source": ("user", [0, 1]), "target": ("item", [2, 0])}
    >>> tensor = {
    ...     "node_sets": {
    ...         "user": {"sizes": [2], "features": {"age": [31.0, 64.0]}},
    ...         "item": {"sizes": [3]},
    ...     },
    ...     "edge_sets": {"buys": {"sizes": [2], "adjacency": buys}},
    ... }
    >>> graph = from_graph_tensor(tensor)
    >>> graph.num_nodes, graph.info["edge_sets"]
    (5, [['user', 'buys', 'item']])
    """
    boolean("reverse", reverse)
    parts = _arguments(tensor, schema, label)
    graphs = [from_sets(**part, reverse=reverse) for part in parts]
    return graphs[0] if len(graphs) == 1 else graphs


def graph_tensor_tables(
    tensor: Item,
    schema: Config | FilePath | None = None,
    *,
    label: tuple[str, ...] | None = None,
) -> list[Config]:
    """Return the tables of a graph of TF-GNN, for a `NodeSetEncoder`.

    They are those of `from_graph_tensor`, but features may also be strings: the encoder
    learns them, and its presets read the tables of new tensors.

    Args:
        tensor: See `from_graph_tensor`.
        schema: See `from_graph_tensor`.
        label: See `from_graph_tensor`.

    Returns:
        A dict of the arguments of `from_sets` for each component, items of the encoder.

    Raises:
        ValueError: As for `from_graph_tensor`.

    Example:
    >>> buys = {"source": ("user", [0, 1]), "target": ("item", [2, 0])}
    >>> tensor = {
    ...     "node_sets": {
    ...         "user": {"sizes": [2], "features": {"town": [b"Bonn", b"Ulm"]}},
    ...         "item": {"sizes": [3]},
    ...     },
    ...     "edge_sets": {"buys": {"sizes": [2], "adjacency": buys}},
    ... }
    >>> (item,) = graph_tensor_tables(tensor)
    >>> item["nodes"]
    {'user': {'town': ['Bonn', 'Ulm']}, 'item': 3}
    """
    return _arguments(tensor, schema, label, text=True)


def _arguments(
    tensor: Any, schema: Any, label: Any, text: bool = False
) -> list[dict[str, Any]]:
    """Return the arguments of `from_sets` of each component."""
    label = _checked_label(label)
    if schema is not None:
        read = not isinstance(schema, Mapping)
        schema = read_graph_schema(schema) if read else checked_schema(schema)
    pieces = _pieces(tensor, schema)
    nodes, edges = (
        {
            name: _Piece(
                f"{kind} set {name!r}",
                piece,
                schema and schema[f"{kind}_sets"][name],
                text,
            )
            for name, piece in _sets(f"{kind}_sets", pieces, schema)
        }
        for kind in ("node", "edge")
    )
    counts = {p.what: len(p.sizes) for p in (*nodes.values(), *edges.values())}
    if len(set(counts.values())) != 1:
        refuse("tensor", "node sets with as many sizes as there are components", counts)
    (count,) = set(counts.values())
    context = {"sizes": [1] * count, **(pieces.get("context") or {})}
    context = _Piece("the context", context, schema and schema["context"])
    adjacency = {name: _adjacency(piece, nodes) for name, piece in edges.items()}
    parts = []
    for k in range(count):
        part = {
            "nodes": {name: piece.rows(k) for name, piece in nodes.items()},
            "edges": {
                (source, name, target): {
                    "edge_index": _ends(edges[name], adjacency[name], nodes, k),
                    **edges[name].rows(k),
                }
                for name, (source, target, _) in adjacency.items()
            },
            "context": {name: rows[0] for name, rows in context.rows(k).items()},
        }
        parts.append(_with_label(part, nodes, label, k))
    return parts


class _Piece:
    """A context, node set or edge set: sizes of components, and features.

    Args:
        what: Name for errors.
        piece: `{"sizes": ..., "features": ...}`.
        schema: The features to read; all if None.
        text: Whether features may be strings.
    """

    def __init__(
        self, what: str, piece: Any, schema: Mapping | None, text: bool = False
    ):
        self.what, self.piece, self.text = what, mapping(what, piece), text
        if "sizes" not in piece:
            refuse(what, "a dict with `sizes`", sorted(piece))
        sizes = piece["sizes"]
        if np.ndim(as_numpy(sizes)) > 1:
            advice = "Call merge_batch_to_components() first."
            refuse(f"sizes of {what}", "a list, [n]", sizes, advice)
        self.sizes = integers(f"sizes of {what}", as_numpy(sizes))
        if not self.sizes.size or self.sizes.min() < 0:
            refuse(f"sizes of {what}", "numbers of at least 0, such as [n]", sizes)
        self.first = np.cumsum(self.sizes) - self.sizes
        self.total = int(self.sizes.sum())
        features = mapping(f"features of {what}", piece.get("features") or {})
        names = schema["features"] if schema else features
        self.features = {
            name: self._feature(name, features, schema)
            for name in names
            if not name.startswith("#")
        }

    def _feature(self, name: str, features: Mapping, schema: Mapping | None):
        """Return a feature as an array [total, ...]."""
        what = f"feature {name!r} of {self.what}"
        feature = schema["features"][name] if schema else None
        values = features.get(name)
        if feature is not None and -1 in feature["shape"]:
            refuse(what, "of a fixed shape", feature["shape"], _RAGGED)
        if values is None and not self.total:
            values = np.zeros(0, np.float32 if is_float(feature) else np.int32)
        if hasattr(values, "nested_row_splits"):
            refuse(what, "of a fixed shape", values, _RAGGED)
        if hasattr(values, "dense_shape"):  # a SparseTensor, of VarLenFeature
            values = values.values
        array = as_numpy(values)
        if not isinstance(array, np.ndarray):
            return self._strings(what, values)
        if feature is None:
            shape = array.shape[1:]
        else:
            shape = tuple(feature["shape"])
            array = array.astype(np.float32) if is_float(feature) else array
        expected = (self.total, *shape)
        if array.size != np.prod(expected, dtype=int) or (
            array.ndim != 1 and array.shape != expected
        ):
            refuse(what, f"of shape {list(expected)}", array)
        return array.reshape(expected)

    def _strings(self, what: str, values: Any) -> list[str]:
        """Return a feature of strings as a list."""
        array = np.asarray(values, object)
        is_text = all(isinstance(value, str | bytes) for value in array.reshape(-1))
        if not is_text or not array.size:
            refuse(what, "numbers of one shape", values, _RAGGED)
        if not self.text:
            advice = "Read strings by `graph_tensor_tables` and a NodeSetEncoder."
            refuse(what, "numbers of one shape", values, advice)
        if array.shape != (self.total,):
            refuse(what, f"of shape {[self.total]}", values)
        return [text.decode() if isinstance(text, bytes) else text for text in array]

    def rows(self, component: int) -> dict[str, np.ndarray]:
        """Return the features of a component."""
        first = self.first[component]
        last = first + self.sizes[component]
        return {name: rows[first:last] for name, rows in self.features.items()}


def _with_label(
    arguments: dict[str, Any],
    nodes: Mapping[str, _Piece],
    label: tuple[str, ...] | None,
    component: int,
) -> dict[str, Any]:
    """Return the arguments of `from_sets` of a component, with label and masks."""
    tables, context = arguments["nodes"], arguments["context"]
    arguments["node"] = {}
    if label is not None:
        level, *path = label
        table = context if level == "context" else tables.get(path[0], {})
        if path[-1] not in table:
            expected = "a feature of the context, or of a node set"
            refuse("label", expected, label, f"There are {sorted(table)}.")
        rows = table.pop(path[-1])
        arguments["label"] = rows if level == "context" else {path[0]: rows}
    for name, table in tables.items():
        for key in [key for key in table if is_mask(key, nodes[name].features[key])]:
            rows = table.pop(key).astype(np.int32)
            arguments["node"].setdefault(key, {})[name] = rows
        tables[name] = table or int(nodes[name].sizes[component])
    return arguments


def _checked_label(label: Any) -> tuple[str, ...] | None:
    if label is None:
        return None
    expected = '("node", set, feature) or ("context", feature)'
    path = tuple(sequence("label", label, expected))
    sizes = {"node": 3, "context": 2}
    names = all(isinstance(name, str) and name for name in path)
    if not names or not path or sizes.get(path[0]) != len(path):
        refuse("label", expected, label)
    return path


def _sets(kind: str, pieces: Mapping, schema: Schema | None) -> list[tuple[str, Any]]:
    """Return the names and pieces of the node sets or edge sets to read."""
    sets = mapping(kind, pieces.get(kind) or {})
    names = [n for n in (schema[kind] if schema else sets) if not n.startswith("_")]
    if missing := sorted(set(names) - set(sets)):
        refuse(kind, f"a dict with the sets of the schema, {names}", missing)
    return [(name, sets[name]) for name in names]


def _adjacency(
    piece: _Piece, nodes: Mapping[str, _Piece]
) -> tuple[str, str, np.ndarray]:
    """Return the source set, the target set and the ends of edges, int [2, E]."""
    adjacency = mapping(f"{piece.what}", piece.piece).get("adjacency")
    adjacency = mapping(f"adjacency of {piece.what}", adjacency)
    names, ends = [], []
    for end in ("source", "target"):
        what = f"{end} of {piece.what}"
        pair = sequence(what, adjacency.get(end), "a pair (node set, ids)")
        if len(pair) != 2 or not isinstance(pair[0], str):
            refuse(what, "a pair (node set, ids)", adjacency.get(end))
        name, ids = pair
        if name not in nodes:
            refuse(what, f"in one of the node sets {sorted(nodes)}", name)
        ids = ids.values if hasattr(ids, "dense_shape") else ids
        ids = checked_ids(what, as_numpy(ids), nodes[name].total, f"nodes of {name!r}")
        if len(ids) != piece.total:
            refuse(what, f"ids of {piece.total} nodes, one for each edge", ids)
        names.append(name)
        ends.append(ids)
    return *names, np.stack(ends)


def _ends(
    piece: _Piece, adjacency: tuple, nodes: Mapping[str, _Piece], component: int
) -> np.ndarray:
    """Return the ends of the edges of a component, int [2, E], within its sets."""
    source, target, ends = adjacency
    first = piece.first[component]
    ends = ends[:, first : first + piece.sizes[component]]
    out = []
    for name, ids in zip((source, target), ends, strict=True):
        ids = ids - nodes[name].first[component]
        size = int(nodes[name].sizes[component])
        what = f"component {component} of {piece.what}"
        out.append(checked_ids(what, ids, size, f"nodes of {name!r} there"))
    return np.stack(out)


# === Forms of a tensor ===


def _pieces(tensor: Any, schema: Schema | None) -> Mapping[str, Any]:
    """Return a dict of pieces."""
    if hasattr(tensor, "node_sets") and hasattr(tensor, "edge_sets"):
        return _pieces_of_object(tensor)
    if hasattr(getattr(tensor, "features", None), "feature"):
        features = tensor.features.feature
        lists = {key: features[key] for key in features}
        tensor = {
            key: list(getattr(value, value.WhichOneof("kind")).value)
            for key, value in lists.items()
            if value.WhichOneof("kind")
        }
    elif not isinstance(tensor, Mapping) or not tensor:
        refuse("tensor", "a GraphTensor, an Example, or a dict of their parts", tensor)
    if "node_sets" in mapping("tensor", tensor):
        return tensor
    if not any(key.startswith(("nodes/", "edges/", "context/")) for key in tensor):
        expected = "a dict with `node_sets`, or with names such as 'nodes/author.#size'"
        refuse("tensor", expected, sorted(tensor))
    if schema is None:
        refuse("schema", "the schema, which an Example lacks", schema)
    return _pieces_of_example(tensor, schema)


def _pieces_of_object(tensor: Any) -> dict[str, Any]:
    """Return the pieces of a `GraphTensor`."""
    nodes = {
        name: {"sizes": piece.sizes, "features": dict(piece.features)}
        for name, piece in tensor.node_sets.items()
    }
    edges = {}
    for name, piece in tensor.edge_sets.items():
        link = piece.adjacency
        edges[name] = {
            "sizes": piece.sizes,
            "features": dict(piece.features),
            "adjacency": {
                "source": (link.source_name, link.source),
                "target": (link.target_name, link.target),
            },
        }
    context = {"features": dict(tensor.context.features)}
    return {"context": context, "node_sets": nodes, "edge_sets": edges}


def _pieces_of_example(features: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the pieces of the features of a `tf.train.Example`."""

    def piece(prefix: str, spec: Mapping) -> dict[str, Any]:
        values = {name: features.get(prefix + name) for name in spec["features"]}
        sizes = features.get(f"{prefix}#size", [0])
        sizes = sizes.values if hasattr(sizes, "dense_shape") else sizes
        return {"sizes": sizes if len(sizes) else [0], "features": values}

    nodes = {
        name: piece(f"nodes/{name}.", spec)
        for name, spec in schema["node_sets"].items()
    }
    edges = {}
    for name, spec in schema["edge_sets"].items():
        prefix = f"edges/{name}."
        adjacency = {
            end: (spec[end], features.get(f"{prefix}#{end}", []))
            for end in ("source", "target")
        }
        edges[name] = {**piece(prefix, spec), "adjacency": adjacency}
    names = schema["context"]["features"]
    context = {name: features.get(f"context/{name}") for name in names}
    return {"context": {"features": context}, "node_sets": nodes, "edge_sets": edges}


def to_graph_tensor(graph: Graph) -> dict[str, dict]:
    """Convert a graph with node sets to the pieces of a `GraphTensor`.

    Labels and masks become features. An edge set is named after its relation, or
    `<source>_<relation>_<target>` if several edge sets have the same one. `info` is
    left out, except for the names of edge sets.

    Args:
        graph: A graph with node sets.

    Returns:
        Pieces as `from_graph_tensor` takes them, with one component and NumPy arrays.
        The label is the feature `label`, of its node set or of the context.

    Raises:
        ValueError: If a feature is called `label`, or edges have labels.

    Example:
    >>> from keras_bandgnn.data import from_sets
    >>> graph = from_sets({"a": 2, "b": 1}, {("a", "to", "b"): [[1], [0]]})
    >>> to_graph_tensor(graph)["edge_sets"]["to"]["adjacency"]["source"]
    ('a', array([1], dtype=int32))
    """
    instance("graph", graph, Graph, "a Graph")
    if graph.label is not None and graph.label_level == "edge":
        refuse("graph", "a graph without labels of edges", graph)
    parts = to_sets(graph)
    nodes, edges = {}, {}
    for name, table in parts["nodes"].items():
        size = len(next(iter(table.values())))
        table = dict(table) if has_features(table) else {}
        for key, values in parts.get("node", {}).items():
            _put(table, key, values[name])
        if name in parts.get("label", {}):
            _put(table, "label", parts["label"][name])
        nodes[name] = {"sizes": np.array([size], np.int32), "features": table}
    relations = [relation for _, relation, _ in parts["edges"]]
    for (source, relation, target), columns in parts["edges"].items():
        features = dict(columns)
        senders, receivers = features.pop("edge_index")
        single = relations.count(relation) == 1
        name = relation if single else f"{source}_{relation}_{target}"
        if name in edges:
            refuse("graph", "a graph whose edge sets have different names", name)
        edges[name] = {
            "sizes": np.array([len(senders)], np.int32),
            "adjacency": {"source": (source, senders), "target": (target, receivers)},
            "features": features,
        }
    context = {name: value[None] for name, value in graph.context.items()}
    if graph.label is not None and graph.label_level == "graph":
        _put(context, "label", graph.label[None])
    return {"context": {"features": context}, "node_sets": nodes, "edge_sets": edges}


def _put(features: dict[str, np.ndarray], name: str, values: np.ndarray) -> None:
    if name in features:
        refuse("graph", f"a graph with one feature {name!r} of a node", features)
    features[name] = values
