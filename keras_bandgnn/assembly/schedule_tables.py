"""`ScheduleTable`: rows and edges of each step of a receptive field, of many graphs."""

import dataclasses

import numpy as np

from keras_bandgnn.assembly.canonical_order import mixed
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import on_host
from keras_bandgnn.primitives.receptive_field import ReceptiveField

# Edges whose tables are built at a time: their colours stay in the cache.
_CHUNK = 300_000


@dataclasses.dataclass
class StepTable:
    """One propagation step, from the rows of the preceding list to the next.

    Ids count within each graph's part of a list.

    Args:
        ptr: int64 [n + 1], where the rows of each graph begin.
        state: int32, row of the old state in the list before.
        edge_ptr: int64 [n + 1].
        sender: int32, row in the list before.
        receiver: int32, row, sorted.
        type: int32.
        colour: uint64, equal for equal states, of any graphs; None for rows that are
            not merged.
    """

    ptr: np.ndarray
    state: np.ndarray
    edge_ptr: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    type: np.ndarray
    colour: np.ndarray | None


@dataclasses.dataclass
class ScheduleTable:
    """The lists of all steps.

    Args:
        ptr: int64 [n + 1], rows of the first list per graph.
        node: int64, node whose features a row of the first list has.
        steps: T steps.
        last: int64, node of each row of the last list.
        candidates: int32, row of each candidate in the last list, or None.
        slot: int32 [n], row of the slot, -1 if there is none; or None.
        colour: uint64, of the rows of the first list, or None; see `StepTable`.
    """

    ptr: np.ndarray
    node: np.ndarray
    steps: list[StepTable]
    last: np.ndarray
    candidates: np.ndarray | None
    slot: np.ndarray | None
    colour: np.ndarray | None

    @classmethod
    def of(cls, graphs: FlatGraphs, field: ReceptiveField) -> "ScheduleTable":
        """Build the tables of all steps of graphs.

        Args:
            graphs: The graphs.
            field: The schedule.
        """
        pieces = [_columns(piece, field) for piece in pieces_of(graphs)]
        return pieces[0] if len(pieces) == 1 else _joined(pieces, graphs)


def pieces_of(graphs: FlatGraphs) -> list[FlatGraphs]:
    """Return the graphs in pieces whose tables are built one at a time."""
    return graphs.pieces(_CHUNK)


def _columns(graphs: FlatGraphs, field: ReceptiveField) -> ScheduleTable:
    distance = field.distances(graphs)
    sender, receiver, kind = _edges_by_receiver(graphs)
    total = len(distance)
    begins = np.searchsorted(receiver, np.arange(total + 1))
    graph_of_node = np.arange(len(graphs)).repeat(graphs.num_nodes)
    colour = graph_hash = None
    if field.merge:
        colour = _first_colours(graphs, graph_of_node)
        # Colours are pseudo-random, so that these are as good as hashes of both.
        graph_hash = graph_of_node.astype(np.uint64)
    steps = []
    active = np.flatnonzero(distance <= field.steps)
    nodes, place = _list(active, total, colour, graph_hash)
    first_colour = None if colour is None else colour[nodes]
    ptr, rows = _pointer(nodes, graphs.node_ptr), nodes
    starts = ptr[:-1][graph_of_node]
    for step in range(field.steps):
        remaining = field.steps - 1 - step
        if colour is not None:
            colour = _refined(
                colour, sender, receiver, kind, begins, distance <= remaining
            )
        active = np.flatnonzero(distance <= remaining)
        # What is read keeps a row of its own.
        seen = colour if remaining else None
        nodes, own_place = _list(active, total, seen, graph_hash)
        own_ptr = _pointer(nodes, graphs.node_ptr)
        counts = begins[nodes + 1] - begins[nodes]
        edge = np.arange(counts.sum()) + np.repeat(
            begins[nodes] - (np.cumsum(counts) - counts), counts
        )
        own_starts = own_ptr[:-1][graph_of_node]
        row = np.arange(len(nodes)) - own_starts[nodes]
        ends = np.concatenate([[0], np.cumsum(counts)])
        steps.append(
            StepTable(
                own_ptr,
                (place[nodes] - starts[nodes]).astype(np.int32),
                ends[own_ptr],
                (place[sender[edge]] - starts[sender[edge]]).astype(np.int32),
                row.repeat(counts).astype(np.int32),
                kind[edge].astype(np.int32),
                None if seen is None else seen[nodes],
            )
        )
        place, starts = own_place, own_starts
    candidates = slot = None
    if graphs.candidates is not None and field.read is None:
        candidates, slot = _selection_rows(graphs, place - starts)
    return ScheduleTable(ptr, rows, steps, nodes, candidates, slot, first_colour)


def _edges_by_receiver(graphs: FlatGraphs) -> tuple[np.ndarray, ...]:
    """Return senders, receivers and types; edges into a list of nodes are pieces."""
    first = graphs.node_ptr[:-1].repeat(graphs.num_edges)
    sender, receiver = graphs.senders + first, graphs.receivers + first
    kind = graphs.edge_type
    if (receiver[1:] < receiver[:-1]).any():
        order = np.argsort(receiver, kind="stable")
        sender, receiver, kind = sender[order], receiver[order], kind[order]
    return sender, receiver, kind


def _selection_rows(
    graphs: FlatGraphs, row: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the candidates and of the slots (-1 without one)."""
    first = graphs.node_ptr[:-1]
    candidates = graphs.candidates + first.repeat(np.diff(graphs.candidate_ptr))
    slot = np.where(graphs.slot < 0, -1, row[np.maximum(graphs.slot, 0) + first])
    return row[candidates].astype(np.int32), slot.astype(np.int32)


def _list(
    active: np.ndarray, total: int, colour, graph_hash
) -> tuple[np.ndarray, np.ndarray]:
    """Return one node per graph and colour of the active ones, and each one's row."""
    place = np.full(total, -1, np.int64)
    if colour is None:
        place[active] = np.arange(len(active))
        return active, place
    seen = colour[active] ^ graph_hash[active]
    _, first, which = np.unique(seen, return_index=True, return_inverse=True)
    # In the order of the nodes, so graphs stay together.
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    place[active] = rank[which]
    return active[first[order]], place


def _pointer(nodes: np.ndarray, node_ptr: np.ndarray) -> np.ndarray:
    return np.searchsorted(nodes, node_ptr)


def _first_colours(graphs: FlatGraphs, graph_of_node: np.ndarray) -> np.ndarray:
    """Return a hash of all features of each node and its graph, uint64 [N]."""
    first = np.zeros(len(graphs), np.uint64)
    of_graph = _hashed(first, graphs.context, "context")
    return _hashed(of_graph[graph_of_node], graphs.node, "node")


def _hashed(colour: np.ndarray, features: dict, kind: str) -> np.ndarray:
    """Return a hash of earlier ones and the rows of features, uint64 [N]."""
    for name in sorted(features):
        if on_host(kind, name):
            continue
        values = features[name]
        values = np.ascontiguousarray(values.reshape(len(colour), -1))
        if values.dtype.itemsize == 8:
            columns = values.view(np.uint64)
        else:
            columns = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
        for column in columns.T:
            colour = mixed(colour ^ column)
    return colour


def _refined(colour, sender, receiver, kind, begins, active) -> np.ndarray:
    """Return the colours of the active nodes after one more step."""
    needed = active[receiver]
    sent = colour[sender[needed]] * np.uint64(31) + kind[needed].astype(np.uint64)
    sent = mixed(sent)
    # The sum does not depend on the order of the edges. Differences of running sums
    # are right although these overflow.
    running = np.zeros(len(sent) + 1, np.uint64)
    np.cumsum(sent, out=running[1:])
    ends = np.concatenate([[0], np.cumsum(needed)])[begins]
    total = running[ends[1:]] - running[ends[:-1]]
    return np.where(active, mixed(mixed(colour) + total), colour)


def _joined(pieces: list[ScheduleTable], graphs: FlatGraphs) -> ScheduleTable:
    def pointers(parts):
        shifts = np.cumsum([0, *(int(p[-1]) for p in parts)])
        out = [p[:-1] + s for p, s in zip(parts, shifts, strict=False)]
        return np.concatenate([*out, shifts[-1:]])

    def column(parts):
        return None if parts[0] is None else np.concatenate(parts)

    lows = [graphs.node_ptr[low] for low, _ in graphs.ranges(_CHUNK)]
    steps = []
    for number in range(len(pieces[0].steps)):
        tables = [piece.steps[number] for piece in pieces]
        steps.append(
            StepTable(
                pointers([s.ptr for s in tables]),
                column([s.state for s in tables]),
                pointers([s.edge_ptr for s in tables]),
                column([s.sender for s in tables]),
                column([s.receiver for s in tables]),
                column([s.type for s in tables]),
                column([s.colour for s in tables]),
            )
        )
    return ScheduleTable(
        pointers([p.ptr for p in pieces]),
        column([p.node + low for p, low in zip(pieces, lows, strict=True)]),
        steps,
        column([p.last + low for p, low in zip(pieces, lows, strict=True)]),
        column([p.candidates for p in pieces]),
        column([p.slot for p in pieces]),
        column([p.colour for p in pieces]),
    )
