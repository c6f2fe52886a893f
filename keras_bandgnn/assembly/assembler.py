"""`Assembler`: from chosen graphs to the arrays of batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_bandgnn.assembly.pair_index import GroupedColumns, lay_out
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.plan import Plan

# `Level`: rows of chosen graphs, laid side by side and padded.


LOW_BITS = np.uint32(0xFFFF)
_MOST_PACKED = 64_000_000
# Longer tables of numbers are made when they are needed.
_MOST_COUNTED = 1 << 24


class Level:
    """Where the rows of one level ("node", "edge", ...) lie and where they go.

    Rows of all supergraphs lie in one array, each supergraph padded to its capacity:
    a few calls of NumPy serve many supergraphs.

    Args:
        parts: The data.
        pointers: Of each part, int64 [n + 1]; None if a graph has one row.
        members: Ids of the graphs of each supergraph.
        starts: First id of each part.
        capacity: Rows that each supergraph is padded to; None for no padding.
        what: Name of the rows in errors.
    """

    def __init__(self, parts, pointers, members, starts, capacity=None, what="rows"):
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
        for s, place in enumerate(self.place):
            if place.stop > self.offsets[s + 1]:
                raise ValueError(
                    f"Expected at most {capacity[s]} {what} in supergraph {s}. "
                    f"Received: {place.stop - place.start}. Raise the budget."
                )
        self.tails = [
            slice(p.stop, end)
            for p, end in zip(self.place, self.offsets[1:], strict=True)
        ]
        counting = _counting(len(shift))
        if shard is None:
            padded = np.empty(self.offsets[-1], np.int64)
            for tail in self.tails:
                padded[tail] = 0
            for place, real in zip(self.place, self.real, strict=True):
                np.add(shift[real], counting[real], out=padded[place])
            self.pieces = [(0, padded, slice(None))]
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
                self.pieces.append((int(number), rows[begin:end], piece))
                at = piece.stop

    def column(self, sources: Sequence[np.ndarray], fill=0) -> np.ndarray:
        """The rows of a column.

        Args:
            sources: The column in each part, by the number of the part: the same part
                may occur several times.
            fill: What is padded.
        """
        first = sources[0]
        out = np.empty((self.offsets[-1], *first.shape[1:]), first.dtype)
        for number, rows, piece in self.pieces:
            # With "wrap" NumPy writes into `out` directly; the rows are in range.
            source = sources[number]
            if len(source):
                source.take(rows, axis=0, out=out[piece], mode="wrap")
        for tail in self.tails:
            out[tail] = fill
        return out

    def cut(self, values: np.ndarray, first: int, width: int) -> np.ndarray:
        """The rows of `width` supergraphs, [width, capacity, ...]."""
        low, high = self.offsets[first], self.offsets[first + width]
        if width == 1:
            return values[None, low:high]
        return values[low:high].reshape((width, -1, *values.shape[1:]))

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
    if length > _MOST_COUNTED:
        return np.arange(length)
    # Several threads assemble: one may replace the table by a shorter one at any
    # moment, so each goes on with the table that it looked at.
    table = _table
    if len(table) < length:
        table = np.arange(min(2 * length, _MOST_COUNTED))
        table.flags.writeable = False
        _table = table
    return table[:length]


_table = np.arange(1)


def _rows_of(pointer, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of graphs."""
    if pointer is None:
        return ids, np.ones(len(ids), np.int64)
    first = pointer.take(ids)
    return first, pointer.take(ids + 1) - first


def packed_ends(parts: Sequence) -> list[np.ndarray] | None:
    """Sender and receiver of each edge in one number, which is read at once.

    Memory is what assembling waits for. None if ids are too large for that, or if the
    edges are so many that a copy of them should not lie in memory.
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
    """The graphs of a supergraph and the sizes that it is padded to."""

    members: np.ndarray
    budget: dict[str, int]


class Assembler:
    """Lays graphs side by side and pads them, with no work per graph in Python.

    Args:
        parts: The graphs; ids count through all parts.
        plan: Who carries which edge.
        num_types: P.
        slots: Whether every graph of the data has a slot.
        edge_weight: Edge feature that is the factor of each message, or None.
    """

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
        self._columns_of = self._compile()
        self._ends = packed_ends(self.parts)

    def __reduce__(self):
        facts = (self.parts, self.plan, self.num_types, self.slots, self.edge_weight)
        return Assembler, facts

    def _compile(self) -> list[GroupedColumns] | None:
        """What `Grouped` needs of each part, if it carries all edges."""
        if self.edge_weight is not None or len(self.plan.primitives) != 1:
            return None
        (grouped,) = self.plan.primitives
        if not isinstance(grouped, Grouped) or grouped.first != "transform":
            return None
        return [GroupedColumns(part, self.num_types) for part in self.parts]

    def build(self, supergraphs: Sequence[Supergraph], width: int) -> list[tuple]:
        """Builds batches.

        Args:
            supergraphs: The supergraphs of the batches, one after the other; those of
                a batch have the same budget: "node" N, "edge" E, "graph" B,
                "candidate" C, and what the plan needs.
            width: G, supergraphs per batch.

        Returns:
            For each batch (x, y, sample_weight), or (x,) without labels, and for
            "node", "edge" and "graph" how many rows are real and how many there are.
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
            flat["y"] = {"y": level.column([p.label for p in self.parts])}
            weight = flat[part.label_level]["mask"].astype(np.float32)
            flat["y"]["weight"] = weight
        if part.candidates is not None:
            candidates = self._candidates(levels["graph"], members, starts, budgets)
        grouped = None
        if self._columns_of is not None:
            grouped = self._grouped(levels["edge"], members, starts, budgets)
        batches = []
        for first in range(0, len(supergraphs), width):
            chosen = range(first, first + width)
            figures = {
                name: _filled(level, first, width) for name, level in levels.items()
            }
            x = {
                kind: {
                    name: levels[kind].cut(values, first, width)
                    for name, values in flat[kind].items()
                }
                for kind in ("node", "edge", "graph")
            }
            if part.candidates is not None:
                x["candidate"] = stack([candidates[s] for s in chosen])
            if grouped is not None:
                x["plan"] = {self.plan.keys[0]: grouped(x["edge"], first, width)}
            else:
                plans = [
                    self._plan(x, g, levels["edge"].place[s], budgets[s])
                    for g, s in enumerate(chosen)
                ]
                x["plan"] = stack(plans)
            if part.label is None:
                batches.append(((x,), figures))
                continue
            level = levels[part.label_level]
            label = level.cut(flat["y"]["y"], first, width)
            if part.label_level == "graph" and part.candidates is None:
                label = label[..., None] if label.ndim == 2 else label
            weight = level.cut(flat["y"]["weight"], first, width)
            batches.append(((x, label, weight), figures))
        return batches

    def _level(self, pointers, members, budgets, name: str | None) -> Level:
        capacity = None if name is None else [b[name] for b in budgets]
        what = f"{name}s" if name else "rows"
        return Level(self.parts, pointers, members, self.starts, capacity, what)

    def _columns(self, level: Level, kind: str) -> dict[str, np.ndarray]:
        return {
            name: level.column([getattr(p, kind)[name] for p in self.parts])
            for name in getattr(self.parts[0], kind)
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
        for tail, budget in zip(node.tails, budgets, strict=True):
            graph_id[tail] = budget["graph"] - 1
        flat["node"] |= {"graph_id": graph_id, "mask": node.mask()}
        flat["graph"] |= {
            "mask": graph.mask(),
            "n_node": graph.placed(node.counts, 0),
            "n_edge": graph.placed(edge.counts, 0),
            "id": graph.placed(np.concatenate(members), -1),
        }
        return starts

    def _add_edges(self, flat, level: Level, starts, budgets) -> None:
        if self._ends is None:
            sender = level.column([p.senders for p in self.parts])
            receiver = level.column([p.receivers for p in self.parts])
        else:
            ends = level.column(self._ends)
            sender = (ends & LOW_BITS).view(np.int32)
            receiver = np.right_shift(ends, 16, out=ends).view(np.int32)
        shift = starts.repeat(level.counts)
        for place, real in zip(level.place, level.real, strict=True):
            sender[place] += shift[real]
            receiver[place] += shift[real]
        for tail, budget in zip(level.tails, budgets, strict=True):
            receiver[tail] = budget["node"]
        flat |= {"sender": sender, "receiver": receiver}
        if self.num_types == 1:
            flat["type"] = np.zeros(level.offsets[-1], np.int32)
        else:
            flat["type"] = level.column([p.edge_type for p in self.parts])
        flat["mask"] = level.mask()

    def _plan(self, x: Mapping, g: int, place: slice, budget: Mapping) -> dict:
        edge = x["edge"]
        room = tuple(edge[name][g] for name in ("sender", "receiver", "type"))
        count = place.stop - place.start
        edges = Edges(
            *(values[:count] for values in room),
            num_nodes=budget["node"],
            num_types=self.num_types,
            weight=self._weight(edge, g, count),
            room=room,
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

    def _grouped(self, edge: Level, members, starts, budgets) -> Callable:
        """The arrays of `Grouped` for all supergraphs; returns what cuts them."""
        of = self._columns_of
        (grouped,) = self.plan.primitives
        pointers = [columns.ptr for columns in of]
        pairs = self._level(pointers, members, budgets, None)

        def column(level: Level, name: str) -> np.ndarray:
            return level.column([getattr(columns, name) for columns in of])

        pair_of_edge = column(edge, "edge_pair")
        shift = pairs.before.astype(np.int32).repeat(edge.counts)
        for place, real in zip(edge.place, edge.real, strict=True):
            pair_of_edge[place] += shift[real]
        key = grouped.key()
        for real, budget in zip(edge.real, budgets, strict=True):
            if real.stop - real.start > budget[key]:
                raise ValueError(
                    f"Expected at most {budget[key]} edges for '{key}'. Received: "
                    f"{real.stop - real.start}. Raise the budget of '{key}'."
                )
        ids = np.concatenate(members)
        counts = of[0].counts
        if len(of) > 1:
            counts = np.concatenate([columns.counts for columns in of])
        counts = counts.take(ids, axis=0)
        laid = lay_out(
            grouped,
            counts,
            np.array([len(m) for m in members]),
            pairs.counts,
            column(pairs, "kind"),
            column(pairs, "rank"),
            column(pairs, "sender") + starts.repeat(pairs.counts),
            budgets,
        )
        row = np.zeros(len(pair_of_edge), np.int32)
        if len(laid.place):
            laid.place.take(pair_of_edge, out=row, mode="wrap")
        for tail in edge.tails:
            row[tail] = 0
        return lambda x, first, width: laid.cut(
            x, edge.cut(row, first, width), first, width
        )

    def _candidates(self, graph: Level, members, starts, budgets) -> list[dict]:
        pointers = [p.candidate_ptr for p in self.parts]
        level = self._level(pointers, members, budgets, None)
        ids = level.column([p.candidates for p in self.parts])
        ids += starts.repeat(level.counts)
        slots = graph.column([p.slot for p in self.parts])
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


def _filled(level: Level, first: int, width: int) -> tuple[int, int]:
    """Real rows of `width` supergraphs, and all their rows."""
    last = first + width
    real = level.real[last - 1].stop - level.real[first].start
    return real, level.offsets[last] - level.offsets[first]


def stack(trees: Sequence) -> dict | np.ndarray:
    """Joins the arrays of G supergraphs along a new axis 0."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: stack([tree[key] for tree in trees]) for key in first}
    return np.stack(trees) if len(trees) > 1 else first[None]
