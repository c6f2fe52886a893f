"""Tiles of the grid of b by b: what they hold, and which hold the most."""

import numpy as np

from keras_bandgnn.arrays import INT32_MAX, checked_ids
from keras_bandgnn.checks import positive_int

# A key is receiver block * 2^32 + sender block.
_SHIFT = 32


def tile_keys(senders, receivers, block_size: int) -> np.ndarray:
    """Return the key of each edge's tile, int64 [E]; keys sort by receiver block."""
    row = np.asarray(receivers, np.int64) // block_size
    return (row << _SHIFT) + np.asarray(senders, np.int64) // block_size


def keys_of(tiles) -> np.ndarray:
    """Return the keys of tiles [T, 2], int64 [T]."""
    tiles = np.asarray(tiles, np.int64)
    return (tiles[:, 0] << _SHIFT) + tiles[:, 1]


def tiles_of(keys) -> np.ndarray:
    """Return the tiles of keys, sorted, int32 [T, 2]."""
    keys = np.sort(keys)
    tiles = np.stack([keys >> _SHIFT, keys & (2**_SHIFT - 1)], axis=1)
    return tiles.astype(np.int32)


def tile_counts(senders, receivers, block_size: int):
    """Return the tiles that hold edges.

    Returns:
        Keys, ascending, int64 [T]; the tile of each edge, int64 [E]; the number of
        edges of each tile, int64 [T].
    """
    keys = tile_keys(senders, receivers, block_size)
    return np.unique(keys, return_inverse=True, return_counts=True)


def best_tiles(senders, receivers, block_size: int, num_tiles: int) -> np.ndarray:
    """Return the tiles with the most edges: no others of that number cover more.

    Args:
        senders: int [E].
        receivers: int [E].
        block_size: b, tiles begin at multiples of it.
        num_tiles: How many; fewer come back if fewer hold edges. Of equals, those with
            the lower receiver block, then sender block, are taken.

    Returns:
        int32 [T, 2], (receiver block, sender block), sorted.

    Example:
    >>> best_tiles([0, 1, 3, 4], [1, 0, 0, 7], block_size=2, num_tiles=1).tolist()
    [[0, 0]]
    """
    block_size = positive_int("block_size", block_size)
    num_tiles = positive_int("num_tiles", num_tiles, 0)
    senders = checked_ids("senders", senders, INT32_MAX, "2**31 - 1")
    receivers = checked_ids("receivers", receivers, INT32_MAX, "2**31 - 1")
    keys, _, count = tile_counts(senders, receivers, block_size)
    return tiles_of(keys[np.argsort(-count, kind="stable")[:num_tiles]])


def main_group(tile, group, num_tiles: int) -> np.ndarray:
    """Return each tile's most frequent group of edges, int64 [T]; lowest of ties.

    Args:
        tile: int [E], tile of each edge; every tile has one.
        group: int [E], group of each edge.
        num_tiles: T.
    """
    most = int(group.max(initial=0)) + 1
    both, count = np.unique(tile * most + group, return_counts=True)
    owner, group = np.divmod(both, most)
    order = np.lexsort((group, -count, owner))
    first = np.searchsorted(owner[order], np.arange(num_tiles))
    return group[order][first]
