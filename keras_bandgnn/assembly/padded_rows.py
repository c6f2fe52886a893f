"""`PaddedRows` and `SupergraphLayout`: graphs laid side by side and padded."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import on_host, weight_column
from keras_bandgnn.primitives.base import is_step_resource

# Longer tables of consecutive numbers are built when they are needed.
_MOST_COUNTED = 1 << 24


class PaddedRows:
    """The rows of one kind (nodes, edges, ...) of several supergraphs, padded.

    The rows of all supergraphs are in one array, each supergraph padded to its
    capacity, so a few NumPy calls serve many supergraphs.

    Args:
        parts: The data.
        pointers: Of each part, int64 [n + 1]; None if a graph has one row.
        members: Ids of the graphs of each supergraph.
        starts: First id of each part.
        capacity: Rows that each supergraph is padded to; None for no padding.
        what: Name of the rows in errors.
    """

    def __init__(self, parts, pointers, members, starts, capacity=None, what="rows"):
        ids = np.concatenate(members) if len(members) > 1 else members[0]
        shard = None
        if len(parts) == 1:
            first, self.counts = _rows_of(pointers and pointers[0], ids)
        else:
            first, self.counts = np.empty((2, len(ids)), np.int64)
            shard = np.searchsorted(starts, ids, side="right") - 1
            for number in np.unique(shard):
                here = shard == number
                first[here], self.counts[here] = _rows_of(
                    pointers and pointers[number], ids[here] - starts[number]
                )
        graphs = np.cumsum([0, *map(len, members)])
        if pointers is None:
            # Samples take many single rows of one graph.
            bounds, shift = graphs.tolist(), first
            self.before = _counting(len(ids))
        else:
            ends = self.counts.cumsum()
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
        counting = 0 if pointers is None else _counting(len(shift))
        if shard is not None:
            self.pieces = self._by_part(shard, graphs, shift + counting)
            return
        padded = np.empty(self.offsets[-1], np.int64)
        for tail in self.tails:
            padded[tail] = 0
        for place, real in zip(self.place, self.real, strict=True):
            if pointers is None:
                padded[place] = first[real]
            else:
                np.add(shift[real], counting[real], out=padded[place])
        self.pieces = [(0, padded, slice(None))]

    def _by_part(self, shard, graphs, rows) -> list[tuple[int, np.ndarray, slice]]:
        """Return the part, its rows and their place, for graphs of several parts."""
        pieces = []
        for low, high, place in zip(graphs, graphs[1:], self.place, strict=False):
            at = place.start
            for number in np.unique(shard[low:high]):
                # Members are sorted, so those of a part are neighbours.
                inside = np.flatnonzero(shard[low:high] == number) + low
                begin = self.before[inside[0]]
                end = self.before[inside[-1]] + self.counts[inside[-1]]
                piece = slice(at, at + end - begin)
                pieces.append((int(number), rows[begin:end], piece))
                at = piece.stop
        return pieces

    def column(
        self, sources: Sequence[np.ndarray], fill=0, empty: Callable = np.empty
    ) -> np.ndarray:
        """Return the rows of a column, padded.

        Args:
            sources: The column in each part, by the number of the part: the same part
                may occur several times.
            fill: Value of the padding.
            empty: From a shape and a dtype to the array of the result.
        """
        first = sources[0]
        out = empty((self.offsets[-1], *first.shape[1:]), first.dtype)
        for number, rows, piece in self.pieces:
            # With "wrap" NumPy writes into `out` directly; the rows are in range.
            source = sources[number]
            if len(source):
                source.take(rows, axis=0, out=out[piece], mode="wrap")
        for tail in self.tails:
            out[tail] = fill
        return out

    def through(self, index: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the rows of `values` that a column of row numbers names, padded.

        Args:
            index: int, a column of the only part.
            values: What its entries count.
        """
        rows = self.column([index])
        out = np.zeros((len(rows), *values.shape[1:]), values.dtype)
        if len(values):
            values.take(rows, axis=0, out=out, mode="wrap")
        for tail in self.tails:
            out[tail] = 0
        return out

    def filled(self, first: int, replicas: int) -> tuple[int, int]:
        """Return the real rows of `replicas` supergraphs, and all their rows."""
        last = first + replicas
        real = self.real[last - 1].stop - self.real[first].start
        return real, self.offsets[last] - self.offsets[first]

    def cut(self, values: np.ndarray, first: int, replicas: int) -> np.ndarray:
        """Return the rows of `replicas` supergraphs, [replicas, capacity, ...]."""
        low, high = self.offsets[first], self.offsets[first + replicas]
        if replicas == 1:
            return values[None, low:high]
        return values[low:high].reshape((replicas, -1, *values.shape[1:]))

    def padded(self, values: np.ndarray, fill, dtype=np.int32) -> np.ndarray:
        """Return values of the real rows, padded, [rows]."""
        out = np.full(self.offsets[-1], fill, dtype)
        for place, real in zip(self.place, self.real, strict=True):
            out[place] = values[real]
        return out

    def aligned(self, values: np.ndarray) -> np.ndarray:
        """Return values of the real rows, padded by 0, [rows, ...]."""
        out = np.zeros((self.offsets[-1], *values.shape[1:]), values.dtype)
        for place, real in zip(self.place, self.real, strict=True):
            out[place] = values[real]
        return out

    def mask(self) -> np.ndarray:
        """Return True for real rows."""
        out = np.zeros(self.offsets[-1], bool)
        for place in self.place:
            out[place] = True
        return out


def picked_rows(ids: Sequence[np.ndarray], capacity: int, what="rows") -> PaddedRows:
    """Return the padded rows that ids name, of any graphs.

    Args:
        ids: Of each supergraph int64 [n], rows of a column.
        capacity: Rows that each supergraph is padded to.
        what: Name of the rows in errors.
    """
    starts = np.zeros(1, np.int64)
    return PaddedRows([None], None, ids, starts, [capacity] * len(ids), what)


def _counting(length: int) -> np.ndarray:
    """Return 0, 1, 2, ..., from a table that grows."""
    global _table
    if length > _MOST_COUNTED:
        return np.arange(length)
    # Several threads assemble: one may replace the table by a shorter one at any
    # moment, so each keeps the table whose length it checked.
    table = _table
    if len(table) < length:
        table = np.arange(min(2 * length, _MOST_COUNTED))
        table.flags.writeable = False
        _table = table
    return table[:length]


_table = np.arange(1)


def _rows_of(pointer, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row and the number of rows of graphs."""
    if pointer is None:
        return ids, np.broadcast_to(np.int64(1), len(ids))
    first = pointer.take(ids)
    return first, pointer.take(ids + 1) - first


def set_resource(name: str) -> str:
    """Return the name of the resource of a node set, its rows."""
    return f"set:{name}"


class SupergraphLayout:
    """Nodes, graphs, candidates and labels of several supergraphs.

    The part of a batch that does not depend on how a plan carries out its sums; the
    assemblers add edges and plan.

    Args:
        parts: The graphs.
        members: Ids of the graphs of each supergraph; ascending if there are several
            parts.
        starts: First id of each part.
        budgets: Capacities of each supergraph.
    """

    def __init__(
        self,
        parts: Sequence[FlatGraphs],
        members: Sequence[np.ndarray],
        starts: np.ndarray,
        budgets: Sequence[Mapping[str, int]],
    ):
        self.parts = parts
        self.members = members
        self.starts = starts
        self.budgets = budgets
        self.graph = self.rows(None, "graph")
        self._columns: dict[str, tuple[PaddedRows, dict[str, np.ndarray]]] = {}
        self._sets: dict[str, tuple[PaddedRows, dict[str, np.ndarray]]] = {}
        self._candidates: list[dict] | None = None
        self._label: tuple | None = None

    def rows(self, pointers: Sequence | None, resource: str | None = None):
        """Return the `PaddedRows` of the graphs.

        Args:
            pointers: Of each part, int64 [n + 1]; None if a graph has one row.
            resource: Name of the capacity; None for no padding.
        """
        if resource is None:
            return PaddedRows(self.parts, pointers, self.members, self.starts)
        scheduled = is_step_resource(resource)
        what = f"rows of {resource!r}" if scheduled else f"{resource}s"
        capacity = [budget[resource] for budget in self.budgets]
        return PaddedRows(
            self.parts, pointers, self.members, self.starts, capacity, what
        )

    def first_rows(self, rows: PaddedRows) -> np.ndarray:
        """Return the first row of each graph within its supergraph, int32 [m]."""
        lengths = [len(m) for m in self.members]
        # Rows are counted within each supergraph.
        begins = np.array([r.start for r in rows.real], np.int64).repeat(lengths)
        return (rows.before - begins).astype(np.int32)

    def features(self, rows: PaddedRows, kind: str) -> dict[str, np.ndarray]:
        """Return the features of nodes, edges or graphs ("context"), padded."""
        return {
            name: rows.column([getattr(part, kind)[name] for part in self.parts])
            for name in getattr(self.parts[0], kind)
            if not on_host(kind, name)
        }

    def add(self, kind: str, rows: PaddedRows, columns: dict) -> None:
        """Add columns of a kind of rows, such as "edge"."""
        self._columns[kind] = rows, columns

    def add_nodes(self, rows: PaddedRows, features: dict) -> None:
        """Add the nodes: their features, graph and mask."""
        lengths = [len(m) for m in self.members]
        slot = np.arange(sum(lengths), dtype=np.int32)
        slot -= (np.cumsum(lengths) - lengths).astype(np.int32).repeat(lengths)
        graph_id = rows.padded(slot.repeat(rows.counts), 0)
        for tail, budget in zip(rows.tails, self.budgets, strict=True):
            graph_id[tail] = budget["graph"] - 1
        self.add("node", rows, {**features, "graph_id": graph_id, "mask": rows.mask()})

    def add_sets(self) -> None:
        """Add the tables of node sets, and the row of each node among all of them."""
        tables = self.parts[0].sets
        if not tables:
            return
        nodes, features = self._columns["node"]
        lengths = [len(m) for m in self.members]
        first, place = [], np.zeros(len(lengths), np.int64)
        for name in tables:
            ptr = [part.set_ptr[name] for part in self.parts]
            rows = self.rows(ptr, set_resource(name))
            columns = {
                key: rows.column([part.sets[name][key] for part in self.parts])
                for key in tables[name]
            }
            self._sets[name] = rows, {**columns, "mask": rows.mask()}
            # Tables follow one another, each padded.
            first.append(place.repeat(lengths) + self.first_rows(rows))
            place = place + np.diff(rows.offsets)
        starts = np.stack(first).astype(np.int32)
        graph = np.arange(len(nodes.counts)).repeat(nodes.counts)
        row = features["set_row"].copy()
        for at, real in zip(nodes.place, nodes.real, strict=True):
            row[at] += starts[features["set"][at], graph[real]]
        features[STATE_ROW] = row
        self._add_set_nodes(nodes, features["set"], row)

    def _add_set_nodes(self, nodes: PaddedRows, kinds, state_row) -> None:
        """Add the node of each row of the tables; 0 of rows without one."""
        ids = [np.zeros(rows.offsets[-1], np.int32) for rows, _ in self._sets.values()]
        for group, at in enumerate(nodes.place):
            first = 0
            for kind, (rows, _) in enumerate(self._sets.values()):
                low, high = rows.offsets[group : group + 2]
                here = np.flatnonzero(kinds[at] == kind)
                ids[kind][low + state_row[at][here] - first] = here
                first += high - low
        for (_, columns), nodes_of_rows in zip(self._sets.values(), ids, strict=True):
            columns["node"] = nodes_of_rows

    def add_graphs(self, n_node, n_edge, ids, **columns: np.ndarray) -> None:
        """Add the graphs: their context, sizes, ids and more, each int [m]."""
        # Functional models bind arrays by position: the order of names is fixed.
        columns = {
            **self.features(self.graph, "context"),
            "mask": self.graph.mask(),
            "n_node": self.graph.padded(n_node, 0),
            "n_edge": self.graph.padded(n_edge, 0),
            "id": self.graph.padded(ids, -1),
            **{name: self.graph.padded(v, 0) for name, v in columns.items()},
        }
        self.add("graph", self.graph, columns)

    def add_candidates(self, candidates, slots, starts: np.ndarray) -> None:
        """Add the candidates.

        Args:
            candidates: Of each part int32 [c], the row of each within its graph.
            slots: Of each part int32 [n], the row of its slot; None for no slots.
            starts: int32 [m], the first row of each graph within its supergraph.
        """
        rows = self.rows([part.candidate_ptr for part in self.parts])
        ids = rows.column(candidates)
        ids += starts.repeat(rows.counts)
        if slots is not None:
            slots = self.graph.column(slots)
        self._candidates = []
        for s, budget in enumerate(self.budgets):
            real, first = self.graph.real[s], self.graph.offsets[s]
            count = real.stop - real.start
            mask = np.zeros((budget["graph"], budget["candidate"]), bool)
            mask[:count] = np.arange(mask.shape[1]) < rows.counts[real, None]
            node = np.zeros(mask.shape, np.int32)
            node[mask] = ids[rows.real[s]]
            entry = {"node": node, "mask": mask}
            if slots is not None:
                entry["slot"] = slots[first : first + budget["graph"]]
                entry["slot"][:count] += starts[real]
            self._candidates.append(entry)

    def add_labels(self, rows: PaddedRows, column: Callable) -> None:
        """Add the labels of nodes, edges or graphs, and their weights.

        Args:
            rows: The padded rows of nodes, edges or graphs.
            column: From an array of each part, [its nodes, for example, ...], to the
                padded [rows, ...].
        """
        part = self.parts[0]
        values = column([p.label for p in self.parts])
        weight = rows.mask().astype(np.float32)
        weights = [p.columns().get(weight_column(p.label_level)) for p in self.parts]
        if weights[0] is not None:
            weight *= column(weights)
        if part.label_level == "graph" and part.candidates is None and values.ndim == 1:
            values = values[:, None]
        self._label = rows, values, weight

    def batch(self, first: int, replicas: int) -> tuple:
        """Return (x, y, sample_weight) of a batch, or (x,) without labels.

        x lacks the plan.
        """
        x = {
            kind: {
                name: rows.cut(values, first, replicas)
                for name, values in columns.items()
            }
            for kind, (rows, columns) in self._columns.items()
        }
        if self._sets:
            x["set"] = {
                name: {k: rows.cut(v, first, replicas) for k, v in columns.items()}
                for name, (rows, columns) in self._sets.items()
            }
        if self._candidates is not None:
            x["candidate"] = stack(self._candidates[first : first + replicas])
        if self._label is None:
            return (x,)
        rows, values, weight = self._label
        return x, rows.cut(values, first, replicas), rows.cut(weight, first, replicas)


def stack(trees: Sequence) -> dict | np.ndarray:
    """Return the arrays of G supergraphs, joined along a new axis 0."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: stack([tree[key] for tree in trees]) for key in first}
    return np.stack(trees) if len(trees) > 1 else first[None]
