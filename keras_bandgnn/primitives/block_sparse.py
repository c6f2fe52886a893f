"""`BlockSparse`: the non-empty tiles of the typed adjacency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import positive_int
from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops.batched import supergraph_ids
from keras_bandgnn.primitives.base import STEPS, Load, Primitive
from keras_bandgnn.primitives.dense import intervals
from keras_bandgnn.primitives.edges import Edges, pad

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.planning.cost import Hardware


class BlockSparse(Primitive):
    """Dense tiles of b by b, listed by (receiver block, sender block, type).

    Tiles without edges cost nothing. Tiles are multiplied by the states of their sender
    blocks, summed per (receiver block, type) pair, multiplied by the kernel of the type
    and summed per receiver block. So a receiver block has costs only for the types that
    occur in it.

    Args:
        block_size: b, at least 1.
        min_edges: Tiles with fewer edges are left to the rest of the plan. With more
            than 1, coverage depends on the graph's position in the supergraph, and the
            primitive must not follow another one with this property.

    Resources: `"block_sparse:b"`, tiles; with the suffix `.row`, pairs; `.edge`, edges.

    Example:
    >>> import numpy as np
    >>> from keras_bandgnn.primitives import Edges
    >>> from keras_bandgnn.primitives.block_sparse import BlockSparse
    >>> ends = (np.array([0, 1, 5], np.int32), np.array([1, 0, 1], np.int32))
    >>> edges = Edges(*ends, np.zeros(3, np.int32), num_nodes=8, num_types=1)
    >>> BlockSparse(4, min_edges=2).cover(edges)
    array([ True,  True, False])
    """

    name = "block_sparse"
    transforms = True

    def __init__(self, block_size: int = 32, min_edges: int = 1):
        self.block_size = positive_int("block_size", block_size)
        self.min_edges = positive_int("min_edges", min_edges)
        self.depends_on_place = self.depends_on_edges = self.min_edges > 1

    def arguments(self) -> tuple[int | str, ...]:
        """Those of the keys `"block_sparse:b"` and `"block_sparse:b:m"`."""
        if self.min_edges > 1:
            return self.block_size, self.min_edges
        return (self.block_size,)

    @property
    def covers_all(self) -> bool:
        """Whether tiles with a single edge are covered."""
        return self.min_edges == 1

    def cover(self, edges: Edges) -> np.ndarray:
        """Return the edges of tiles with at least `min_edges` edges, bool [E]."""
        if self.covers_all:
            return np.ones(len(edges), bool)
        tile, _, count = self._tiles(edges)
        return (count >= self.min_edges)[tile]

    def _tiles(self, edges: Edges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tile of each edge, and key and number of edges of each tile.

        Keys ascend: (type * K + receiver block) * K + sender block, K blocks.
        """
        blocks = -(-edges.num_nodes // self.block_size)
        key = edges.type.astype(np.int64) * blocks + edges.receiver // self.block_size
        key = key * blocks + edges.sender // self.block_size
        keys, tile, count = np.unique(key, return_inverse=True, return_counts=True)
        return tile, keys, count

    def _shifted(self, edges: Edges, owner: np.ndarray):
        """Tiles of each owner by itself for each way to lie on the grid.

        Shifting a graph by b gives the same tiles, so there are b ways.

        Yields:
            Order that sorts the edges by tile, the first of each tile in it, sorted
            keys ((owner * K + receiver block) * P + type) * K + sender block, and K.
            Blocks are counted from the first block of their owner.
        """
        size, ends = self.block_size, self._ends(edges, owner)
        low, high = (values[owner] for values in ends)
        blocks = int((ends[1] - ends[0]).max(initial=0)) // size + 2
        for shift in range(size):
            first = (low + shift) // size
            key = owner * blocks + ((edges.receiver + shift) // size - first)
            key = (key * edges.num_types + edges.type) * blocks
            key += (edges.sender + shift) // size - first
            order = np.argsort(key)
            key = key[order]
            starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
            last = (high + shift) // size - first
            yield order, starts, key[starts], last[order][starts], blocks

    def _ends(self, edges: Edges, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last node with edges of each owner, int64."""
        count = int(owner.max(initial=-1)) + 1
        low, high = np.full(count, edges.num_nodes), np.zeros(count, np.int64)
        for node in (edges.sender, edges.receiver):
            np.minimum.at(low, owner, node)
            np.maximum.at(high, owner, node)
        return low, high

    def always_covers(self, edges: Edges) -> np.ndarray:
        """Edges whose tile has `min_edges` edges wherever the graph lies, bool [E].

        Of the tile's edges those count that surely belong to the same graph.
        """
        covered = np.ones(len(edges), bool)
        if self.covers_all:
            return covered
        owner, _ = intervals(edges)
        for order, starts, *_ in self._shifted(edges, owner):
            count = np.diff(starts, append=len(edges))
            covered[order] &= (count >= self.min_edges).repeat(count)
        return covered

    def sizes(self, edges: Edges, graph_of_edge: np.ndarray, num_graphs: int) -> dict:
        """Tiles, (receiver block, type) pairs and edges, wherever a graph lies."""
        # The bounds add over graphs. A tile with edges of two graphs g < h is on the
        # diagonal: if its receiver block held the end of g and the beginning of h, and
        # its sender block came later, no node of g would be in it. So that one block
        # holds the last node of g that has edges and the first of h. A graph pays
        # for a tile with c edges
        #     min(c, m) / m  on the diagonal in the block of its first or last node,
        #     1              elsewhere if c >= m, else 0,  m = min_edges.
        # A covered tile of one graph, c >= m, is paid for by it. A covered tile of
        # several graphs has m <= c_1 + c_2 + ..., and all of them pay a share:
        # min(c_1, m) + min(c_2, m) + ... >= m. A pair costs as much as its dearest
        # tile, which no sum over graphs can fall short of. Rounding a graph's sum up
        # and taking the worst of its b ways to lie on the grid only adds.
        tiles, pairs, covered = np.zeros((3, num_graphs), np.int64)
        least = self.min_edges
        owner = np.asarray(graph_of_edge, np.int64)
        for _, starts, key, last, blocks in self._shifted(edges, owner):
            count = np.diff(starts, append=len(edges))
            pair, sender = np.divmod(key, blocks)
            graph, receiver = np.divmod(pair // edges.num_types, blocks)
            shared = (receiver == sender) & ((receiver == 0) | (receiver == last))
            whole = np.where(count >= least, least, 0)
            price = np.where(shared, np.minimum(count, least), whole)
            first = np.flatnonzero(np.append(True, pair[1:] != pair[:-1])[: len(pair)])
            dearest = np.maximum.reduceat(price, first) if len(first) else price
            edge_count = np.where(price > 0, count, 0)
            for worst, values, graphs, unit in (
                (tiles, price, graph, least),
                (pairs, dearest, graph[first], least),
                (covered, edge_count, graph, 1),
            ):
                total = np.zeros(num_graphs, np.int64)
                np.add.at(total, graphs, values)
                np.maximum(worst, -(-total // unit), out=worst)
        key = self.key()
        return {key: tiles, f"{key}.row": pairs, f"{key}.edge": covered}

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Tile of each edge, and the lists of tiles and of pairs, sorted by type.

        Of a tile `block` int32 [T] is the sender block and `row` its pair; of a pair
        `row_block` int32 [Q] is the receiver block and `row_type` the type.
        """
        key, size = self.key(), self.block_size
        length = budget[f"{key}.edge"]
        count, rows = max(budget[key], 1), max(budget[f"{key}.row"], 1)
        blocks = -(-edges.num_nodes // size)
        tile, keys, _ = self._tiles(edges)
        pair, block = np.divmod(keys, blocks)
        pairs, row = np.unique(pair, return_inverse=True)
        kind, row_block = np.divmod(pairs, blocks)
        edge, pair_name = f"{key}.edge", f"{key}.row"
        arrays = edges.padded(length, edge, mask=True)
        weight = {"weight": arrays.pop("weight")} if "weight" in arrays else {}
        return {
            **arrays,
            "tile": pad(tile.astype(np.int32), length, 0, edge),
            "block": pad(block.astype(np.int32), count, 0, key),
            "row": pad(row.astype(np.int32), count, rows, key),
            "row_block": pad(row_block.astype(np.int32), rows, blocks, pair_name),
            # Padding has the last type, so that types stay sorted.
            "row_type": pad(
                kind.astype(np.int32), rows, edges.num_types - 1, pair_name
            ),
            **weight,
        }

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Build the tiles, [G, T, b, b].

        Parallel edges are counted with multiplicity. Counts are summed in float32 and
        then rounded to the compute dtype.
        """
        size, tile = self.block_size, arrays["tile"]
        groups, count = ops.shape(arrays["block"])
        values = ops.reshape(arrays.get("weight", arrays["mask"]), (-1,))
        group, place = supergraph_ids(tile), arrays["receiver"] % size
        tiles = graph_ops.scatter_add(
            _flat(group, tile, place, arrays["sender"] % size),
            ops.cast(values, dtype),
            (groups, count, size, size),
        )
        blocks = -(-num_nodes // size)
        read = graph_ops.with_scatter_index(arrays["block"], blocks)
        return {"tiles": tiles, "read": read, **arrays}

    def apply(self, prepared: dict, x: Tensor, kernel: Tensor) -> Tensor:
        """Incoming messages of every node over the covered edges, [G, N, U].

        Args:
            prepared: What `prepare` returned.
            x: [G, N, H].
            kernel: [P, H, U].
        """
        size, tiles = self.block_size, prepared["tiles"]
        groups, num_nodes, width = ops.shape(x)
        count, rows = ops.shape(tiles)[1], ops.shape(prepared["row_block"])[1]
        blocks, units = -(-num_nodes // size), ops.shape(kernel)[2]
        x = ops.pad(x, ((0, 0), (0, blocks * size - num_nodes), (0, 0)))
        x = ops.reshape(x, (groups, blocks, size * width))
        # Gradients of a block are summed, which is inexact in half precision.
        sent = graph_ops.gather_rows(prepared["read"], ops.cast(x, "float32"))
        sent = ops.cast(sent, x.dtype)
        total = ops.matmul(tiles, ops.reshape(sent, (groups, count, size, width)))
        total = ops.reshape(total, (groups, count, size * width))
        total = graph_ops.batched_segment_sum(
            total, prepared["row"], rows, is_sorted=True
        )
        kinds = prepared["row_type"]
        total = ops.reshape(total, (groups, rows * size, width))
        total = graph_ops.grouped_matmul(total, kinds, kernel)
        total = ops.reshape(total, (groups, rows, size * units))
        total = graph_ops.batched_segment_sum(total, prepared["row_block"], blocks)
        return ops.reshape(total, (groups, blocks * size, units))[:, :num_nodes]

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> list[Primitive]:
        """Return all tiles, and those with an eighth of their entries filled."""
        # A tile with less costs more than its edges.
        return [cls(n, least) for n in (16, 32) for least in (1, n * n // 8)]

    def cost(self, load: Load, hardware: Hardware) -> float:
        """A product per tile, sums per pair, a grouped product, sums per block.

        All steps share the tiles, so a step is charged a part of building them.
        """
        key, size = self.key(), self.block_size
        tiles, rows = load.sizes[key] * size, load.sizes[f"{key}.row"] * size
        return (
            hardware.gather_seconds(tiles, load.width)
            + hardware.matmul_seconds(tiles, size, load.width, blocks=True)
            + hardware.scatter_seconds(tiles, load.width)
            + hardware.grouped_seconds(rows, load.width, load.units, size)
            + hardware.scatter_seconds(rows, load.units)
            + hardware.write_seconds(tiles * size) / STEPS
            + hardware.scatter_seconds(load.sizes[f"{key}.edge"] / STEPS, 1)
        )


def _flat(*indices):
    return tuple(ops.reshape(index, (-1,)) for index in indices)
