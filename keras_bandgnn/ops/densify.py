"""Banded adjacency as dense tiles that need no relayout on TPUs.

A TPU stores the last two axes of an array in tiles of 8 by 128. Scattering into
[rows, S] with S above 128 therefore costs a second array of the same size, for the
change of layout. Blocks split into columns of 128 have the layout that the scatter
writes.
"""

from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import scatter_add
from keras_bandgnn.ops.sequence import sequence_axis

_LANES = 128


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
    groups, length = ops.shape(sender)
    block = receiver // size
    column = sender - (block - 1) * size
    group = ops.expand_dims(ops.arange(groups, dtype="int32"), 1)
    group = ops.broadcast_to(group, (groups, length))
    row = (receiver % size) * num_types + kind
    indices = (group, block, column // width, row, column % width)
    shape = (groups, -(-num_nodes // size), 3 * size // width, size * num_types, width)
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
