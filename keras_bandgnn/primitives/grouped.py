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

    def _pairs(self, edges: Edges):
        pair = edges.type.astype(np.int64) * edges.num_nodes + edges.sender
        return np.unique(pair, return_inverse=True)

    def sizes(self, edges: Edges, graph_of_edge, num_graphs: int) -> dict:
        """Edges, and (sender, type) pairs as rows."""
        pairs, _ = self._pairs(edges)
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
        pairs, row = self._pairs(edges)
        kind = pairs // edges.num_nodes
        counts = np.bincount(kind, minlength=edges.num_types)
        groups_of_type = -(-counts // size)
        shift = (np.cumsum(groups_of_type) - groups_of_type) * size
        shift = shift - (np.cumsum(counts) - counts)
        position = (np.arange(pairs.size) + shift[kind]).astype(np.int32)
        if groups_of_type.sum() > groups:
            pad(position, budget[f"{self.key()}.row"], 0, f"{self.key()}.row")
        sender = np.zeros(groups * size, np.int32)
        sender[position] = pairs % edges.num_nodes
        group_type = np.repeat(
            np.arange(edges.num_types, dtype=np.int32), groups_of_type
        )
        length = budget[self.key()]
        order = np.argsort(edges.receiver, kind="stable")
        return {
            "sender": sender.reshape(groups, size),
            "type": pad(group_type, groups, 0, f"{self.key()}.row"),
            "row": pad(position[row[order]], length, 0, self.key()),
            "receiver": pad(edges.receiver[order], length, edges.num_nodes, self.key()),
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
