"""`Banded`: message passing as three batched matmuls over diagonal blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import positive_int, refuse
from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import scatter_add, supergraph_ids
from keras_bandgnn.ops.sequence import sequence_axis
from keras_bandgnn.primitives.base import STEPS, Load, Primitive
from keras_bandgnn.primitives.edges import Edges

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.planning.cost import Hardware

# A TPU stores the last two axes of an array in tiles of 8 by 128. Scattering into
# [rows, S] with S above 128 therefore costs a second array of the same size, for the
# change of layout. Blocks split into columns of 128 have the layout that the scatter
# writes.
_LANES = 128


class Banded(Primitive):
    """Dense blocks on and next to the diagonal (Balog et al. 2019, Algorithm 1).

    Nodes are split into K blocks of S. Block k of the receivers gets messages from the
    blocks k - 1, k and k + 1 of the senders (L, C and U of Eq. 3), each by a matmul
    with a dense [S * P, S] block. Row s * P + p of a block is receiver s, type p.

    Args:
        block_size: S, at least 1. Edges with |i - j| < S are always covered.
        cover: `"blocks"` covers all edges between neighbouring blocks, as in the
            paper; coverage of those with S <= |i - j| < 2 S then depends on the graph's
            position in the supergraph. `"band"` covers exactly |i - j| < S.

    Example:
    >>> Banded(128).key()
    'banded:128'
    """

    name = "banded"
    sequence = "halo"

    def __init__(self, block_size: int, cover: str = "blocks"):
        if cover not in ("blocks", "band"):
            refuse("cover", "'blocks' or 'band'", cover)
        self.block_size = positive_int("block_size", block_size)
        self.coverage = cover
        self.depends_on_place = cover == "blocks"

    def get_config(self) -> dict[str, int | str]:
        """Return the arguments of the constructor."""
        return {"block_size": self.block_size, "cover": self.coverage}

    def arguments(self) -> tuple[int | str, ...]:
        """Those of the keys `"banded:S"` and `"banded:S:band"`."""
        if self.coverage == "band":
            return self.block_size, "band"
        return (self.block_size,)

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
        """Return the covered edges, from which the device builds the blocks."""
        return edges.padded(budget[self.key()], self.key(), mask=True)

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Build the dense blocks L, C and U, side by side; see `banded_tiles`.

        Parallel edges are counted with multiplicity. Counts are summed in float32 and
        then rounded to the compute dtype.
        """
        values = ops.cast(arrays.get("weight", arrays["mask"]), dtype)
        ends = (arrays["sender"], arrays["receiver"], arrays["type"])
        blocks = banded_tiles(*ends, values, num_nodes, num_types, self.block_size)
        return {**arrays, "blocks": blocks}

    def typed_sum(self, prepared: dict, x: Tensor, num_types: int) -> Tensor:
        """Sum of the senders' states per receiver and type (lines 1 to 4).

        Args:
            prepared: What `prepare` returned.
            x: [G, N, H].
            num_types: P.

        Returns:
            [G, N, P * H].
        """
        return banded_matmul(prepared["blocks"], x, self.block_size, num_types)

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> list[Primitive]:
        """Return bands of S, S/2 and 2 S."""
        sizes = (block_size, max(1, block_size // 2), 2 * block_size)
        return [cls(size) for size in dict.fromkeys(sizes)]

    def cost(self, load: Load, hardware: Hardware) -> float:
        """Building the blocks, three matmuls per block, and the kernel product.

        All steps share the blocks, so a step is charged a part of building them.
        """
        nodes, size = load.sizes["node"], self.block_size
        rows = nodes * load.num_types
        entries = 3 * rows * size
        return (
            hardware.matmul_seconds(3 * rows, size, load.width, blocks=True)
            + hardware.write_seconds(entries) / STEPS
            + hardware.scatter_seconds(load.sizes[self.key()] / STEPS, 1)
            + hardware.matmul_seconds(rows, load.width, load.units)
        )


def tile_width(size: int) -> int:
    """Return the columns per tile: 128, or S if S is not a multiple of 128."""
    return _LANES if size % _LANES == 0 else size


def banded_tiles(
    sender, receiver, kind, values, num_nodes: int, num_types: int, size: int
):
    """Build the adjacency between neighbouring blocks of nodes, as column tiles.

    Row s * P + p of block k is receiver k * S + s, type p. Its 3 S columns are the
    senders (k - 1) * S to (k + 2) * S - 1, in Q tiles of `tile_width(S)` columns.

    Args:
        sender: int32 [G, E], in the receiver's block or an adjacent one.
        receiver: int32 [G, E].
        kind: int32 [G, E], edge types.
        values: float [G, E]; duplicates add up, padding is 0.
        num_nodes: N.
        num_types: P.
        size: S, nodes per block.

    Returns:
        [G, K, Q, S * P, 3 * S / Q], K = ceil(N / S), in the dtype of `values`.

    Example:
    >>> import numpy as np
    >>> ids = np.zeros((1, 1), "int32")
    >>> tuple(banded_tiles(ids, ids, ids, ops.ones((1, 1)), 8, 2, 4).shape)
    (1, 2, 3, 8, 4)
    """
    width = tile_width(size)
    block = receiver // size
    column = sender - (block - 1) * size
    row = (receiver % size) * num_types + kind
    indices = (supergraph_ids(sender), block, column // width, row, column % width)
    shape = (
        ops.shape(sender)[0],
        -(-num_nodes // size),
        3 * size // width,
        size * num_types,
        width,
    )
    return scatter_add(
        tuple(ops.reshape(index, (-1,)) for index in indices),
        ops.reshape(values, (-1,)),
        shape,
    )


def banded_matmul(tiles, x, size: int, num_types: int):
    """Sum the senders' states per receiver and type.

    Args:
        tiles: Result of `banded_tiles`.
        x: [G, N, H].
        size: S.
        num_types: P.

    Returns:
        [G, N, P * H].

    Example:
    >>> import numpy as np
    >>> ids = np.zeros((1, 1), "int32")
    >>> tiles = banded_tiles(ids, ids, ids, ops.ones((1, 1)), 8, 2, 4)
    >>> tuple(banded_matmul(tiles, ops.ones((1, 8, 5)), 4, 2).shape)
    (1, 8, 10)
    """
    groups, num_nodes, channels = ops.shape(x)
    blocks = ops.shape(tiles)[1]
    axis = sequence_axis()
    if axis is None:
        x = ops.pad(x, ((0, 0), (size, (blocks + 1) * size - num_nodes), (0, 0)))
    else:
        x = axis.halo(x, size)
    x = ops.reshape(x, (groups, blocks + 2, size, channels))
    total = neighbours_matmul(tiles, (x[:, :-2], x[:, 1:-1], x[:, 2:]), num_types)
    return total[:, :num_nodes]


def neighbours_matmul(tiles, neighbours, num_types: int):
    """Sum the states of the senders in each block and its two neighbours.

    Args:
        tiles: [G, K, Q, S * P, 3 * S / Q], see `banded_tiles`.
        neighbours: States of the preceding blocks, the blocks themselves and the
            following blocks, [G, K, S, H] each.
        num_types: P.

    Returns:
        [G, K * S, P * H].
    """
    groups, blocks, size, channels = ops.shape(neighbours[1])
    count, width = tiles.shape[2], tiles.shape[-1]
    x = ops.concatenate(neighbours, axis=2)
    x = ops.reshape(x, (groups, blocks, count, width, channels))
    total = backend.tile_matmul(tiles, x)
    return ops.reshape(total, (groups, blocks * size, num_types * channels))
