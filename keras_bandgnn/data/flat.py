"""`FlatGraphs`: many graphs as flat arrays, the input format of batching."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.arrays import check_feature_name, check_set_name
from keras_bandgnn.checks import instance, mapping, optional, refuse, sequence
from keras_bandgnn.data.flat_columns import (
    COUNTS,
    EDGE_COLUMNS,
    SET_ROWS,
    SETS,
    JsonInfo,
    check_columns,
    check_index,
    check_indices,
    check_same_spec,
    level_of,
    pointers,
    set_sizes,
    sorted_by_receiver,
    spec_of,
    to_32_bit,
)
from keras_bandgnn.data.flat_columns import gather_rows as gather_rows
from keras_bandgnn.graph import EDGE_SETS, LABEL_LEVELS, Graph

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from keras_bandgnn.aliases import Arrays, Config, Labels, MaybeNone


def _graph_columns(graph: Graph) -> dict[str, np.ndarray]:
    """Return a graph's optional columns; per-graph ones with a leading axis of 1."""
    columns = {f"node/{k}": v for k, v in graph.node.items()}
    columns |= {f"edge/{k}": v for k, v in graph.edge.items()}
    columns |= {f"context/{k}": v[None] for k, v in graph.context.items()}
    for name, table in graph.sets.items():
        columns |= {f"{SETS}/{name}/{k}": v for k, v in table.items()}
    if graph.candidates is not None:
        columns["candidates"] = graph.candidates
    if graph.origin is not None:
        columns["origin"] = graph.origin
    if graph.label is not None:
        label = graph.label[None] if graph.label_level == "graph" else graph.label
        columns[f"label/{graph.label_level}"] = label
    return columns


def _unify_labels(tables: Sequence[dict[str, np.ndarray]]) -> None:
    """Make integer labels float32 if labels of other graphs are missing, NaN."""
    name = next((k for k in tables[0] if k.startswith("label/")), "") if tables else ""
    labels = [columns[name] for columns in tables if name in columns]
    mixed = len({label.dtype for label in labels}) > 1
    if mixed and any(np.isnan(label).any() for label in labels):
        for columns in tables:
            if name in columns:
                columns[name] = columns[name].astype(np.float32)


def _check_edge_sets(graphs: Sequence[Graph]) -> None:
    """Raise a ValueError if types of edges mean other edge sets in some graphs."""
    expected = graphs[0].info.get(EDGE_SETS)
    for index, graph in enumerate(graphs):
        if graph.info.get(EDGE_SETS) != expected:
            raise ValueError(
                f"Expected the edge sets of graph 0 in all graphs, {expected}, as they "
                f"number the types of edges. Received: {graph.info.get(EDGE_SETS)} in "
                f"graph {index}. Give edge sets without edges, too: np.zeros((2, 0), "
                "int)."
            )


class FlatGraphs(Sequence[Graph]):
    """Many graphs as flat arrays, without an object per graph.

    Graph i has the rows `[ptr[i], ptr[i + 1])` of the flat arrays of each level, where
    `ptr` is `node_ptr`, `edge_ptr` or `candidate_ptr`. Node ids are local to each
    graph. The edges of a graph are sorted by receiver; the constructor sorts them
    (stably, with their features) if necessary. Indexing returns a `Graph` of read-only
    views. The features `time` of nodes and edges are int64.

    Args:
        num_nodes: int32 [n], nodes of each graph.
        num_edges: int32 [n], edges of each graph.
        senders: int32 [sum of num_edges].
        receivers: int32 [sum of num_edges].
        edge_type: int32 [sum of num_edges]; all 0 if omitted.
        node: Node features by name, [sum of num_nodes, ...].
        edge: Edge features by name, [sum of num_edges, ...].
        context: Graph-level features by name, [n, ...].
        candidates: int32 [sum of num_candidates], node ids.
        num_candidates: int32 [n]; required with `candidates`.
        label: [n, ...] with label_level `"graph"`, [sum of num_nodes, ...] with
            `"node"`, [sum of num_edges, ...] with `"edge"`.
        label_level: `"graph"`, `"node"` or `"edge"`.
        slot: int32 [n], id of the slot node, -1 for none.
        origin: int32 [sum of num_nodes], ids of the nodes before preprocessing.
        info: Free-form metadata of each graph, a list of mappings.
        sets: Features of node sets by set and name, [sum of rows, ...]; see `Graph`.
        set_rows: Node set -> int32 [n], rows of each graph; required with `sets`.

    Raises:
        ValueError: If lengths disagree, an id is not a node of its graph, a value is
            NaN (except in labels, where NaN means missing), infinite or too large for
            32 bits, or a graph has no nodes.

    The constructor makes the checks of `Graph` once, over all graphs together: about
    0.01 s per million edges including the sorting.

    Example:
    >>> flat = FlatGraphs.from_graphs([Graph(2, [0], [1]), Graph(3, [1, 2], [0, 1])])
    >>> len(flat), flat.node_ptr.tolist(), flat.take([1])[0].num_nodes
    (2, [0, 2, 5], 3)
    """

    num_nodes: np.ndarray
    num_edges: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    edge_type: np.ndarray
    node: Mapping[str, np.ndarray]
    edge: Mapping[str, np.ndarray]
    context: Mapping[str, np.ndarray]
    candidates: np.ndarray | MaybeNone
    label: np.ndarray | MaybeNone
    slot: np.ndarray
    origin: np.ndarray | MaybeNone
    # Of compiled graphs.
    metadata: Config

    def __init__(
        self,
        num_nodes: ArrayLike,
        num_edges: ArrayLike,
        senders: ArrayLike,
        receivers: ArrayLike,
        edge_type: ArrayLike | None = None,
        node: Arrays | None = None,
        edge: Arrays | None = None,
        context: Arrays | None = None,
        candidates: ArrayLike | None = None,
        num_candidates: ArrayLike | None = None,
        label: Labels = None,
        label_level: str = "graph",
        slot: ArrayLike | None = None,
        origin: ArrayLike | None = None,
        info: Sequence[Mapping] | None = None,
        sets: Mapping[str, Arrays] | None = None,
        set_rows: Arrays | None = None,
    ):
        if label_level not in LABEL_LEVELS:
            refuse("label_level", "'graph', 'node' or 'edge'", label_level)
        num_nodes = to_32_bit("num_nodes", num_nodes)
        senders = to_32_bit("senders", senders)
        if edge_type is None:
            edge_type = np.zeros(len(senders), np.int32)
        if info is not None:
            for number, entry in enumerate(instance("info", info, Sequence, "a list")):
                instance(f"info[{number}]", entry, Mapping, "a dict")
        columns = {"num_nodes": num_nodes, "num_edges": num_edges}
        columns |= dict(zip(EDGE_COLUMNS, (senders, receivers, edge_type), strict=True))
        for kind, features in (("node", node), ("edge", edge), ("context", context)):
            features = optional(instance, kind, features, Mapping, "a dict") or {}
            for name, values in features.items():
                check_feature_name(kind, name)
                columns[f"{kind}/{name}"] = values
        for name, features in (optional(mapping, "sets", sets) or {}).items():
            check_set_name(name)
            instance(f"sets[{name!r}]", features, Mapping, "a dict")
            for key, values in features.items():
                check_feature_name("sets", key)
                columns[f"{SETS}/{name}/{key}"] = values
        for name, counts in (optional(mapping, "set_rows", set_rows) or {}).items():
            columns[f"{SET_ROWS}/{name}"] = counts
        columns |= {"slot": np.full(len(num_nodes), -1) if slot is None else slot}
        optional_columns = {
            "candidates": candidates,
            "num_candidates": num_candidates,
            f"label/{label_level}": label,
            "origin": origin,
        }
        columns |= {k: v for k, v in optional_columns.items() if v is not None}
        columns = {k: to_32_bit(k, v) for k, v in columns.items()}
        check_columns(columns, info)
        self._set(sorted_by_receiver(columns), info)

    def _set(self, columns: dict[str, np.ndarray], info: Sequence | None) -> None:
        columns = {name: array.view() for name, array in columns.items()}
        for array in columns.values():
            array.flags.writeable = False
        self._columns = columns
        self.info = [{}] * len(columns["num_nodes"]) if info is None else info
        for name in ("num_nodes", "num_edges", *EDGE_COLUMNS, "slot"):
            setattr(self, name, columns[name])
        for name in ("candidates", "origin"):
            setattr(self, name, columns.get(name))
        for kind in ("node", "edge", "context"):
            features = {
                name.removeprefix(f"{kind}/"): array
                for name, array in columns.items()
                if name.startswith(f"{kind}/")
            }
            setattr(self, kind, MappingProxyType(features))
        tables: dict[str, dict] = {name: {} for name in set_sizes(columns)}
        for name, array in columns.items():
            if name.startswith(f"{SETS}/"):
                _, table, key = name.split("/", 2)
                tables[table][key] = array
        self.sets = MappingProxyType(
            {name: MappingProxyType(table) for name, table in tables.items()}
        )
        self.set_ptr = {
            name: pointers(sizes) for name, sizes in set_sizes(columns).items()
        }
        levels = [level for level in LABEL_LEVELS if f"label/{level}" in columns]
        self.label_level = levels[-1] if levels else "graph"
        self.label = columns.get(f"label/{self.label_level}")
        self.node_ptr = pointers(self.num_nodes)
        self.edge_ptr = pointers(self.num_edges)
        self.candidate_ptr = None
        if self.candidates is not None:
            self.candidate_ptr = pointers(columns["num_candidates"])

    @classmethod
    def from_columns(
        cls, columns: dict[str, np.ndarray], info: Sequence | None = None
    ) -> FlatGraphs:
        """Build from trusted columns of the dtypes and names of `columns()`."""
        flat = object.__new__(cls)
        flat._set(columns, info)
        return flat

    @classmethod
    def from_graphs(cls, graphs: Iterable[Graph]) -> FlatGraphs:
        """Concatenate graphs that have the same features.

        Raises:
            ValueError: If graphs differ in features, dtypes or shapes, or if only some
                have candidates or labels; the message names the graph.
        """
        graphs = sequence("graphs", graphs, "an iterable of graphs")
        for number, graph in enumerate(graphs):
            instance(f"graphs[{number}]", graph, Graph, "a Graph")
        tables = [_graph_columns(graph) for graph in graphs]
        if any("origin" in columns for columns in tables):
            # The origin of a graph that was not cut or reordered is the identity.
            for graph, columns in zip(graphs, tables, strict=True):
                identity = np.arange(graph.num_nodes, dtype=np.int32)
                columns.setdefault("origin", identity)
        _unify_labels(tables)
        for index, columns in enumerate(tables):
            check_same_spec(
                f"graph {index}", spec_of(columns), "graph 0", spec_of(tables[0])
            )

        if tables and graphs[0].sets:
            _check_edge_sets(graphs)

        def counts(values: Iterable[int]) -> np.ndarray:
            return np.array(list(values), np.int32)

        def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
            # A large graph alone is not copied.
            return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

        merged = {
            "num_nodes": counts(g.num_nodes for g in graphs),
            "num_edges": counts(g.num_edges for g in graphs),
            "slot": counts(-1 if g.slot is None else g.slot for g in graphs),
        }
        for name in EDGE_COLUMNS:
            parts = [getattr(g, name) for g in graphs]
            merged[name] = joined(parts) if parts else np.zeros(0, np.int32)
        for name in tables[0] if tables else ():
            merged[name] = joined([columns[name] for columns in tables])
        if "candidates" in merged:
            merged["num_candidates"] = counts(len(g.candidates) for g in graphs)
        for name in graphs[0].sets if graphs else ():
            rows = (len(next(iter(g.sets[name].values()))) for g in graphs)
            merged[f"{SET_ROWS}/{name}"] = counts(rows)
        info = [dict(g.info) for g in graphs]
        return cls.from_columns(sorted_by_receiver(merged), info)

    @classmethod
    def concatenate(cls, parts: Sequence[FlatGraphs]) -> FlatGraphs:
        """Concatenate several `FlatGraphs`; skip parts without graphs."""
        parts = sequence("parts", parts, "a list of FlatGraphs")
        for number, part in enumerate(parts):
            instance(f"parts[{number}]", part, FlatGraphs, "a FlatGraphs")
        parts = [part for part in parts if len(part)] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        for index, part in enumerate(parts):
            check_same_spec(f"part {index}", part.spec(), "part 0", parts[0].spec())
        columns = {
            name: np.concatenate([part.columns()[name] for part in parts])
            for name in parts[0].columns()
        }
        if all(isinstance(part.info, JsonInfo) for part in parts):
            return cls.from_columns(
                columns, JsonInfo.concatenate([p.info for p in parts])
            )
        return cls.from_columns(columns, [info for part in parts for info in part.info])

    def columns(self) -> dict[str, np.ndarray]:
        """Return all arrays by name, such as `"senders"` or `"node/type"`."""
        return dict(self._columns)

    def spec(self) -> dict[str, list]:
        """Return `[dtype, trailing shape]` of features, candidates and label."""
        fixed = {*EDGE_COLUMNS, *COUNTS.values(), "slot"}
        fixed |= {f"{SET_ROWS}/{name}" for name in self.sets}
        return spec_of({k: v for k, v in self._columns.items() if k not in fixed})

    def ranges(self, num_edges: int) -> list[tuple[int, int]]:
        """Return ranges of graphs that have about `num_edges` edges each."""
        cuts = np.arange(0, int(self.edge_ptr[-1]) + 1, num_edges)
        cuts = np.append(np.searchsorted(self.edge_ptr, cuts), len(self))
        cuts = np.unique(cuts).tolist()
        return list(zip(cuts[:-1], cuts[1:], strict=True))

    def pieces(self, num_edges: int) -> list[FlatGraphs]:
        """Return the graphs in pieces of about `num_edges` edges each."""
        ranges = self.ranges(num_edges)
        if len(ranges) == 1:
            return [self]
        return [self.take(np.arange(low, high)) for low, high in ranges]

    def take(self, indices: ArrayLike) -> FlatGraphs:
        """Return the graphs at `indices` (with repeats), without a Python loop.

        Raises:
            IndexError: If an index is out of range.
        """
        indices = check_indices(indices, len(self))
        rows = {
            "graph": indices,
            "node": gather_rows(self.node_ptr, indices),
            "edge": gather_rows(self.edge_ptr, indices),
        }
        if self.candidate_ptr is not None:
            rows["candidate"] = gather_rows(self.candidate_ptr, indices)
        for name, ptr in self.set_ptr.items():
            rows[f"{SETS}/{name}"] = gather_rows(ptr, indices)
        columns = {
            name: array.take(rows[level_of(name)], axis=0)
            for name, array in self._columns.items()
        }
        if isinstance(self.info, JsonInfo):
            return FlatGraphs.from_columns(columns, self.info.take(indices))
        return FlatGraphs.from_columns(columns, [self.info[i] for i in indices])

    def __reduce__(self):
        # The metadata of compiled graphs names the layers that were applied.
        state = {"metadata": self.metadata} if hasattr(self, "metadata") else None
        return FlatGraphs.from_columns, (self._columns, self.info), state

    def __len__(self) -> int:
        return len(self.num_nodes)

    def __getitem__(self, index: int) -> Graph:
        i = check_index(index, len(self))
        nodes = slice(self.node_ptr[i], self.node_ptr[i + 1])
        edges = slice(self.edge_ptr[i], self.edge_ptr[i + 1])
        candidates = self.candidates
        if candidates is not None:
            candidates = candidates[self.candidate_ptr[i] : self.candidate_ptr[i + 1]]
        rows = {"node": nodes, "edge": edges}.get(self.label_level, (i, ...))
        return Graph.unchecked(
            num_nodes=int(self.num_nodes[i]),
            senders=self.senders[edges],
            receivers=self.receivers[edges],
            edge_type=self.edge_type[edges],
            node={k: v[nodes] for k, v in self.node.items()},
            edge={k: v[edges] for k, v in self.edge.items()},
            context={k: v[i, ...] for k, v in self.context.items()},
            candidates=candidates,
            label=None if self.label is None else self.label[rows],
            label_level=self.label_level,
            slot=None if self.slot[i] < 0 else int(self.slot[i]),
            origin=None if self.origin is None else self.origin[nodes],
            info=self.info[i],
            sets={name: self._table(name, i) for name in self.sets},
        )

    def _table(self, name: str, i: int) -> Mapping[str, np.ndarray]:
        """Return the features of a node set of graph i."""
        low, high = self.set_ptr[name][i : i + 2]
        return MappingProxyType({k: v[low:high] for k, v in self.sets[name].items()})

    def __repr__(self) -> str:
        totals = f"nodes={self.node_ptr[-1]}, edges={self.edge_ptr[-1]}"
        return f"FlatGraphs(graphs={len(self)}, {totals})"
