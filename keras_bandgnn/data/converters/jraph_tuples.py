"""Conversion from and to tuples with the fields of `jraph.GraphsTuple`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_bandgnn.arrays import (
    INT32_MAX,
    checked_feature,
    checked_features,
    checked_ids,
)
from keras_bandgnn.checks import having
from keras_bandgnn.data.converters.attributes import (
    label_level_of,
    refuse_names,
    refuse_sets,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import pointers
from keras_bandgnn.graph import Graph

if TYPE_CHECKING:
    import jraph


class GraphsTuple(NamedTuple):
    """Many graphs as NumPy arrays, with the fields of `jraph.GraphsTuple` in order.

    Functions of jraph accept it directly; `jraph.GraphsTuple(*graphs)` converts it.

    Attributes:
        nodes: Node features by name, each [sum of n_node, ...].
        edges: Edge features by name, each [sum of n_edge, ...].
        receivers: int32 [sum of n_edge], node ids over all graphs.
        senders: int32 [sum of n_edge], node ids over all graphs.
        globals: Graph features by name, each [n, ...].
        n_node: int32 [n].
        n_edge: int32 [n].

    Example:
    >>> to_jraph([Graph(2, [0], [1]), Graph(3, [2], [0])]).senders.tolist()
    [0, 4]
    """

    nodes: Any
    edges: Any
    receivers: Any
    senders: Any
    globals: Any
    n_node: Any
    n_edge: Any


def from_jraph(graphs: jraph.GraphsTuple | Sequence[jraph.GraphsTuple]) -> FlatGraphs:
    """Convert a `jraph.GraphsTuple`, or any object with its fields, to flat graphs.

    Dictionaries of features keep their names; a bare array is the feature `"nodes"`,
    `"edges"` or `"globals"`. The edge feature `edge_type` becomes the edge types, and
    `label` in the globals, in the node features or in the edge features becomes the
    label, in which NaN is a value that is not known.

    Args:
        graphs: An object with `nodes`, `edges`, `receivers`, `senders`, `globals`,
            `n_node` and `n_edge`.

    Raises:
        ValueError: If features are nested deeper, lengths disagree, a value does not
            fit into 32 bits, several levels have a label, or a graph is empty, such as
            a padding graph.

    Example:
    >>> flat = from_jraph(GraphsTuple(None, None, [1, 2], [0, 3], None, [2, 2], [1, 1]))
    >>> len(flat), flat.senders.tolist(), flat.receivers.tolist()
    (2, [0, 1], [1, 0])
    """
    having("graphs", graphs, "n_node", "a GraphsTuple of jraph")
    n_node, n_edge = np.asarray(graphs.n_node), np.asarray(graphs.n_edge)
    if n_node.min(initial=1) < 1:
        raise ValueError(
            "Expected every graph to have a node. Received: graph "
            f"{int(n_node.argmin())} without nodes. Remove padding graphs with "
            "jraph.unpad_with_graphs."
        )
    node, edge, context = (
        _named(field, getattr(graphs, field)) for field in ("nodes", "edges", "globals")
    )
    fields = {"graph": context, "node": node, "edge": edge}
    level = label_level_of("features", {k: "label" in v for k, v in fields.items()})
    label = flat_label(fields[level].pop("label", None), level)
    edge_type = edge.pop("edge_type", None)
    if edge_type is not None:
        edge_type = checked_ids("edge_type", edge_type, INT32_MAX, "2**31 - 1")
    if len(graphs.senders) != n_edge.sum() or len(graphs.receivers) != n_edge.sum():
        raise ValueError(
            f"Expected {n_edge.sum()} senders and receivers, the sum of n_edge. "
            f"Received: {len(graphs.senders)} and {len(graphs.receivers)}. "
            "Check n_edge."
        )
    first = np.repeat(pointers(n_node)[:-1], n_edge)
    return FlatGraphs(
        num_nodes=n_node,
        num_edges=n_edge,
        senders=np.asarray(graphs.senders, np.int64) - first,
        receivers=np.asarray(graphs.receivers, np.int64) - first,
        edge_type=edge_type,
        node=checked_features("node", node, int(n_node.sum()), "sum of n_node"),
        edge=checked_features("edge", edge, int(n_edge.sum()), "sum of n_edge"),
        context=checked_features("context", context, len(n_node), "graphs"),
        label=label,
        label_level=level,
    )


def flat_label(label: Any, level: str) -> np.ndarray | None:
    """Check the labels of many graphs; NaN is one that is not known, if of several."""
    if label is None:
        return None
    return checked_feature("label", label, level != "graph" or np.ndim(label) > 1)


def _named(field: str, features: Any) -> dict[str, Any]:
    if features is None:
        return {}
    if not isinstance(features, Mapping):
        return {field: features}
    for name, value in features.items():
        if isinstance(value, Mapping | tuple):
            raise ValueError(
                f"Expected `{field}` to be an array or a dictionary of arrays. "
                f"Received: {type(value).__name__} at {name!r}. Flatten it first."
            )
    return dict(features)


def to_jraph(graphs: Graph | Iterable[Graph]) -> GraphsTuple:
    """Convert one or many graphs to a tuple with the fields of `jraph.GraphsTuple`.

    Features are dictionaries, or None; a single feature `"nodes"`, `"edges"` or
    `"globals"` becomes a bare array. Edge types are `edges["edge_type"]` unless all are
    0, the label is `globals["label"]`, `nodes["label"]` or `edges["label"]`. The edges
    of each graph are sorted by receiver. Candidates, slots and `info` are dropped.

    Args:
        graphs: A graph, `FlatGraphs` or graphs that have the same features.

    Raises:
        ValueError: If graphs disagree in their features, or a feature is called `label`
            or `edge_type`.

    Example:
    >>> to_jraph(Graph(2, [0], [1], node={"x": [1.0, 2.0]})).nodes
    {'x': array([1., 2.], dtype=float32)}
    """
    if isinstance(graphs, Graph):
        graphs = [graphs]
    flat = graphs if isinstance(graphs, FlatGraphs) else FlatGraphs.from_graphs(graphs)
    refuse_sets(flat, "jraph")
    node, edge, context = dict(flat.node), dict(flat.edge), dict(flat.context)
    for level, features in (("node", node), ("edge", edge), ("context", context)):
        reserved = ("label", "edge_type") if level == "edge" else ("label",)
        refuse_names("jraph", level, features, reserved)
    if flat.label is not None:
        levels = {"graph": context, "node": node, "edge": edge}
        levels[flat.label_level]["label"] = flat.label
    if flat.edge_type.any():
        edge["edge_type"] = flat.edge_type
    first = np.repeat(flat.node_ptr[:-1], flat.num_edges).astype(np.int32)
    return GraphsTuple(
        nodes=_field("nodes", node),
        edges=_field("edges", edge),
        receivers=flat.receivers + first,
        senders=flat.senders + first,
        globals=_field("globals", context),
        n_node=flat.num_nodes,
        n_edge=flat.num_edges,
    )


def _field(field: str, features: dict[str, np.ndarray]) -> Any:
    return features[field] if list(features) == [field] else features or None
