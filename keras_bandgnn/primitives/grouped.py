"""`Grouped`: transform each (sender, type) that occurs once, then sum by receiver."""

import numpy as np
from keras import ops

from keras_bandgnn import ops as kernels
from keras_bandgnn.primitives.base import Edges, Primitive, pad

_GROUP = 64


class Grouped(Primitive):
    """Transform-then-aggregate over the (sender, type) pairs that have edges.

    The pairs are sorted by type and cut into groups of `group_size` rows with one
    type each, so the transformation is one batched matmul with gathered kernels.
    Program graphs have about 3 such pairs per node, of 20 possible.

    Args:
        group_size: Rows per group. Each type wastes less than one group.
    """

    covers_all = True

    def __init__(self, group_size: int = _GROUP):
        if not isinstance(group_size, int | np.integer) or group_size < 1:
            raise ValueError(
                "Expected `group_size` to be a positive integer. "
                f"Received: group_size={group_size!r}."
            )
        self.group_size = int(group_size)

    def key(self) -> str:
        """`"grouped"`, or `"grouped:R"`."""
        return "grouped" + ("" if self.group_size == _GROUP else f":{self.group_size}")

    @classmethod
    def from_key(cls, key: str) -> "Grouped":
        """Builds the primitive that `key` names."""
        parts = key.split(":")
        return cls(int(parts[1])) if len(parts) > 1 else cls()

    def _pairs(self, edges: Edges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pairs type * N + sender that occur, the pair of each edge, pairs per type."""
        types, nodes = edges.num_types, edges.num_nodes
        pair = edges.type.astype(np.int64) * nodes + edges.sender
        if types * nodes > 64 * len(edges):
            pairs, row = np.unique(pair, return_inverse=True)
            return pairs, row, np.bincount(pairs // nodes, minlength=types)
        # A table of all pairs is quicker than sorting the edges.
        occurs = np.zeros(types * nodes, np.int32)
        occurs[pair] = 1
        place = occurs.cumsum(dtype=np.int32)
        counts = place[nodes - 1 :: nodes].copy()
        counts[1:] -= counts[:-1].copy()
        row = place.take(pair)
        row -= 1
        return occurs.nonzero()[0], row, counts

    def sizes(self, edges: Edges, graph_of_edge, num_graphs: int) -> dict:
        """Edges, and (sender, type) pairs as rows."""
        pairs, _, _ = self._pairs(edges)
        sender = pairs % edges.num_nodes
        graph_of_node = np.zeros(edges.num_nodes, np.int64)
        graph_of_node[edges.sender] = graph_of_edge
        rows = np.bincount(graph_of_node[sender], minlength=num_graphs)
        edge_counts = np.bincount(graph_of_edge, minlength=num_graphs)
        return {self.key(): edge_counts, f"{self.key()}.row": rows}

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Senders of the groups of rows, type of each group, row of each edge."""
        size = self.group_size
        # Every type may leave one group partly filled.
        groups = -(-budget[f"{self.key()}.row"] // size) + edges.num_types
        pairs, row, counts = self._pairs(edges)
        groups_of_type = -(-counts // size)
        if groups_of_type.sum() > groups:
            raise ValueError(
                f"Expected at most {groups} groups of {size} rows for "
                f"'{self.key()}.row'. Received: {groups_of_type.sum()}. Raise the "
                f"budget of '{self.key()}.row'."
            )
        shift = (groups_of_type.cumsum() - groups_of_type) * size
        shift -= counts.cumsum() - counts
        position = shift.repeat(counts) + np.arange(pairs.size)
        first = np.arange(edges.num_types) * edges.num_nodes
        sender = np.zeros(groups * size, np.int32)
        sender[position] = pairs - first.repeat(counts)
        position = position.astype(np.int32)
        group_type = np.repeat(
            np.arange(edges.num_types, dtype=np.int32), groups_of_type
        )
        length = budget[self.key()]
        if (edges.receiver[1:] < edges.receiver[:-1]).any():
            order = np.argsort(edges.receiver, kind="stable")
            edges, row = edges.keep(order), row[order]
        return {
            "sender": sender.reshape(groups, size),
            "type": pad(group_type, groups, 0, f"{self.key()}.row"),
            "row": pad(position.take(row), length, 0, self.key()),
            "receiver": pad(edges.receiver, length, edges.num_nodes, self.key()),
        }

    def messages(self, prepared: dict, x, kernel, bias):
        """Incoming messages.

        Args:
            prepared: The packed arrays.
            x: [G, N, H].
            kernel: [P, H, U].
            bias: [P, U] or None.

        Returns:
            [G, N, U].
        """
        sent = kernels.batched_gather(x, prepared["sender"])
        kinds = prepared["type"]
        rows = ops.matmul(sent, kernels.gather(kernel, kinds))
        if bias is not None:
            rows = rows + ops.expand_dims(kernels.gather(bias, kinds), 2)
        shape = ops.shape(rows)
        rows = ops.reshape(rows, (shape[0], shape[1] * shape[2], shape[3]))
        received = kernels.batched_gather(rows, prepared["row"])
        return kernels.batched_segment_sum(
            received, prepared["receiver"], ops.shape(x)[1], is_sorted=True
        )
