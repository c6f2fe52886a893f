"""`Graph`: one graph in NumPy, validated and immutable."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.arrays import (
    INT32_MAX,
    checked_feature,
    checked_features,
    checked_ids,
    checked_sets,
    frozen,
    narrowed,
)
from keras_bandgnn.checks import mapping, optional, refuse

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from keras_bandgnn.aliases import Arrays, Labels, MaybeNone, Values

LABEL_LEVELS = ("graph", "node", "edge")
"""What labels may belong to."""
EdgeSet = tuple[str, str, str]
"""Source set, relation and target set."""
EDGE_SETS = "edge_sets"
"""Entry of `Graph.info` with the names of edge sets, in the order of edge types."""


class Graph:
    """One graph: nodes, typed directed edges, features, candidates and a label.

    A message goes from `senders[e]` to `receivers[e]`. Self-loops, parallel edges and
    graphs without edges are allowed. Arrays are stored as read-only int32 or float32
    (N nodes, E edges). Times of nodes and edges are int64 features of the reserved name
    `time`, in any one unit; batches do not have them.

    Args:
        num_nodes: Number of nodes N, at least 1.
        senders: int [E], source node of each edge.
        receivers: int [E], target node of each edge.
        edge_type: int [E], type of each edge; all 0 if omitted.
        node: Node features by name, each with shape [N, ...].
        edge: Edge features by name, each with shape [E, ...].
        context: Graph-level features by name, with any shape.
        candidates: int [C], ids of the nodes to choose from (`NodeSelector`).
        label: With candidates, the position of the correct one in `candidates`.
            Otherwise the target: a number or vector for the graph, or an array
            [N, ...] for the nodes or [E, ...] for the edges. In vectors and arrays
            NaN is a label that is not known, if there are several: a single one is a
            class of -1, or `[nan]`.
        label_level: `"graph"`, `"node"` or `"edge"`, the level of `label`.
        slot: Id, from 0, of the node to be filled by one of the candidates.
        info: Free-form JSON metadata, such as the source file.
        origin: int [N], id of each node in the original graph. Set by preprocessing
            layers that drop or reorder nodes.
        sets: Features of nodes of different kinds, a table for each node set:
            set -> {feature: [rows, ...]}. Node n has the row `node["set_row"][n]` of
            set number `node["set"][n]`, where sets are numbered in the order of their
            names. `keras_bandgnn.data.from_sets` makes such graphs.

    Raises:
        ValueError: For wrong shapes, ids out of range, NaN or ragged features.

    Example:
    >>> graph = Graph(3, senders=[0, 1], receivers=[1, 2], node={"type": [5, 6, 7]})
    >>> graph.num_edges, graph.bandwidth
    (2, 1)
    """

    __slots__ = (
        "num_nodes",
        "senders",
        "receivers",
        "edge_type",
        "node",
        "edge",
        "context",
        "candidates",
        "label",
        "label_level",
        "slot",
        "info",
        "origin",
        "sets",
    )
    num_nodes: int
    senders: np.ndarray
    receivers: np.ndarray
    edge_type: np.ndarray
    node: Mapping[str, np.ndarray]
    edge: Mapping[str, np.ndarray]
    context: Mapping[str, np.ndarray]
    candidates: np.ndarray | MaybeNone
    label: np.ndarray | MaybeNone
    label_level: str
    slot: int | None
    info: Values
    origin: np.ndarray | MaybeNone
    sets: Mapping[str, Mapping[str, np.ndarray]]

    def __init__(
        self,
        num_nodes: int,
        senders: ArrayLike,
        receivers: ArrayLike,
        edge_type: ArrayLike | None = None,
        node: Arrays | None = None,
        edge: Arrays | None = None,
        context: Arrays | None = None,
        candidates: ArrayLike | None = None,
        label: Labels = None,
        label_level: str = "graph",
        slot: int | None = None,
        info: Values | None = None,
        origin: ArrayLike | None = None,
        sets: Mapping[str, Arrays] | None = None,
    ):
        if isinstance(num_nodes, bool) or not isinstance(num_nodes, int | np.integer):
            refuse("num_nodes", "an integer", num_nodes)
        if not 1 <= num_nodes <= INT32_MAX:
            raise ValueError(
                "Expected `num_nodes` to be at least 1 (and to fit into int32). "
                f"Received: num_nodes={num_nodes}. Remove empty graphs."
            )
        num_nodes = int(num_nodes)
        senders = checked_ids("senders", senders, num_nodes, "num_nodes")
        receivers = checked_ids("receivers", receivers, num_nodes, "num_nodes")
        if senders.shape != receivers.shape:
            raise ValueError(
                "Expected as many senders as receivers. Received: "
                f"{senders.shape[0]} senders, {receivers.shape[0]} receivers."
            )
        num_edges = senders.shape[0]
        if edge_type is None:
            edge_type = np.zeros(num_edges, np.int32)
        edge_type = checked_ids("edge_type", edge_type, INT32_MAX, "2**31 - 1")
        if edge_type.shape[0] != num_edges:
            raise ValueError(
                "Expected one edge type per edge. Received: "
                f"{edge_type.shape[0]} types, {num_edges} edges."
            )
        if candidates is not None:
            candidates = checked_ids("candidates", candidates, num_nodes, "num_nodes")
            if candidates.size == 0:
                raise ValueError(
                    "Expected at least one candidate. Received: candidates=[]. "
                    "Pass candidates=None for a graph without candidates."
                )
        if label_level not in LABEL_LEVELS:
            refuse("label_level", "'graph', 'node' or 'edge'", label_level)
        if label is not None:
            label = self._check_label(label, candidates, label_level)
        if label is not None and label_level != "graph":
            rows = num_nodes if label_level == "node" else num_edges
            if label.ndim == 0 or label.shape[0] != rows:
                raise ValueError(
                    f"Expected `label` to have one row per {label_level} with "
                    f"label_level={label_level!r}, num_{label_level}s={rows}. "
                    f"Received: shape {label.shape}."
                )
        if slot is not None:
            slot = int(checked_ids("slot", [slot], num_nodes, "num_nodes")[0])
        if origin is not None:
            origin = checked_ids("origin", origin, INT32_MAX, "2**31 - 1")
            if origin.shape[0] != num_nodes:
                raise ValueError(
                    "Expected one origin per node. Received: "
                    f"{origin.shape[0]} origins, {num_nodes} nodes."
                )
        node = checked_features("node", node, num_nodes, "num_nodes")
        self._set(
            num_nodes=num_nodes,
            senders=senders,
            receivers=receivers,
            edge_type=edge_type,
            node=node,
            edge=checked_features("edge", edge, num_edges, "num_edges"),
            context=checked_features("context", context, None, ""),
            candidates=candidates,
            label=label,
            label_level=label_level,
            slot=slot,
            info=MappingProxyType(dict(optional(mapping, "info", info) or {})),
            origin=origin,
            sets=checked_sets(sets, node),
        )

    @staticmethod
    def _check_label(
        label: Any, candidates: np.ndarray | None, level: str
    ) -> np.ndarray:
        if candidates is None:
            # A graph whose only label is missing has none.
            vector = isinstance(label, list | tuple) or getattr(label, "ndim", 0) > 0
            missing = vector or level != "graph"
            if not missing and np.asarray(label).dtype.kind == "f" and np.isnan(label):
                raise ValueError(
                    "Expected `label` to be a known number. Received: label=nan. "
                    "Write -1 for an unknown class, [nan] for an unknown number, and "
                    "lists of one number in the other graphs; or leave the graph out."
                )
            return frozen(narrowed("label", label, missing, share=False))
        array = checked_feature("label", label)
        if (
            array.ndim
            or array.dtype.kind not in "iu"
            or not 0 <= array < len(candidates)
        ):
            raise ValueError(
                "Expected `label` to be the position of the correct candidate, an "
                f"integer in [0, {len(candidates)}). Received: label={label!r}. "
                "If the label is a node id, pass its index in `candidates`."
            )
        return frozen(array.astype(np.int32))

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"Graph is immutable; cannot set {name!r}. Use graph.replace({name}=...)."
        )

    def __reduce__(self):
        return _rebuild, (self._fields(),)

    def _fields(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__}
        for name in ("node", "edge", "context", "info"):
            plain[name] = dict(plain[name])
        plain["sets"] = {name: dict(table) for name, table in self.sets.items()}
        return plain

    @classmethod
    def unchecked(cls, **fields: object) -> Graph:
        """Build a graph from valid fields, without checks."""
        graph = object.__new__(cls)
        for name in ("node", "edge", "context", "info", "sets"):
            fields[name] = MappingProxyType(dict(fields.get(name) or {}))
        for name in ("candidates", "label", "slot", "origin"):
            fields.setdefault(name, None)
        fields.setdefault("label_level", "graph")
        graph._set(**fields)
        return graph

    def replace(self, **changes: object) -> Graph:
        """Return a copy with some fields changed; validate the result."""
        fields = {**self._fields(), **changes}
        changed = {"label", "label_level", "candidates"} & set(changes)
        if changed or self.label_level != "graph" or self.candidates is not None:
            return Graph(**fields)
        # Among labels of `fit` that of a graph may be missing, which a new graph's may
        # not: the label stays as it is.
        graph = Graph(**{**fields, "label": None})
        graph._set(label=self.label)
        return graph

    @property
    def num_edges(self) -> int:
        """Number of edges E."""
        return self.senders.shape[0]

    @property
    def bandwidth(self) -> int:
        """Largest |sender - receiver| over the edges; 0 without edges."""
        if not self.num_edges:
            return 0
        return int(np.abs(self.senders - self.receivers).max())

    @property
    def num_edge_types(self) -> int:
        """The largest edge type plus 1; at least 1."""
        return int(self.edge_type.max()) + 1 if self.num_edges else 1

    def subgraph(self, nodes: ArrayLike) -> Graph:
        """Return the subgraph induced by `nodes`, in this order.

        Node `nodes[k]` becomes node k. Features, candidates, the slot and labels of
        nodes and edges are mapped accordingly; edges keep their order. A permutation
        reorders the graph.

        Args:
            nodes: int [M], distinct node ids.

        Raises:
            ValueError: If ids repeat, or a candidate or the slot is missing.
        """
        nodes = checked_ids("nodes", nodes, self.num_nodes, "num_nodes")
        rank = np.full(self.num_nodes, -1, np.int32)
        rank[nodes] = np.arange(nodes.size, dtype=np.int32)
        if np.count_nonzero(rank >= 0) != nodes.size or not nodes.size:
            raise ValueError(
                "Expected `nodes` to be distinct ids, at least one. "
                f"Received: {nodes.size} ids, {np.count_nonzero(rank >= 0)} distinct."
            )
        slot = None if self.slot is None else int(rank[self.slot])
        candidates = None if self.candidates is None else rank[self.candidates]
        ranks = [] if candidates is None else candidates.tolist()
        if min([*ranks, 0 if slot is None else slot, 0]) < 0:
            raise ValueError(
                "Expected `nodes` to keep the slot and every candidate. "
                "Received: nodes without some of them."
            )
        keep = slice(None)
        senders, receivers = rank[self.senders], rank[self.receivers]
        if nodes.size < self.num_nodes:
            keep = np.flatnonzero((senders >= 0) & (receivers >= 0))
        label = self.label
        if label is not None and self.label_level != "graph":
            label = frozen(label[nodes if self.label_level == "node" else keep])
        return Graph.unchecked(
            num_nodes=nodes.size,
            senders=frozen(senders[keep]),
            receivers=frozen(receivers[keep]),
            edge_type=frozen(self.edge_type[keep]),
            node={k: frozen(v[nodes]) for k, v in self.node.items()},
            edge={k: frozen(v[keep]) for k, v in self.edge.items()},
            context=self.context,
            candidates=None if candidates is None else frozen(candidates),
            label=label,
            label_level=self.label_level,
            slot=slot,
            info=self.info,
            origin=nodes if self.origin is None else frozen(self.origin[nodes]),
            sets=self.sets,
        )

    def __repr__(self) -> str:
        parts = [f"num_nodes={self.num_nodes}", f"num_edges={self.num_edges}"]
        for name in ("node", "edge", "context"):
            if fields := getattr(self, name):
                shapes = ", ".join(f"{k}: {list(v.shape)}" for k, v in fields.items())
                parts.append(f"{name}={{{shapes}}}")
        if self.sets:
            parts.append(f"sets={sorted(self.sets)}")
        if self.candidates is not None:
            parts.append(f"candidates={len(self.candidates)}")
        if self.label is not None:
            parts.append(f"label={self.label.tolist()!r:.40}")
        return f"Graph({', '.join(parts)})"


def _rebuild(fields: dict[str, Any]) -> Graph:
    # NumPy's copies, including unpickled ones, are writable.
    fields = dict(fields)
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            fields[name] = frozen(value)
        elif name in ("node", "edge", "context"):
            fields[name] = {key: frozen(array) for key, array in value.items()}
        elif name == "sets":
            fields[name] = {
                key: MappingProxyType({k: frozen(v) for k, v in table.items()})
                for key, table in value.items()
            }
    return Graph.unchecked(**fields)


def edge_sets(graph: Graph) -> list[EdgeSet]:
    """Return the names of the edge sets of a graph, in the order of edge types.

    Raises:
        ValueError: If the graph has no names of edge sets.
    """
    names = graph.info.get(EDGE_SETS)
    if names is None:
        refuse("graph", "a graph of `from_sets`, with info['edge_sets']", graph)
    return [tuple(key) for key in names]
