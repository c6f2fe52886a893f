"""`Segment`: gather the senders' states, then sum them by receiver and type."""

import numpy as np
from keras import ops

from keras_bandgnn import ops as kernels
from keras_bandgnn.primitives.base import Edges, Primitive


class Segment(Primitive):
    """Any edges, as a gather and a segment sum over N * P rows."""

    covers_all = True

    def key(self) -> str:
        """`"segment"`."""
        return "segment"

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Edge ids sorted by receiver and type; padded edges have receiver N."""
        key = edges.receiver
        if edges.num_types > 1:
            key = key.astype(np.int64) * edges.num_types + edges.type
        if (key[1:] < key[:-1]).any():
            edges = edges.keep(np.argsort(key, kind="stable"))
        return edges.padded(budget["segment"], "segment")

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Row ids n * P + p and the in-degree per node and type."""
        row = arrays["receiver"] * num_types + arrays["type"]
        degree = kernels.batched_segment_sum(
            ops.ones(ops.shape(row), "float32"),
            row,
            num_nodes * num_types,
            is_sorted=True,
        )
        return {
            "sender": arrays["sender"],
            "row": row,
            "degree": ops.reshape(degree, (-1, num_nodes, num_types)),
        }

    def typed_sum(self, prepared: dict, x, num_types: int):
        """Sum of the senders' states per receiver and type.

        Args:
            prepared: What `prepare` returned.
            x: [G, N, H].
            num_types: P.

        Returns:
            [G, N, P * H].
        """
        groups, num_nodes, width = ops.shape(x)
        sent = kernels.batched_gather(x, prepared["sender"])
        total = kernels.batched_segment_sum(
            sent, prepared["row"], num_nodes * num_types, is_sorted=True
        )
        return ops.reshape(total, (groups, num_nodes, num_types * width))
