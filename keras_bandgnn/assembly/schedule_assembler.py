"""`ScheduleAssembler`: batches of plans with a schedule."""

from collections.abc import Iterator, Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import BatchAssembler, Supergraph
from keras_bandgnn.assembly.padded_rows import PaddedRows, SupergraphLayout, stack
from keras_bandgnn.assembly.schedule_tables import ScheduleTable, pieces_of
from keras_bandgnn.assembly.shared_states import (
    DeduplicatedBudget,
    StepGraph,
    first_equal_row,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import on_host
from keras_bandgnn.primitives.base import of_step, step_key, step_resource
from keras_bandgnn.primitives.csr import transposed
from keras_bandgnn.primitives.edges import Edges, pad
from keras_bandgnn.primitives.plan import Plan

# Above this number of edges, tables are built for each batch instead of kept.
_MOST_KEPT = 64_000_000
# Supergraphs from which shared sizes are estimated, and the fewest of an epoch.
_SAMPLE, _FEWEST = 12, 8


class ScheduleAssembler(BatchAssembler):
    """Lays out and pads the node lists of each step of a receptive field.

    The resources are "node@0", the rows of the first list; for step t "node@t+1", its
    rows, and those of the plan with the suffix "@t". "node" and "edge" measure whole
    graphs, so that supergraphs are filled alike with and without a schedule.

    Args:
        parts: The graphs; ids count through all parts.
        plan: The plan, with a `ReceptiveField` of order "compact".
        num_types: P.
        slots: Whether every graph of the data has a slot.
    """

    def __init__(
        self, parts: Sequence[FlatGraphs], plan: Plan, num_types: int, slots: bool
    ):
        self.parts = list(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])
        self.plan = plan
        self.num_types = num_types
        self.slots = slots
        self._table = None
        self.shared_budget: DeduplicatedBudget | None = None
        edges = sum(len(part.senders) for part in parts)
        if len(self.parts) == 1 and edges <= _MOST_KEPT:
            self._table = self._table_of(self.parts[0])

    def __reduce__(self):
        arguments = (self.parts, self.plan, self.num_types, self.slots)
        return ScheduleAssembler, arguments, {"shared_budget": self.shared_budget}

    def _table_of(self, part: FlatGraphs) -> ScheduleTable:
        return ScheduleTable.of(part, self.plan.schedule)

    def sizes(self) -> dict[str, np.ndarray]:
        """Return the needs of each graph, resource -> int64 [n]."""
        if self._table is not None:
            return self._sizes(self.parts[0], self._table)
        pieces = [piece for part in self.parts for piece in pieces_of(part)]
        tables = [self._sizes(piece, self._table_of(piece)) for piece in pieces]
        return {
            name: np.concatenate([table[name] for table in tables])
            for name in tables[0]
        }

    def _sizes(self, part: FlatGraphs, steps: ScheduleTable) -> dict[str, np.ndarray]:
        count = len(part)
        table = {
            "node": part.num_nodes.astype(np.int64),
            "edge": part.num_edges.astype(np.int64),
            step_resource("node", 0): np.diff(steps.ptr),
        }
        if part.candidates is not None:
            table["candidate"] = np.diff(part.candidate_ptr)
        before = steps.ptr
        for number, step in enumerate(steps.steps):
            table[step_resource("node", number + 1)] = np.diff(step.ptr)
            counts = np.diff(step.edge_ptr)
            edges = Edges(
                step.sender + before[:-1].repeat(counts),
                step.receiver + step.ptr[:-1].repeat(counts),
                step.type,
                num_nodes=int(step.ptr[-1]),
                num_types=self.num_types,
                num_senders=int(before[-1]),
            )
            graph = np.arange(count).repeat(counts)
            step_sizes = self.plan.sizes(edges, graph, count)
            table |= {step_resource(k, number): v for k, v in step_sizes.items()}
            before = step.ptr
        return table

    def share_states(self, supergraphs: Sequence[Supergraph], exact: bool) -> None:
        """Let `build` compute states that several graphs of a supergraph have once.

        From now on, if that makes batches smaller: steps then have the capacities of
        the budget, or smaller ones in which they fit.

        Args:
            supergraphs: Those of an epoch with the usual budget.
            exact: Whether each batch of large supergraphs has capacities of its own;
                otherwise nearly all have the same.
        """
        several = [s for s in supergraphs if len(s.members) > 1]
        if not self.plan.schedule.merge or len(several) < _FEWEST:
            return
        usual = dict(several[0].budget)
        if exact and DeduplicatedBudget.may_differ(usual):
            self.shared_budget = DeduplicatedBudget(usual, None)
            return
        count = min(_SAMPLE, len(several))
        sample = [several[i * len(several) // count] for i in range(count)]
        needed = []
        for supergraph in sample:
            _, layout, table = self._layout([supergraph])
            rows = layout.rows([table.ptr])
            steps = list(self._lists(layout, table, rows, shared=True))
            needed.append(self._needed(steps, 0, rows.real[0].stop))
        self.shared_budget = DeduplicatedBudget.of(usual, needed)

    def keep_states_apart(self) -> None:
        """Undo `share_states`."""
        self.shared_budget = None

    def _layout(
        self, supergraphs: Sequence[Supergraph]
    ) -> tuple[list[np.ndarray], SupergraphLayout, ScheduleTable]:
        """Return the ids of each supergraph's graphs, their layout and their steps."""
        ids = [np.asarray(s.members, np.int64) for s in supergraphs]
        if len(self.parts) > 1:
            ids = [np.sort(members) for members in ids]
        part, table, members = self._source(ids)
        budgets = [s.budget for s in supergraphs]
        layout = SupergraphLayout([part], members, np.zeros(1, np.int64), budgets)
        return ids, layout, table

    def _needed(self, steps: Sequence, number: int, first: int) -> dict[str, int]:
        """Return the needs of the steps of one of several supergraphs.

        The first and the last list keep all rows: their features are read, and labels.

        Args:
            steps: From `_lists`.
            number: Of the supergraph.
            first: Rows of the first list.
        """
        needed, before = {}, first
        for step, (_, _, lists) in enumerate(steps):
            rows = lists[number]
            edges = Edges(
                rows.sender,
                rows.receiver,
                rows.type,
                num_nodes=len(rows.state),
                num_types=self.num_types,
                num_senders=before,
            )
            sizes = self.plan.sizes(edges, np.zeros(len(edges), np.int64), 1)
            needed |= {step_resource(k, step): int(v[0]) for k, v in sizes.items()}
            before = len(rows.state)
            if step + 1 < len(steps):
                needed[step_resource("node", step + 1)] = before
        return needed

    def build(self, supergraphs: Sequence[Supergraph], replicas: int) -> list[tuple]:
        """Build batches; see `BatchAssembler.build`."""
        return self._build(supergraphs, replicas, self.shared_budget)

    def build_within(
        self, supergraphs: Sequence[Supergraph], replicas: int
    ) -> list[tuple]:
        """Build batches whose shapes are those of the budgets."""
        return self._build(supergraphs, replicas, None)

    def _build(
        self,
        supergraphs: Sequence[Supergraph],
        replicas: int,
        shared: DeduplicatedBudget | None,
    ) -> list[tuple]:
        ids, layout, table = self._layout(supergraphs)
        part, members, budgets = layout.parts[0], layout.members, layout.budgets
        flat = np.concatenate(members)
        nodes, edges = part.num_nodes[flat], part.num_edges[flat]
        rows = layout.rows([table.ptr], step_resource("node", 0))
        features = {
            name: rows.through(table.node, values)
            for name, values in part.node.items()
            if not on_host("node", name)
        }
        layout.add_nodes(rows, features)
        steps = list(self._lists(layout, table, rows, shared is not None))
        if shared is not None:
            first = [r.stop - r.start for r in rows.real]
            needed = [self._needed(steps, s, n) for s, n in enumerate(first)]
            layout.budgets = shared.budgets(budgets, needed, replicas)
        plans = self._plans(layout, steps)
        rows, starts, _ = steps[-1]
        layout.add_graphs(nodes, edges, np.concatenate(ids), n_read=rows.counts)
        if table.candidates is not None:
            slots = [table.slot] if self.slots else None
            layout.add_candidates([table.candidates], slots, starts)
        if part.label is not None and part.label_level == "node":
            last = step_resource("node", len(table.steps))
            rows = layout.rows([table.steps[-1].ptr], last)
            layout.add_labels(rows, lambda of: rows.through(table.last, of[0]))
        elif part.label is not None:
            layout.add_labels(layout.graph, layout.graph.column)
        batches = []
        for first in range(0, len(supergraphs), replicas):
            batch = layout.batch(first, replicas)
            x = batch[0]
            x["plan"] = stack(plans[first : first + replicas])
            if "candidate" in x:
                # The order of names is fixed, see `SupergraphLayout.add_graphs`.
                x["candidate"] = x.pop("candidate")
            real = layout.graph.real[first : first + replicas]
            graphs = slice(real[0].start, real[-1].stop)
            padded = budgets[first : first + replicas]
            figures = {
                "node": (int(nodes[graphs].sum()), sum(b["node"] for b in padded)),
                "edge": (int(edges[graphs].sum()), sum(b["edge"] for b in padded)),
                "graph": layout.graph.filled(first, replicas),
            }
            batches.append((batch, figures))
        return batches

    def _source(self, ids: Sequence[np.ndarray]) -> tuple:
        """Return graphs, their steps, and the place of each member among them."""
        if self._table is not None:
            return self.parts[0], self._table, ids
        flat = np.concatenate(ids)
        shard = np.searchsorted(self.starts, flat, side="right") - 1
        place, pieces, count = np.empty(len(flat), np.int64), [], 0
        for number in np.unique(shard):
            here = np.flatnonzero(shard == number)
            place[here] = np.arange(count, count + len(here))
            pieces.append(self.parts[number].take(flat[here] - self.starts[number]))
            count += len(here)
        # Supergraphs without graphs still have the shapes of the data.
        part = FlatGraphs.concatenate(pieces or [self.parts[0].take([0])])
        cuts = np.cumsum([len(members) for members in ids])[:-1]
        return part, self._table_of(part), np.split(place, cuts)

    def _plans(self, layout: SupergraphLayout, steps: Sequence) -> list[dict]:
        """Return the arrays of the steps of each supergraph.

        Args:
            layout: The supergraphs.
            steps: From `_lists`.
        """
        plans = [{} for _ in layout.budgets]
        for number, (_, _, lists) in enumerate(steps):
            before = step_resource("node", number)
            now = step_resource("node", number + 1)
            for s, (budget, rows) in enumerate(zip(layout.budgets, lists, strict=True)):
                edges = Edges(
                    rows.sender,
                    rows.receiver,
                    rows.type,
                    num_nodes=budget[now],
                    num_types=self.num_types,
                    num_senders=budget[before],
                    transpose=True,
                )
                plans[s][step_key(number)] = {
                    "state": _state(rows.state, budget[before], budget[now], now),
                    **self.plan.pack(edges, of_step(budget, number)),
                }
        return plans

    def _lists(
        self,
        layout: SupergraphLayout,
        table: ScheduleTable,
        rows: PaddedRows,
        shared: bool,
    ) -> Iterator[tuple[PaddedRows, np.ndarray, list[StepGraph]]]:
        """Yield the lists of each step, with rows counted within each supergraph.

        Args:
            layout: The supergraphs.
            table: Of the graphs.
            rows: Those of the first list.
            shared: Whether to merge equal rows of several graphs.

        Yields:
            The rows of the graphs; the first row of each graph in it; and what each
            supergraph computes of them.
        """
        starts = layout.first_rows(rows)
        # All rows of the first list stay; the first of equal ones are read.
        places = _equal(rows, table.colour) if shared else None
        for step in table.steps:
            rows, edge = layout.rows([step.ptr]), layout.rows([step.edge_ptr])
            own_starts = layout.first_rows(rows)
            state = rows.column([step.state]) + starts.repeat(rows.counts)
            sender = edge.column([step.sender]) + starts.repeat(edge.counts)
            receiver = edge.column([step.receiver]) + own_starts.repeat(edge.counts)
            kind = edge.column([step.type])
            before, places = places, _equal(rows, step.colour) if shared else None
            lists = []
            for s, (nodes, ends) in enumerate(zip(rows.real, edge.real, strict=True)):
                step_rows = StepGraph(
                    state[nodes], sender[ends], receiver[ends], kind[ends]
                )
                if places is not None:
                    step_rows, places[s] = step_rows.deduplicate(places[s])
                lists.append(
                    step_rows if before is None else step_rows.remap_inputs(before[s])
                )
            starts = own_starts
            yield rows, starts, lists


def _equal(rows: PaddedRows, colour: np.ndarray | None) -> list[np.ndarray] | None:
    """Return `first_equal_row` of a list in each supergraph; None if all are kept."""
    if colour is None:
        return None
    colour = rows.column([colour])
    return [first_equal_row(colour[place]) for place in rows.place]


def _state(index: np.ndarray, before: int, now: int, what: str) -> dict:
    """Return the arrays of the gather of old states."""
    back = transposed(
        np.arange(len(index), dtype=np.int32), index, (now, before), now, what
    )
    names = ("row", "column", "pointer")
    return {
        "index": pad(index, now, 0, what),
        **{f"back_{name}": back[name] for name in names},
    }
