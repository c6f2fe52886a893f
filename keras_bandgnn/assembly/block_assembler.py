"""`BlockAssembler`: batches of plans whose schedule is a list of blocks per step."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import (
    Assembler,
    BatchAssembler,
    Supergraph,
    resource_sizes,
)
from keras_bandgnn.assembly.padded_rows import stack
from keras_bandgnn.assembly.schedule_tables import pieces_of
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.primitives.base import of_step, step_key, step_resource
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.plan import Plan

# Entries of the table of offsets counted at a time.
_MOST_ENTRIES = 1 << 22


class BlockAssembler(BatchAssembler):
    """Batches as without a schedule, and the blocks that each step updates.

    A node is active in step t of T if a read node is at most T - 1 - t edges away, a
    block if one of its nodes is. The blocks are sorted by their last active step, so
    that step t updates a prefix of them.

    The resources are those of the batch and of `Banded`; for step t "block:S@t", the
    rows of the blocks that it updates, and those of the rest with the suffix "@t", for
    the edges to active nodes.

    Args:
        parts: The graphs; ids count through all parts.
        plan: `Banded` and a rest, with a `ReceptiveField` of order "blocks".
        num_types: P.
        slots: Whether every graph of the data has a slot.
    """

    def __init__(
        self, parts: Sequence[FlatGraphs], plan: Plan, num_types: int, slots: bool
    ):
        self.parts = list(parts)
        self.plan = plan
        self.num_types = num_types
        self.slots = slots
        self.banded, *others = plan.primitives
        self.fallback = others[0] if others else None
        self._whole = Assembler(
            self.parts, Plan(self.banded, rest="drop"), num_types, slots
        )
        self._distance = np.concatenate(
            [
                plan.schedule.distances(piece)
                for part in self.parts
                for piece in pieces_of(part)
            ]
        )
        lengths = np.concatenate([part.num_nodes for part in self.parts])
        self._node_ptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def __reduce__(self):
        return BlockAssembler, (self.parts, self.plan, self.num_types, self.slots)

    def _resource(self, step: int) -> str:
        return step_resource(f"block:{self.banded.block_size}", step)

    def sizes(self) -> dict[str, np.ndarray]:
        """Return the needs of each graph, resource -> int64 [n]."""
        table = resource_sizes(self.parts, self._whole.plan, self.num_types)
        steps = self.plan.schedule.steps
        size = self.banded.block_size
        for step in range(steps):
            active = self._distance < steps - step
            blocks = most_blocks(active, self._node_ptr, size)
            table[self._resource(step)] = blocks * size
        if self.fallback is not None:
            pieces, done = [], 0
            for part in self.parts:
                for piece in pieces_of(part):
                    count = int(piece.node_ptr[-1])
                    distance = self._distance[done : done + count]
                    pieces.append(self._rest_sizes(piece, distance))
                    done += count
            for name in pieces[0]:
                table[name] = np.concatenate([piece[name] for piece in pieces])
        return table

    def _rest_sizes(self, part: FlatGraphs, distance: np.ndarray) -> dict:
        edges, graph = Edges.of_graphs(part, self.num_types)
        uncovered = ~self.banded.always_covers(edges)
        edges, graph = edges.keep(uncovered), graph[uncovered]
        table, steps = {}, self.plan.schedule.steps
        for step in range(steps):
            needed = distance[edges.receiver] < steps - step
            edges, graph = edges.keep(needed), graph[needed]
            step_sizes = self.fallback.sizes(edges, graph, len(part))
            table |= {step_resource(k, step): v for k, v in step_sizes.items()}
        return table

    def build(self, supergraphs: Sequence[Supergraph], replicas: int) -> list[tuple]:
        """Build batches; see `BatchAssembler.build`."""
        batches = self._whole.build(supergraphs, replicas)
        for number, (arrays, _) in enumerate(batches):
            x = arrays[0]
            batch = supergraphs[number * replicas : (number + 1) * replicas]
            distances = [self._distances(x, g, s.budget) for g, s in enumerate(batch)]
            steps = [
                self._steps(x["edge"], g, s.budget, distances[g])
                for g, s in enumerate(batch)
            ]
            x["plan"] |= stack(steps)
            if self.parts[0].label is not None and self.parts[0].label_level == "node":
                # Other nodes have no state.
                weight = arrays[2]
                read = np.stack(distances)[:, : weight.shape[1]] == 0
                weight *= read.reshape(*read.shape, *(1,) * (weight.ndim - 2))
        return batches

    def _distances(self, x: dict, g: int, budget: dict) -> np.ndarray:
        """Return each node's distance to the nearest read node, int16 [K * S]."""
        ids = x["graph"]["id"][g][x["graph"]["mask"][g]]
        first = self._node_ptr[ids]
        counts = self._node_ptr[ids + 1] - first
        row = np.arange(counts.sum())
        row += (first - (counts.cumsum() - counts)).repeat(counts)
        size = self.banded.block_size
        length = -(-budget["node"] // size) * size
        out = np.full(length, self.plan.schedule.steps + 1, np.int16)
        out[: len(row)] = self._distance[row]
        return out

    def _steps(self, edge: dict, g: int, budget: dict, distance: np.ndarray) -> dict:
        """Return `blocks` and the arrays of each step of a supergraph."""
        size, steps = self.banded.block_size, self.plan.schedule.steps
        nearest = distance.reshape(-1, size).min(axis=1)
        order = np.argsort(nearest, kind="stable").astype(np.int32)
        place = np.empty_like(order)
        place[order] = np.arange(len(order), dtype=np.int32)
        arrays = {"blocks": {"order": order, "place": place}}
        edges = None
        if self.fallback is not None:
            edges, reach = self._rest_edges(edge, g, distance, place)
        for step in range(steps):
            what, remaining = self._resource(step), steps - step
            count = max(1, min(budget[what] // size, len(order)))
            needed = int(np.count_nonzero(nearest < remaining))
            if needed > count:
                raise ValueError(
                    f"Expected at most {count} blocks of {size} rows for '{what}'. "
                    f"Received: {needed}. Raise the budget of '{what}'."
                )
            step_arrays = {"block": order[:count]}
            if edges is not None:
                active = reach < remaining
                edges, reach = edges.keep(active), reach[active]
                now = dataclasses.replace(edges, num_nodes=count * size)
                step_budget = of_step(budget, step)
                step_arrays[self.fallback.key()] = self.fallback.pack(now, step_budget)
            arrays[step_key(step)] = step_arrays
        return arrays

    def _rest_edges(self, edge: dict, g: int, distance, place) -> tuple:
        """Return the rest's edges in the order of the blocks, and receivers' distances.

        Edges to inactive nodes are left out although their block may be updated:
        nothing reads such a node any more.
        """
        size = self.banded.block_size
        count = int(np.count_nonzero(edge["mask"][g]))
        edges = Edges(
            *(edge[name][g][:count] for name in ("sender", "receiver", "type")),
            num_nodes=len(distance),
            num_types=self.num_types,
            num_senders=len(distance),
            transpose=True,
        )
        edges = edges.keep(~self.banded.cover(edges))
        reach = distance[edges.receiver]
        moved = [
            place[ids // size] * size + ids % size
            for ids in (edges.sender, edges.receiver)
        ]
        edges = dataclasses.replace(edges, sender=moved[0], receiver=moved[1])
        order = np.lexsort((edges.type, edges.receiver))
        return edges.keep(order), reach[order]


def most_blocks(active: np.ndarray, node_ptr: np.ndarray, size: int) -> np.ndarray:
    """Return the most blocks that a graph's active nodes can touch, wherever it lies.

    Between two successive active nodes a and b there is a border of blocks if one of
    the nodes a + 1 .. b is the first of a block. With gaps of S and more there always
    is one; the others are counted for each of the S ways to place the graph.

    Args:
        active: bool [N].
        node_ptr: int [n + 1], where the nodes of each graph begin.
        size: S.

    Returns:
        int64 [n].

    Example:
    >>> most_blocks(np.array([True] * 6), np.array([0, 1, 6]), 4).tolist()
    [1, 2]
    """
    count = len(node_ptr) - 1
    largest = np.zeros(count, np.int64)
    span = max(1, _MOST_ENTRIES // size)
    for low in range(0, count, span):
        high = min(low + span, count)
        begin, end = node_ptr[low], node_ptr[high]
        nodes = np.flatnonzero(active[begin:end])
        sizes = np.diff(node_ptr[low : high + 1])
        graph = np.arange(high - low).repeat(sizes)[nodes]
        same = graph[1:] == graph[:-1]
        gap, graph_of_gap = np.diff(nodes)[same], graph[1:][same]
        first = (nodes[:-1][same] + 1) % size
        far = gap >= size
        borders = np.bincount(graph_of_gap[far], minlength=high - low)
        gap, first, graph_of_gap = gap[~far], first[~far], graph_of_gap[~far]
        # A cyclic interval of places begins at `first` and ends before `first + gap`.
        last = first + gap
        wraps = last > size
        table = np.zeros((high - low, size + 1), np.int64)
        np.add.at(table, (graph_of_gap, first), 1)
        np.add.at(table, (graph_of_gap, np.where(wraps, last - size, last)), -1)
        np.add.at(table, (graph_of_gap[wraps], 0), 1)
        near = table.cumsum(axis=1)[:, :size].max(axis=1)
        touched = np.bincount(graph, minlength=high - low) > 0
        largest[low:high] = touched + borders + near
    return largest
