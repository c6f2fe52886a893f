"""`Assembler`: sizes of graphs in a batch, and the arrays of batches of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_bandgnn.assembly.padded_rows import (
    PaddedRows,
    SupergraphLayout,
    set_resource,
    stack,
)
from keras_bandgnn.assembly.pair_index import PairIndex, pack_pairs
from keras_bandgnn.batch import MESSAGE_WEIGHT
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.plan import Plan

LOW_BITS = np.uint32(0xFFFF)
_MOST_PACKED = 64_000_000
# Edges measured at a time.
_CHUNK = 4_000_000
_MOST_JOINED = 1 << 30


def merge_parts(parts: Sequence[FlatGraphs]) -> Sequence[FlatGraphs]:
    """Return one part instead of many, if it is small enough for memory.

    Batches of one part are assembled with far fewer calls than those of many.
    """
    size = sum(array.nbytes for part in parts for array in part.columns().values())
    if len(parts) < 2 or size > _MOST_JOINED:
        return parts
    return [FlatGraphs.concatenate(parts)]


def with_edge_types(
    parts: Sequence[FlatGraphs], num_types: int | None
) -> tuple[list[FlatGraphs], int]:
    """Return the graphs with the edge types that a model reads, and P.

    Args:
        parts: The graphs.
        num_types: P; None for those that occur, 0 for a model that reads no types.

    Raises:
        ValueError: If other types occur.
    """
    if num_types == 0:
        return [_untyped(part) for part in parts], 1
    occurring = 1 + max((int(p.edge_type.max(initial=0)) for p in parts), default=0)
    if num_types is not None and occurring > num_types:
        raise ValueError(
            f"Expected edge types in [0, {num_types}), as "
            f"num_edge_types={num_types}. Received: type {occurring - 1}. "
            "Raise num_edge_types of the model."
        )
    return list(parts), num_types or occurring


def _untyped(part: FlatGraphs) -> FlatGraphs:
    if not part.edge_type.any():
        return part
    zeros = {"edge_type": np.zeros_like(part.edge_type)}
    return FlatGraphs.from_columns({**part.columns(), **zeros}, part.info)


def apply_filter(parts: Sequence[FlatGraphs], plan: Plan) -> tuple[list, int]:
    """Return the graphs that pass a plan's filter, and how many do not.

    Raises:
        ValueError: If no graph is left.
    """
    total = sum(map(len, parts))
    if plan.filter:
        parts = [part.take(np.flatnonzero(plan.keeps(part))) for part in parts]
    count = sum(map(len, parts))
    if not count:
        why = f", after the plan's filter {plan.filter} left out {total}"
        raise ValueError(
            f"Expected at least one graph. Received: none{why if total else ''}."
        )
    return list(parts), total - count


def resource_sizes(
    parts: Sequence[FlatGraphs], plan: Plan, num_types: int
) -> dict[str, np.ndarray]:
    """Measure graphs in the resources of batches and of a plan.

    Args:
        parts: The graphs.
        plan: Which primitive carries which edges.
        num_types: P.

    Returns:
        Resource ("node", "edge", "candidate", those of the plan) -> int64 [n].
    """
    pieces = [piece for part in parts for piece in part.pieces(_CHUNK)]
    tables = [_measure(piece, plan, num_types) for piece in pieces]
    return {
        name: np.concatenate([np.asarray(t[name], np.int64) for t in tables])
        for name in tables[0]
    }


def _measure(part: FlatGraphs, plan: Plan, num_types: int) -> dict:
    table = {"node": part.num_nodes, "edge": part.num_edges}
    if part.candidates is not None:
        table["candidate"] = np.diff(part.candidate_ptr)
    for name, ptr in part.set_ptr.items():
        table[set_resource(name)] = np.diff(ptr)
    return {**table, **plan.measure(part, num_types)}


def packed_ends(parts: Sequence) -> list[np.ndarray] | None:
    """Return sender and receiver of each edge in one number, read at once.

    Assembly is bound by memory access. None if ids are too large, or if there are too
    many edges to keep a copy in memory.
    """
    edges = sum(len(part.senders) for part in parts)
    nodes = max(int(part.num_nodes.max(initial=0)) for part in parts)
    if edges > _MOST_PACKED or nodes > LOW_BITS + 1:
        return None
    packed = []
    for part in parts:
        ends = part.receivers.astype(np.uint32)
        ends <<= 16
        ends |= part.senders.view(np.uint32)
        packed.append(ends)
    return packed


class Supergraph(NamedTuple):
    """The graphs of a supergraph and the sizes that it is padded to.

    Attributes:
        members: Ids of the graphs, or of the items from which a subgraph is drawn.
        budget: Capacities by name.
        key: Numbers that random draws depend on: seed, epoch and step.
        times: int64, times of items that a sampler by time draws for; None for those of
            the nodes.
    """

    members: np.ndarray
    budget: dict[str, int]
    key: tuple[int, ...] = ()
    times: np.ndarray | None = None


class BatchAssembler:
    """Makes the arrays of batches; base class."""

    # The capacities of batches whose graphs share states; None if they do not.
    shared_budget = None

    def build(self, supergraphs: Sequence[Supergraph], replicas: int) -> list[tuple]:
        """Build batches.

        Args:
            supergraphs: The supergraphs of the batches, one after the other; those of
                a batch have the same budget.
            replicas: G, supergraphs per batch.

        Returns:
            For each batch (x, y, sample_weight), or (x,) without labels, and for
            "node", "edge" and "graph" how many rows are real and how many there are.
        """
        raise NotImplementedError

    def build_within(
        self, supergraphs: Sequence[Supergraph], replicas: int
    ) -> list[tuple]:
        """Build batches whose shapes are those of the budgets, if they fit."""
        return self.build(supergraphs, replicas)

    def share_states(self, supergraphs: Sequence[Supergraph], exact: bool) -> None:
        """Let graphs share states, where that is possible; see `ScheduleAssembler`."""

    def keep_states_apart(self) -> None:
        """Undo `share_states`."""


class Assembler(BatchAssembler):
    """Lays graphs side by side and pads them, with no work per graph in Python.

    Args:
        parts: The graphs; ids count through all parts.
        plan: Which primitive processes which edges.
        num_types: P.
        slots: Whether every graph of the data has a slot.
        edge_weight: Edge feature that is the factor of each message, or None.

    Attributes:
        transpose: Whether plans have the transposes of their sums, which a gradient
            reads; otherwise each step sorts the edges for them.
    """

    transpose = False

    def __init__(
        self,
        parts: Sequence[FlatGraphs],
        plan: Plan,
        num_types: int,
        slots: bool,
        edge_weight: str | None = None,
    ):
        self.parts = list(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])
        self.plan = plan
        self.num_types = num_types
        self.slots = slots
        self.edge_weight = edge_weight
        self._pairs = self._pair_indices()
        self._ends = packed_ends(self.parts)

    def __reduce__(self):
        arguments = (self.parts, self.plan, self.num_types, self.slots)
        state = {"transpose": self.transpose}
        return Assembler, (*arguments, self.edge_weight), state

    def _pair_indices(self) -> list[PairIndex] | None:
        """Return the pairs of each part, if `Grouped` carries all edges."""
        if self.edge_weight is not None or len(self.plan.primitives) != 1:
            return None
        (grouped,) = self.plan.primitives
        if not isinstance(grouped, Grouped):
            return None
        if grouped.first != "transform":
            return None
        return [PairIndex(part, self.num_types) for part in self.parts]

    def build(self, supergraphs: Sequence[Supergraph], replicas: int) -> list[tuple]:
        """Build batches; see `BatchAssembler.build`.

        Budgets have "node" N, "edge" E, "graph" B, "candidate" C, and what the plan
        needs.
        """
        members = [np.asarray(s.members, np.int64) for s in supergraphs]
        if len(self.parts) > 1:
            members = [np.sort(m) for m in members]
        budgets = [s.budget for s in supergraphs]
        parts, part = self.parts, self.parts[0]
        layout = SupergraphLayout(parts, members, self.starts, budgets)
        node = layout.rows([p.node_ptr for p in parts], "node")
        edge = layout.rows([p.edge_ptr for p in parts], "edge")
        starts = layout.first_rows(node)
        layout.add_nodes(node, layout.features(node, "node"))
        layout.add_sets()
        layout.add("edge", edge, self._edges(layout, edge, starts))
        layout.add_graphs(node.counts, edge.counts, np.concatenate(members))
        if part.label is not None:
            rows = {"node": node, "edge": edge}.get(part.label_level, layout.graph)
            layout.add_labels(rows, rows.column)
        if part.candidates is not None:
            slots = [p.slot for p in parts] if self.slots else None
            layout.add_candidates([p.candidates for p in parts], slots, starts)
        grouped = None
        if self._pairs is not None and not self.transpose:
            grouped = self._grouped(layout, edge, starts)
        batches = []
        for first in range(0, len(supergraphs), replicas):
            batch = layout.batch(first, replicas)
            x = batch[0]
            if grouped is not None:
                x["plan"] = {self.plan.keys[0]: grouped(x["edge"], first, replicas)}
            else:
                plans = [
                    self._plan(x, g, edge.place[first + g], budgets[first + g])
                    for g in range(replicas)
                ]
                x["plan"] = stack(plans)
            figures = {
                "node": node.filled(first, replicas),
                "edge": edge.filled(first, replicas),
                "graph": layout.graph.filled(first, replicas),
            }
            batches.append((batch, figures))
        return batches

    def _edges(self, layout: SupergraphLayout, rows: PaddedRows, starts) -> dict:
        columns = layout.features(rows, "edge")
        if self.edge_weight is not None:
            weight = columns[self.edge_weight].astype(np.float32)
            columns = {**columns, MESSAGE_WEIGHT: weight}
        if self._ends is None:
            sender = rows.column([p.senders for p in self.parts])
            receiver = rows.column([p.receivers for p in self.parts])
        else:
            ends = rows.column(self._ends)
            sender = (ends & LOW_BITS).view(np.int32)
            receiver = np.right_shift(ends, 16, out=ends).view(np.int32)
        shift = starts.repeat(rows.counts)
        for place, real in zip(rows.place, rows.real, strict=True):
            sender[place] += shift[real]
            receiver[place] += shift[real]
        for tail, budget in zip(rows.tails, layout.budgets, strict=True):
            receiver[tail] = budget["node"]
        if self.num_types == 1:
            kind = np.zeros(rows.offsets[-1], np.int32)
        else:
            kind = rows.column([p.edge_type for p in self.parts])
        ends = {"sender": sender, "receiver": receiver, "type": kind}
        return {**columns, **ends, "mask": rows.mask()}

    def _plan(self, x: Mapping, g: int, place: slice, budget: Mapping) -> dict:
        edge = x["edge"]
        padded_ends = tuple(edge[name][g] for name in ("sender", "receiver", "type"))
        count = place.stop - place.start
        edges = Edges(
            *(values[:count] for values in padded_ends),
            num_nodes=budget["node"],
            num_types=self.num_types,
            weight=self._weight(edge, g, count),
            padded_ends=padded_ends,
            transpose=self.transpose,
        )
        if self.plan.reads_nodes:
            node, edge = (
                {k: v[g] for k, v in x[kind].items()} for kind in ("node", "edge")
            )
            return self.plan.pack(edges, budget, node, edge)
        return self.plan.pack(edges, budget)

    def _weight(self, edge: Mapping, g: int, count: int) -> np.ndarray | None:
        if self.edge_weight is None:
            return None
        return edge[self.edge_weight][g, :count].astype(np.float32)

    def _grouped(self, layout: SupergraphLayout, edge: PaddedRows, starts) -> Callable:
        """Lay out the arrays of `Grouped`; return the function that cuts them."""
        index = self._pairs
        (grouped,) = self.plan.primitives
        pairs = layout.rows([part.ptr for part in index])

        def column(rows: PaddedRows, name: str) -> np.ndarray:
            return rows.column([getattr(part, name) for part in index])

        pair_of_edge = column(edge, "edge_pair")
        shift = pairs.before.astype(np.int32).repeat(edge.counts)
        for place, real in zip(edge.place, edge.real, strict=True):
            pair_of_edge[place] += shift[real]
        key = grouped.key()
        for real, budget in zip(edge.real, layout.budgets, strict=True):
            if real.stop - real.start > budget[key]:
                raise ValueError(
                    f"Expected at most {budget[key]} edges for '{key}'. Received: "
                    f"{real.stop - real.start}. Raise the budget of '{key}'."
                )
        counts = index[0].counts
        if len(index) > 1:
            counts = np.concatenate([part.counts for part in index])
        packed = pack_pairs(
            grouped,
            counts=counts.take(np.concatenate(layout.members), axis=0),
            lengths=np.array([len(m) for m in layout.members]),
            pair_counts=pairs.counts,
            kind=column(pairs, "kind"),
            rank=column(pairs, "rank"),
            sender=column(pairs, "sender") + starts.repeat(pairs.counts),
            budgets=layout.budgets,
        )
        row = np.zeros(len(pair_of_edge), np.int32)
        if len(packed.place):
            packed.place.take(pair_of_edge, out=row, mode="wrap")
        for tail in edge.tails:
            row[tail] = 0
        return lambda x, first, replicas: packed.cut(
            x, edge.cut(row, first, replicas), first, replicas
        )
