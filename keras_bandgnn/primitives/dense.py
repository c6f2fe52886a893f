"""`Dense`: small graphs as dense blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import positive_int
from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops import CSR, CSRPair
from keras_bandgnn.ops.batched import supergraph_ids
from keras_bandgnn.primitives.base import STEPS, Load, Primitive
from keras_bandgnn.primitives.edges import Edges, pad

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.planning.cost import Hardware


class Dense(Primitive):
    """Whole small graphs as dense blocks and one batched matmul.

    Connected ranges of nodes are found from the edges: the smallest intervals that no
    edge leaves. All edges of an interval of at most n nodes are covered, at any
    position. A block contains as many adjacent intervals as fit into n nodes; row
    r * P + p of a block is its receiver r, type p. In a plan it must come first, or
    after `Supernode`, since the intervals must not depend on a graph's position.

    Args:
        max_nodes: n, at least 1. All blocks are n nodes wide, so it should be slightly
            above the size of a typical graph.

    Resources: `"dense:n"`, blocks; `"dense:n.edge"`, edges.

    Example:
    >>> import numpy as np
    >>> from keras_bandgnn.primitives import Edges
    >>> from keras_bandgnn.primitives.dense import Dense
    >>> ends = (np.array([0, 1, 4], np.int32), np.array([1, 0, 9], np.int32))
    >>> edges = Edges(*ends, np.zeros(3, np.int32), num_nodes=10, num_types=1)
    >>> Dense(4).cover(edges)
    array([ True,  True, False])
    """

    name = "dense"
    depends_on_edges = True

    def __init__(self, max_nodes: int = 32):
        self.max_nodes = positive_int("max_nodes", max_nodes)

    def cover(self, edges: Edges) -> np.ndarray:
        """Return the edges of intervals of at most n nodes, bool [E]."""
        interval, first = intervals(edges)
        length = np.diff(first, append=edges.num_nodes)
        return length[interval] <= self.max_nodes

    def _blocks(self, edges: Edges, owner=None) -> tuple[np.ndarray, np.ndarray]:
        """Return the first node and an edge of each block; all edges are covered.

        Blocks are filled greedily from the left, which minimises their number, so a
        supergraph never needs more blocks than its graphs separately.
        """
        interval, first = intervals(edges)
        edge = np.zeros(len(first), np.int64)
        edge[interval] = np.arange(len(edges))
        used = np.zeros(len(first), bool)
        used[interval] = True
        last = np.append(first[1:], edges.num_nodes)[used]
        first, edge = first[used], edge[used]
        # The first interval that does not fit the block that begins with this one.
        following = np.searchsorted(last, first + self.max_nodes, side="right")
        if owner is not None:
            end = np.searchsorted(owner[edge], owner[edge], side="right")
            following = np.minimum(following, end)
        following, starts, item = following.tolist(), [], 0
        while item < len(following):
            starts.append(item)
            item = following[item]
        starts = np.array(starts, np.int64)
        return first[starts], edge[starts]

    def sizes(self, edges: Edges, graph_of_edge: np.ndarray, num_graphs: int) -> dict:
        """Return the blocks of each graph by itself, and its covered edges."""
        covered = self.cover(edges)
        edges, graph_of_edge = edges.keep(covered), graph_of_edge[covered]
        _, edge = self._blocks(edges, graph_of_edge)
        counts = [
            np.bincount(graphs, minlength=num_graphs)
            for graphs in (graph_of_edge[edge], graph_of_edge)
        ]
        return {self.key(): counts[0], f"{self.key()}.edge": counts[1]}

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Place of the covered edges in the blocks, and of the nodes.

        `row` int32 [E] is the receiver's place, block * n + r, `column` the sender's
        place within the block. `node` and `place` int32 [blocks * n], both ascending,
        list the nodes that have a place; N and blocks * n where padded.
        """
        key, size = self.key(), self.max_nodes
        first, _ = self._blocks(edges)
        length, places = budget[f"{key}.edge"], max(budget[key], 1) * size
        if len(first) > budget[key]:
            raise ValueError(
                f"Expected at most {budget[key]} blocks for '{key}'. "
                f"Received: {len(first)}. Raise the budget of '{key}'."
            )
        first = first.astype(np.int32)
        block = np.searchsorted(first, edges.receiver, side="right") - 1
        start = first[block]
        row = (block * size + (edges.receiver - start)).astype(np.int32)
        last = np.minimum(first + size, np.append(first[1:], edges.num_nodes))
        count = last - first
        number = np.arange(len(first), dtype=np.int32).repeat(count)
        within = np.arange(count.sum(), dtype=np.int32)
        within -= (count.cumsum() - count).astype(np.int32).repeat(count)
        arrays = edges.padded(length, f"{key}.edge", mask=True)
        # Its place in the block stands for the sender.
        del arrays["sender"]
        weight = {"weight": arrays.pop("weight")} if "weight" in arrays else {}
        return {
            **arrays,
            "row": pad(row, length, 0, f"{key}.edge"),
            "column": pad(edges.sender - start, length, 0, f"{key}.edge"),
            "node": pad(first[number] + within, places, edges.num_nodes, key),
            "place": pad(number * size + within, places, places, key),
            **weight,
        }

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Build the blocks, [G, B, n * P, n], and the matrices that move the states.

        Parallel edges are counted with multiplicity. Counts are summed in float32 and
        then rounded to the compute dtype.
        """
        size = self.max_nodes
        node, place = arrays["node"], arrays["place"]
        groups, places = ops.shape(place)
        values = ops.cast(arrays.get("weight", arrays["mask"]), dtype)
        row = arrays["row"] * num_types + arrays["type"]
        indices = (supergraph_ids(row), row, arrays["column"])
        dense = graph_ops.scatter_add(
            tuple(ops.reshape(index, (-1,)) for index in indices),
            ops.reshape(values, (-1,)),
            (groups, places * num_types, size),
        )
        real = node < num_nodes
        into = graph_ops.with_pointer(CSR(place, ops.where(real, node, 0)), places)
        out = graph_ops.with_pointer(CSR(node, ops.where(real, place, 0)), num_nodes)
        return {
            "blocks": ops.reshape(
                dense, (groups, places // size, size * num_types, size)
            ),
            "read": CSRPair(into, out),
            "write": CSRPair(out, into),
            **arrays,
        }

    def typed_sum(self, prepared: dict, x: Tensor, num_types: int) -> Tensor:
        """Sum of the senders' states per receiver and type, [G, N, P * H].

        Args:
            prepared: What `prepare` returned.
            x: [G, N, H].
            num_types: P.
        """
        blocks, size = prepared["blocks"], self.max_nodes
        groups, count = ops.shape(blocks)[:2]
        width = ops.shape(x)[2]
        sent = graph_ops.sparse_matmul(prepared["read"], x)
        sent = ops.reshape(sent, (groups, count, size, width))
        total = ops.matmul(blocks, sent)
        total = ops.reshape(total, (groups, count * size, num_types * width))
        return graph_ops.sparse_matmul(prepared["write"], total)

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> list[Primitive]:
        """Return blocks for graphs of up to 16, 32 and 64 nodes."""
        return [cls(size) for size in (16, 32, 64)]

    def cost(self, load: Load, hardware: Hardware) -> float:
        """Reading the blocks, a batched matmul, and the product with the kernel.

        All steps share the blocks, so a step is charged a part of building them.
        """
        nodes, places = load.sizes["node"], load.sizes[self.key()] * self.max_nodes
        rows = places * load.num_types
        return (
            hardware.gather_seconds(places, load.width)
            + hardware.matmul_seconds(rows, self.max_nodes, load.width, blocks=True)
            + hardware.gather_seconds(nodes, load.num_types * load.width)
            + hardware.write_seconds(rows * self.max_nodes) / STEPS
            + hardware.scatter_seconds(load.sizes[f"{self.key()}.edge"] / STEPS, 1)
            + hardware.matmul_seconds(nodes * load.num_types, load.width, load.units)
        )


def intervals(edges: Edges) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest intervals of nodes that no edge leaves.

    Returns:
        int64 [E], interval of each edge; int64, first node of each interval.
    """
    low = np.minimum(edges.sender, edges.receiver)
    high = np.maximum(edges.sender, edges.receiver)
    count = edges.num_nodes
    # Number of edges that cross the boundary after each node.
    open_edges = np.bincount(low, minlength=count)[:count]
    open_edges -= np.bincount(high, minlength=count)[:count]
    begins = np.ones(count, bool)
    begins[1:] = np.cumsum(open_edges)[:-1] == 0
    return np.cumsum(begins)[low] - 1, np.flatnonzero(begins)
