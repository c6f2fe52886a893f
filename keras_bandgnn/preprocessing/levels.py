"""`Level`: rows of chosen graphs, laid side by side and padded."""

from collections.abc import Sequence

import numpy as np

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
