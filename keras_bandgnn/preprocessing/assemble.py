"""`Assembler`: from chosen graphs to the arrays of batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.primitives.base import Edges
from keras_bandgnn.primitives.plan import Plan


class Supergraph(NamedTuple):
    """The graphs of a supergraph and the sizes that it is padded to."""

    members: np.ndarray
    budget: dict[str, int]


def supergraph_edges(part: FlatGraphs, num_nodes: int, num_types: int) -> Edges:
    """The edges of graphs laid side by side, node ids counted through."""
    offset = np.repeat(part.node_ptr[:-1], part.num_edges).astype(np.int32)
    return Edges(
        sender=part.senders + offset,
        receiver=part.receivers + offset,
        type=part.edge_type,
        num_nodes=num_nodes,
        num_types=num_types,
    )


class _Level:
    """Where the rows of one level ("node", "edge", ...) lie and where they go.

    Rows of all supergraphs lie in one array, each supergraph padded to its capacity:
    a few calls of NumPy serve many supergraphs.

    Args:
        parts: The data.
        pointers: Of each part, int64 [n + 1]; None if a graph has one row.
        members: Ids of the graphs of each supergraph.
        starts: First id of each part.
        capacity: Rows that each supergraph is padded to; None for no padding.
    """

    def __init__(self, parts, pointers, members, starts, capacity=None):
        ids = np.concatenate(members)
        self.counts = np.ones(len(ids), np.int64)
        if pointers is not None:
            self.counts = np.empty(len(ids), np.int64)
        first = np.empty(len(ids), np.int64)
        shard = None
        if len(parts) == 1:
            first, self.counts = _rows_of(pointers and pointers[0], ids)
        else:
            shard = np.searchsorted(starts, ids, side="right") - 1
            for number in np.unique(shard):
                here = shard == number
                first[here], self.counts[here] = _rows_of(
                    pointers and pointers[number], ids[here] - starts[number]
                )
        ends = self.counts.cumsum()
        graphs = np.cumsum([0, *map(len, members)])
        bounds = np.concatenate([[0], ends])[graphs].tolist()
        self.before = ends - self.counts
        shift = (first - self.before).repeat(self.counts)
        if capacity is None:
            capacity = np.diff(bounds).tolist()
        self.offsets = np.cumsum([0, *capacity]).tolist()
        # Where the real rows of each supergraph are, flat and padded.
        self.real = [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
        self.place = [
            slice(o, o + r.stop - r.start)
            for o, r in zip(self.offsets, self.real, strict=False)
        ]
        self.tails = [
            slice(p.stop, end)
            for p, end in zip(self.place, self.offsets[1:], strict=True)
            if p.stop < end
        ]
        counting = _counting(len(shift))
        if shard is None:
            padded = np.empty(self.offsets[-1], np.int64)
            for tail in self.tails:
                padded[tail] = 0
            for place, real in zip(self.place, self.real, strict=True):
                np.add(shift[real], counting[real], out=padded[place])
            self.pieces = [(parts[0], padded, slice(None))]
            return
        rows = shift + counting
        self.pieces = []
        for low, high, place in zip(graphs, graphs[1:], self.place, strict=False):
            at = place.start
            for number in np.unique(shard[low:high]):
                # Members are sorted, so those of a part are neighbours.
                inside = np.flatnonzero(shard[low:high] == number) + low
                begin, end = self.before[inside[0]], ends[inside[-1]]
                piece = slice(at, at + end - begin)
                self.pieces.append((parts[number], rows[begin:end], piece))
                at = piece.stop

    def column(self, first: np.ndarray, read: Callable, fill=0) -> np.ndarray:
        """The rows of a column, like `first` in dtype and shape of a row."""
        out = np.empty((self.offsets[-1], *first.shape[1:]), first.dtype)
        for part, rows, piece in self.pieces:
            # With "clip" NumPy writes into `out` directly; the rows are in range.
            source = read(part)
            if len(source):
                source.take(rows, axis=0, out=out[piece], mode="clip")
        for tail in self.tails:
            out[tail] = fill
        return out

    def placed(self, values: np.ndarray, fill) -> np.ndarray:
        """Values of the real rows, padded."""
        out = np.full(self.offsets[-1], fill, np.int32)
        for place, real in zip(self.place, self.real, strict=True):
            out[place] = values[real]
        return out

    def mask(self) -> np.ndarray:
        """True for real rows."""
        out = np.zeros(self.offsets[-1], bool)
        for place in self.place:
            out[place] = True
        return out


def _counting(length: int) -> np.ndarray:
    """0, 1, 2, ..., from a table that grows."""
    global _table
    if len(_table) < length:
        _table = np.arange(2 * length)
    return _table[:length]


_table = np.arange(1)


def _rows_of(pointer, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of graphs."""
    if pointer is None:
        return ids, np.ones(len(ids), np.int64)
    first = pointer.take(ids)
    return first, pointer.take(ids + 1) - first


class Assembler:
    """Lays graphs side by side and pads them, with no work per graph in Python.

    Args:
        parts: The graphs; ids count through all parts.
        plan: Who carries which edge.
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

    def build(self, supergraphs: Sequence[Supergraph], width: int) -> list[tuple]:
        """Builds batches.

        Args:
            supergraphs: The supergraphs of the batches, one after the other; those of
                a batch have the same budget: "node" N, "edge" E, "graph" B,
                "candidate" C, and what the plan needs.
            width: G, supergraphs per batch.

        Returns:
            For each batch (x, y, sample_weight), or (x,) without labels.
        """
        members = [np.asarray(s.members, np.int64) for s in supergraphs]
        if len(self.parts) > 1:
            members = [np.sort(m) for m in members]
        budgets = [s.budget for s in supergraphs]
        part = self.parts[0]
        edge_ptr = [p.edge_ptr for p in self.parts]
        levels = {
            "node": self._level(
                [p.node_ptr for p in self.parts], members, budgets, "node"
            ),
            "edge": self._level(edge_ptr, members, budgets, "edge"),
            "graph": self._level(None, members, budgets, "graph"),
        }
        flat = {
            "node": self._columns(levels["node"], "node"),
            "edge": self._columns(levels["edge"], "edge"),
            "graph": self._columns(levels["graph"], "context"),
        }
        starts = self._add_nodes_and_graphs(flat, levels, members, budgets)
        self._add_edges(flat["edge"], levels["edge"], starts, budgets)
        if part.label is not None:
            level = levels[part.label_level]
            flat["y"] = {"y": level.column(part.label, lambda p: p.label)}
            weight = flat[part.label_level]["mask"].astype(np.float32)
            flat["y"]["weight"] = weight
        if part.candidates is not None:
            candidates = self._candidates(levels["graph"], members, starts, budgets)
        batches = []
        for first in range(0, len(supergraphs), width):
            chosen = range(first, first + width)
            x = {
                kind: {
                    name: _cut(values, levels[kind].offsets, first, width)
                    for name, values in flat[kind].items()
                }
                for kind in ("node", "edge", "graph")
            }
            if part.candidates is not None:
                x["candidate"] = _stack([candidates[s] for s in chosen])
            plans = [
                self._plan(x["edge"], g, levels["edge"].place[s], budgets[s])
                for g, s in enumerate(chosen)
            ]
            x["plan"] = _stack(plans)
            if part.label is None:
                batches.append((x,))
                continue
            offsets = levels[part.label_level].offsets
            label = _cut(flat["y"]["y"], offsets, first, width)
            if part.label_level == "graph" and part.candidates is None:
                label = label[..., None] if label.ndim == 2 else label
            weight = _cut(flat["y"]["weight"], offsets, first, width)
            batches.append((x, label, weight))
        return batches

    def _level(self, pointers, members, budgets, name: str | None) -> _Level:
        capacity = None if name is None else [b[name] for b in budgets]
        return _Level(self.parts, pointers, members, self.starts, capacity)

    def _columns(self, level: _Level, kind: str) -> dict[str, np.ndarray]:
        return {
            name: level.column(first, lambda p, name=name: getattr(p, kind)[name])
            for name, first in getattr(self.parts[0], kind).items()
        }

    def _add_nodes_and_graphs(self, flat, levels, members, budgets) -> np.ndarray:
        """Adds what the graphs' sizes say; returns the first node of each graph."""
        node, edge, graph = (levels[name] for name in ("node", "edge", "graph"))
        lengths = [len(m) for m in members]
        # Counting starts anew in every supergraph.
        begun = np.array([r.start for r in node.real], np.int64).repeat(lengths)
        starts = (node.before - begun).astype(np.int32)
        slot = np.arange(sum(lengths), dtype=np.int32)
        slot -= (np.cumsum(lengths) - lengths).astype(np.int32).repeat(lengths)
        graph_id = node.placed(slot.repeat(node.counts), 0)
        for tail, budget in zip(_tails(node), budgets, strict=True):
            graph_id[tail] = budget["graph"] - 1
        flat["node"] |= {"graph_id": graph_id, "mask": node.mask()}
        flat["graph"] |= {
            "mask": graph.mask(),
            "n_node": graph.placed(node.counts, 0),
            "n_edge": graph.placed(edge.counts, 0),
            "id": graph.placed(np.concatenate(members), -1),
        }
        return starts

    def _add_edges(self, flat, level: _Level, starts, budgets) -> None:
        part = self.parts[0]
        sender = level.column(part.senders, lambda p: p.senders)
        receiver = level.column(part.receivers, lambda p: p.receivers)
        shift = starts.repeat(level.counts)
        for place, real in zip(level.place, level.real, strict=True):
            sender[place] += shift[real]
            receiver[place] += shift[real]
        for tail, budget in zip(_tails(level), budgets, strict=True):
            receiver[tail] = budget["node"]
        flat |= {"sender": sender, "receiver": receiver}
        if self.num_types == 1:
            flat["type"] = np.zeros(level.offsets[-1], np.int32)
        else:
            flat["type"] = level.column(part.edge_type, lambda p: p.edge_type)
        flat["mask"] = level.mask()

    def _plan(self, edge: Mapping, g: int, place: slice, budget: Mapping) -> dict:
        room = tuple(edge[name][g] for name in ("sender", "receiver", "type"))
        count = place.stop - place.start
        edges = Edges(
            *(values[:count] for values in room),
            num_nodes=budget["node"],
            num_types=self.num_types,
            room=room,
        )
        return self.plan.pack(edges, budget)

    def _candidates(self, graph: _Level, members, starts, budgets) -> list[dict]:
        pointers = [p.candidate_ptr for p in self.parts]
        level = self._level(pointers, members, budgets, None)
        part = self.parts[0]
        ids = level.column(part.candidates, lambda p: p.candidates)
        ids += starts.repeat(level.counts)
        slots = graph.column(part.slot, lambda p: p.slot)
        out = []
        for s, budget in enumerate(budgets):
            chosen, first = graph.real[s], graph.offsets[s]
            count = chosen.stop - chosen.start
            mask = np.zeros((budget["graph"], budget["candidate"]), bool)
            mask[:count] = np.arange(mask.shape[1]) < level.counts[chosen, None]
            node = np.zeros(mask.shape, np.int32)
            node[mask] = ids[level.real[s]]
            entry = {"node": node, "mask": mask}
            if self.slots:
                entry["slot"] = slots[first : first + budget["graph"]]
                entry["slot"][:count] += starts[chosen]
            out.append(entry)
        return out


def _tails(level: _Level) -> list[slice]:
    """The padding of each supergraph."""
    ends = level.offsets[1:]
    return [slice(p.stop, end) for p, end in zip(level.place, ends, strict=True)]


def _cut(values: np.ndarray, offsets: list[int], first: int, width: int) -> np.ndarray:
    """The rows of `width` supergraphs, [width, capacity, ...]."""
    low, high = offsets[first], offsets[first + width]
    return values[low:high].reshape((width, (high - low) // width, *values.shape[1:]))


def _stack(trees: Sequence) -> dict | np.ndarray:
    """Joins the arrays of G supergraphs along a new axis 0."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: _stack([tree[key] for tree in trees]) for key in first}
    return np.stack(trees) if len(trees) > 1 else first[None]
