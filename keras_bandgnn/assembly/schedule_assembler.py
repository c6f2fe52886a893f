"""`StepAssembler`: batches of plans with a schedule."""

from collections.abc import Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph, stack
from keras_bandgnn.assembly.schedule_tables import StepColumns, chunks
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.primitives.csr import transposed
from keras_bandgnn.primitives.edges import Edges, pad
from keras_bandgnn.primitives.plan import Plan

# Up to so many edges the steps of all graphs are kept; beyond, found per batch.
_MOST_KEPT = 64_000_000


class StepAssembler:
    """Lays the lists of each step of a receptive field side by side and pads them.

    Resources are "node@0", the rows of the first list; for step t "node@t+1", its
    rows, and those of the plan with the suffix "@t". "node" and "edge" measure whole
    graphs, so that supergraphs are filled alike with and without a schedule.

    Args:
        parts: The graphs; ids count through all parts.
        plan: Who carries which edge, with a `ReceptiveField` of order "compact".
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
        self._columns = None
        edges = sum(len(part.senders) for part in parts)
        if len(self.parts) == 1 and edges <= _MOST_KEPT:
            self._columns = StepColumns.of(self.parts[0], plan.schedule)

    def __reduce__(self):
        return StepAssembler, (self.parts, self.plan, self.num_types, self.slots)

    def sizes(self) -> dict[str, np.ndarray]:
        """What each graph needs, resource -> int64 [n]."""
        if self._columns is not None:
            return self._sizes(self.parts[0], self._columns)
        tables = []
        for part in self.parts:
            for low, high in chunks(part):
                piece = part.take(np.arange(low, high))
                columns = StepColumns.of(piece, self.plan.schedule)
                tables.append(self._sizes(piece, columns))
        return {
            name: np.concatenate([table[name] for table in tables])
            for name in tables[0]
        }

    def _sizes(self, part: FlatGraphs, columns: StepColumns) -> dict[str, np.ndarray]:
        count = len(part)
        table = {
            "node": part.num_nodes.astype(np.int64),
            "edge": part.num_edges.astype(np.int64),
            "node@0": np.diff(columns.ptr),
        }
        if part.candidates is not None:
            table["candidate"] = np.diff(part.candidate_ptr)
        before = columns.ptr
        for number, step in enumerate(columns.steps):
            table[f"node@{number + 1}"] = np.diff(step.ptr)
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
            own = self.plan.sizes(edges, graph, count)
            table |= {f"{name}@{number}": values for name, values in own.items()}
            before = step.ptr
        return table

    def build(self, supergraphs: Sequence[Supergraph], width: int) -> list[tuple]:
        """Builds batches; see `Assembler.build`."""
        batches = []
        for first in range(0, len(supergraphs), width):
            made = [self._one(s) for s in supergraphs[first : first + width]]
            batch = stack([entry for entry, _ in made])
            figures = {
                name: tuple(np.sum([own[name] for _, own in made], axis=0))
                for name in made[0][1]
            }
            arrays = (batch["x"],)
            if "y" in batch:
                arrays = (batch["x"], batch["y"], batch["weight"])
            batches.append((arrays, figures))
        return batches

    def _source(self, members: np.ndarray) -> tuple[FlatGraphs, StepColumns, list]:
        """Graphs, their steps, and which of them form the supergraph."""
        if self._columns is not None:
            return self.parts[0], self._columns, members
        pieces = []
        shard = np.searchsorted(self.starts, members, side="right") - 1
        for number in np.unique(shard):
            ids = members[shard == number] - self.starts[number]
            pieces.append(self.parts[number].take(ids))
        part = FlatGraphs.concatenate(pieces)
        columns = StepColumns.of(part, self.plan.schedule)
        return part, columns, np.arange(len(part))

    def _one(self, supergraph: Supergraph) -> tuple[dict, dict]:
        members, budget = np.asarray(supergraph.members, np.int64), supergraph.budget
        if len(self.parts) > 1:
            members = np.sort(members)
        part, columns, ids = self._source(members)
        capacity = budget["graph"]
        row, counts, starts = _rows(columns.ptr, ids)
        rows = budget["node@0"]
        node = {
            name: _padded(values[columns.node[row]], rows)
            for name, values in part.node.items()
        }
        node["graph_id"] = pad(
            np.arange(len(ids), dtype=np.int32).repeat(counts),
            rows,
            capacity - 1,
            "node@0",
        )
        node["mask"] = pad(np.ones(len(row), bool), rows, 0, "node@0")
        graph = {
            name: _padded(values[ids], capacity)
            for name, values in part.context.items()
        }
        graph["mask"] = pad(np.ones(len(ids), bool), capacity, 0, "graph")
        sizes = {"n_node": part.num_nodes[ids], "n_edge": part.num_edges[ids]}
        sizes = {k: pad(v, capacity, 0, "graph") for k, v in sizes.items()}
        names = members.astype(np.int32)
        graph |= {**sizes, "id": pad(names, capacity, -1, "graph")}
        plan = {}
        before = rows
        for number, step in enumerate(columns.steps):
            now = budget[f"node@{number + 1}"]
            row, own_counts, own_starts = _rows(step.ptr, ids)
            edge, edge_counts, _ = _rows(step.edge_ptr, ids)
            state = step.state[row] + starts.repeat(own_counts)
            edges = Edges(
                step.sender[edge] + starts.repeat(edge_counts),
                step.receiver[edge] + own_starts.repeat(edge_counts),
                step.type[edge],
                num_nodes=now,
                num_types=self.num_types,
                num_senders=before,
                transpose=True,
            )
            tail = f"@{number}"
            own = {
                k.removesuffix(tail): v for k, v in budget.items() if k.endswith(tail)
            }
            plan[f"step:{number}"] = {
                "state": _state(state, before, now, f"node@{number + 1}"),
                **self.plan.pack(edges, own),
            }
            starts, before = own_starts, now
        graph["n_read"] = pad(own_counts.astype(np.int32), capacity, 0, "graph")
        x = {"node": node, "graph": graph, "plan": plan}
        if columns.candidates is not None:
            x["candidate"] = self._candidates(part, columns, ids, starts, budget)
        figures = {
            "node": (int(part.num_nodes[ids].sum()), budget["node"]),
            "edge": (int(part.num_edges[ids].sum()), budget["edge"]),
            "graph": (len(ids), capacity),
        }
        entry = {"x": x}
        if part.label is not None and part.label_level == "node":
            read = columns.last[row]
            entry["y"] = _padded(part.label[read], before)
            entry["weight"] = pad(np.ones(len(read), np.float32), before, 0, "node")
        elif part.label is not None:
            label = _padded(part.label[ids], capacity)
            if part.candidates is None and label.ndim == 1:
                label = label[:, None]
            entry |= {"y": label, "weight": graph["mask"].astype(np.float32)}
        return entry, figures

    def _candidates(self, part, columns, ids, starts, budget) -> dict:
        row, counts, _ = _rows(part.candidate_ptr, ids)
        mask = np.zeros((budget["graph"], budget["candidate"]), bool)
        mask[: len(ids)] = np.arange(mask.shape[1]) < counts[:, None]
        node = np.zeros(mask.shape, np.int32)
        node[mask] = columns.candidates[row] + starts.repeat(counts)
        entry = {"node": node, "mask": mask}
        if self.slots:
            slot = (columns.slot[ids] + starts).astype(np.int32)
            entry["slot"] = pad(slot, budget["graph"], 0, "graph")
        return entry


def _rows(ptr: np.ndarray, ids) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of chosen graphs, their number per graph, and where each graph begins."""
    first = ptr[ids]
    counts = ptr[np.asarray(ids) + 1] - first
    starts = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) + (first - starts).repeat(counts)
    return rows, counts, starts.astype(np.int32)


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    out = np.zeros((length, *values.shape[1:]), values.dtype)
    out[: len(values)] = values
    return out


def _state(index: np.ndarray, before: int, now: int, what: str) -> dict:
    """Arrays of the gather of old states."""
    back = transposed(
        np.arange(len(index), dtype=np.int32), index, (now, before), now, what
    )
    names = ("row", "column", "pointer")
    return {
        "index": pad(index, now, 0, what),
        **{f"back_{name}": back[name] for name in names},
    }
