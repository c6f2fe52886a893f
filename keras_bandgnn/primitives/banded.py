"""`Banded`: message passing as three batched matmuls over diagonal blocks."""

import numpy as np
from keras import ops

from keras_bandgnn import ops as kernels
from keras_bandgnn.primitives.base import Edges, Primitive, pad


class Banded(Primitive):
    """Dense blocks on and beside the diagonal (Balog et al. 2019, Algorithm 1).

    Nodes are cut into K blocks of S. Block k of the receivers takes messages from
    the blocks k - 1, k and k + 1 of the senders (L, C and U of Eq. 3), each a matmul
    with a dense [S * P, S] block. Row s * P + p of a block is receiver s, type p.

    Args:
        block_size: S, at least 1. Edges with |i - j| < S are always covered.
        cover: `"blocks"` covers all edges between neighbouring blocks, as in the
            paper; those with S <= |i - j| < 2 S then depend on where the graph lies
            in the supergraph. `"band"` covers |i - j| < S only, wherever it lies.
    """

    def __init__(self, block_size: int, cover: str = "blocks"):
        if not isinstance(block_size, int | np.integer) or block_size < 1:
            raise ValueError(
                "Expected `block_size` to be a positive integer. "
                f"Received: block_size={block_size!r}."
            )
        if cover not in ("blocks", "band"):
            raise ValueError(
                f"Expected `cover` to be 'blocks' or 'band'. Received: cover={cover!r}."
            )
        self.block_size = int(block_size)
        self.coverage = cover

    def key(self) -> str:
        """`"banded:S"`, or `"banded:S:band"`."""
        suffix = ":band" if self.coverage == "band" else ""
        return f"banded:{self.block_size}{suffix}"

    @classmethod
    def from_key(cls, key: str) -> "Banded":
        """Builds the primitive that `key` names."""
        parts = key.split(":")
        return cls(int(parts[1]), parts[2] if len(parts) > 2 else "blocks")

    def always_covers(self, edges: Edges) -> np.ndarray:
        """Edges with |i - j| < S."""
        return np.abs(edges.sender - edges.receiver) < self.block_size

    def cover(self, edges: Edges) -> np.ndarray:
        """Edges between the same or neighbouring blocks, or |i - j| < S."""
        if self.coverage == "band":
            return self.always_covers(edges)
        size = self.block_size
        return np.abs(edges.sender // size - edges.receiver // size) <= 1

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Ids of the covered edges; the blocks are made of them on the device."""
        length = budget[self.key()]
        return {
            "sender": pad(edges.sender, length, 0, self.key()),
            "receiver": pad(edges.receiver, length, 0, self.key()),
            "type": pad(edges.type, length, 0, self.key()),
            "mask": pad(np.ones(len(edges), bool), length, 0, self.key()),
        }

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Makes the dense blocks, [3, G, K, S * P, S] for L, C and U.

        Duplicate edges count as often as they occur. The counts are whole numbers,
        exact in bfloat16 up to 256.
        """
        size = self.block_size
        num_blocks = -(-num_nodes // size)
        sender, receiver = arrays["sender"], arrays["receiver"]
        shape = ops.shape(sender)
        block = receiver // size
        values = ops.cast(arrays["mask"], dtype)
        group = ops.broadcast_to(
            ops.reshape(ops.arange(shape[0], dtype="int32"), (-1, 1)), shape
        )
        row = (receiver % size) * num_types + arrays["type"]
        part = sender // size - block + 1
        blocks = kernels.scatter_add(
            tuple(
                ops.reshape(index, (-1,))
                for index in (part, group, block, row, sender % size)
            ),
            ops.reshape(values, (-1,)),
            (3, shape[0], num_blocks, size * num_types, size),
        )
        degree = kernels.scatter_add(
            tuple(
                ops.reshape(index, (-1,)) for index in (group, receiver, arrays["type"])
            ),
            # Not in half precision: counts above 256 must stay exact.
            ops.reshape(ops.cast(arrays["mask"], "float32"), (-1,)),
            (shape[0], num_nodes, num_types),
        )
        return {"blocks": blocks, "degree": degree}

    def typed_sum(self, prepared: dict, x, num_types: int):
        """Sum of the senders' states per receiver and type (lines 1 to 4).

        Args:
            prepared: What `prepare` returned.
            x: [G, N, H].
            num_types: P.

        Returns:
            [G, N, P * H].
        """
        blocks, size = prepared["blocks"], self.block_size
        groups, num_nodes, width = ops.shape(x)
        num_blocks = -(-num_nodes // size)
        x = ops.pad(x, ((0, 0), (0, num_blocks * size - num_nodes), (0, 0)))
        x = ops.reshape(x, (groups, num_blocks, size, width))
        following = ops.pad(x[:, 1:], ((0, 0), (0, 1), (0, 0), (0, 0)))
        preceding = ops.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0)))
        total = (
            ops.matmul(blocks[1], x)
            + ops.matmul(blocks[2], following)
            + ops.matmul(blocks[0], preceding)
        )
        total = ops.reshape(total, (groups, num_blocks * size, num_types * width))
        return total[:, :num_nodes]
