"""Elastic computation reformation: which tiles of a clustered graph become dense.

Experimental: it may change in any release.
"""

import dataclasses
import math

import numpy as np

from keras_bandgnn.arrays import checked_ids
from keras_bandgnn.checks import (
    int_array,
    non_negative_number,
    optional,
    positive_int,
    positive_number,
    refuse,
    seed_number,
)
from keras_bandgnn.preprocessing.ordering.cluster_compile import TILE_ROW, tile_keys

# Thresholds, in multiples of the density of the graph; the paper's last one is the
# density 1, which no pair of clusters of a simple graph exceeds.
LADDER = (0.0, 1.0, 1.5, 5.0, 7.0, 10.0, math.inf)


@dataclasses.dataclass(frozen=True)
class Reformation:
    """Dense tiles of a graph, and the edges that they cover.

    An edge that no tile covers can stay a single edge, so that nothing is lost, or be
    dropped if it is transferred, as the paper does.

    Attributes:
        tiles: int32 [T, 2], (receiver block, sender block) of each tile, sorted.
        covered: bool [E], whether the edge lies in a tile.
        transferred: bool [E], whether its pair of clusters was to become tiles.
        block_size: b; a tile has b * b entries.
    """

    tiles: np.ndarray
    covered: np.ndarray
    transferred: np.ndarray
    block_size: int

    @property
    def entries(self) -> int:
        """Entries of all tiles, T * b * b."""
        return self.tiles.shape[0] * self.block_size**2

    @property
    def coverage(self) -> float:
        """Share of the transferred edges that are covered; 1 without any."""
        count = np.count_nonzero(self.transferred)
        covered = np.count_nonzero(self.transferred & self.covered)
        return float(covered / count) if count else 1.0

    @property
    def edge_coverage(self) -> float:
        """Share of all edges that are covered."""
        return float(np.count_nonzero(self.covered) / max(self.covered.size, 1))


def reform(
    senders: np.ndarray,
    receivers: np.ndarray,
    num_nodes: int,
    starts: np.ndarray | None = None,
    block_size: int = 16,
    threshold: float = 1.0,
    num_tiles: int | None = None,
    least_fill: float | None = None,
) -> Reformation:
    """Replace sparse pairs of clusters by dense tiles of a grid.

    A pair of clusters with e edges whose density is below `threshold` times that of
    the graph becomes floor(e / b^2) + 1 tiles: those of its tiles that hold the most
    edges. The published code puts as many at random positions (`random_tiles`).

    Tiles lie on a grid of b by b from node 0 on, whatever the sizes of the clusters. A
    tile with edges of several pairs belongs to that of most of its edges, and it
    covers all of them. Pairs without edges get no tile, and a pair never gets more
    than hold edges. Ties go to the lower receiver block, then the lower sender block.

    Args:
        senders: int [E], in an order where clusters are contiguous.
        receivers: int [E].
        num_nodes: N.
        starts: int [k + 1], first node of each cluster, then N; may be None with
            `num_tiles`.
        block_size: b.
        threshold: Multiple of the density of the graph, one of `LADDER` for example;
            0 leaves all edges as they are, infinity lays all of them out.
        num_tiles: Instead of a threshold: that many tiles of the whole graph, those
            that hold the most edges. All edges count as transferred then.
        least_fill: Instead of both: all tiles of which edges fill that share or more.

    Raises:
        ValueError: For ids or starts out of range.

    Reference:
        Zhang et al. 2024 (TorchGT), Section III-D.

    Example:
    >>> tiling = reform([0, 1, 3, 4], [1, 0, 0, 7], 8, block_size=2, num_tiles=1)
    >>> tiling.tiles.tolist(), tiling.covered.tolist()
    ([[0, 0]], [True, True, False, False])
    """
    count = num_tiles if least_fill is None else 0
    ends, starts = _checked(senders, receivers, num_nodes, starts, count)
    size = positive_int("block_size", block_size)
    threshold = non_negative_number("threshold", threshold)
    least_fill = optional(positive_number, "least_fill", least_fill)
    transferred, pair = _transferred(*ends, starts, threshold)
    held = np.unique(tile_keys(*ends, size), return_inverse=True, return_counts=True)
    keys, tile, count = held
    # Of equals the lower key comes first.
    if least_fill is not None or num_tiles is not None:
        transferred = np.ones(transferred.size, bool)
        best = np.argsort(-count, kind="stable")[:num_tiles]
        if least_fill is not None:
            best = count >= least_fill * size**2
    else:
        number = _tiles_by_pair(pair[transferred], starts.size - 1, size)
        owner = _main_group(tile, pair, keys.size)
        order = np.lexsort((keys, -count, owner))
        rank = np.arange(keys.size) - np.searchsorted(owner[order], owner[order])
        best = order[rank < number[owner[order]]]
    return _result(keys[best], *ends, size, transferred)


def random_tiles(
    senders: np.ndarray,
    receivers: np.ndarray,
    num_nodes: int,
    starts: np.ndarray | None = None,
    block_size: int = 16,
    threshold: float = 1.0,
    num_tiles: int | None = None,
    seed: int = 0,
) -> Reformation:
    """Return `reform` with tiles at random positions, as in the published code.

    Each pair of clusters gets floor(e / b^2) + 1 distinct tiles of the grid among
    those whose first row and column lie in its clusters.

    Args:
        senders: See `reform`, as all that follow.
        receivers: int [E].
        num_nodes: N.
        starts: int [k + 1].
        block_size: b.
        threshold: Multiple of the density of the graph.
        num_tiles: That many tiles of the whole grid.
        seed: Of the positions.
    """
    ends, starts = _checked(senders, receivers, num_nodes, starts, num_tiles)
    size = positive_int("block_size", block_size)
    threshold = non_negative_number("threshold", threshold)
    rng = np.random.default_rng(seed_number("seed", seed))
    transferred, pair = _transferred(*ends, starts, threshold)
    number, first = np.array([num_tiles]), np.array([0, -(-num_nodes // size)])
    if num_tiles is not None:
        transferred = np.ones(transferred.size, bool)
    else:
        number = _tiles_by_pair(pair[transferred], starts.size - 1, size)
        first = -(-starts // size)
    blocks, keys = np.diff(first), [np.empty(0, np.int64)]
    for index in np.flatnonzero(number):
        row, column = divmod(int(index), blocks.size)
        room = int(blocks[row] * blocks[column])
        places = rng.choice(room, min(int(number[index]), room), replace=False)
        tile_row, tile_column = np.divmod(places, max(blocks[column], 1))
        ends_of_tiles = tile_column + first[column], tile_row + first[row]
        keys.append(tile_keys(*ends_of_tiles, 1))
    return _result(np.concatenate(keys), *ends, size, transferred)


def _checked(senders, receivers, num_nodes, starts, num_tiles):
    num_nodes = positive_int("num_nodes", num_nodes)
    if num_tiles is not None:
        positive_int("num_tiles", num_tiles, 0)
        starts = [0, num_nodes]
    starts = int_array("starts", starts).astype(np.int64)
    if starts.size < 2 or starts[0] or (np.diff(starts) < 0).any():
        refuse("starts", "ascending from 0 to the number of nodes", starts.tolist())
    if starts[-1] != num_nodes:
        refuse("starts", f"ascending to num_nodes={num_nodes}", starts.tolist())
    named = {"senders": senders, "receivers": receivers}.items()
    ends = [checked_ids(name, ids, num_nodes, "num_nodes") for name, ids in named]
    return ends, starts


def _transferred(senders, receivers, starts, threshold):
    """Return whether each edge is of a sparse pair, and the pair of each edge.

    A pair of clusters is receiver cluster * k + sender cluster.
    """
    row, column = (
        np.searchsorted(starts, ends, side="right") - 1 for ends in (receivers, senders)
    )
    sizes = np.diff(starts)
    pair, entries = row * sizes.size + column, np.outer(sizes, sizes).ravel()
    density = np.bincount(pair, minlength=entries.size) / np.maximum(entries, 1)
    limit = threshold * (pair.size / int(starts[-1]) ** 2)
    return (density < limit)[pair], pair


def _tiles_by_pair(pair, num_clusters, block_size) -> np.ndarray:
    """Return the tiles of each pair of clusters by its edges, int64 [k * k]."""
    count = np.bincount(pair, minlength=num_clusters**2)
    return np.where(count, count // block_size**2 + 1, 0)


def _main_group(tile, group, num_tiles: int) -> np.ndarray:
    """Return each tile's most frequent group of edges, int64 [T]; lowest of ties.

    Args:
        tile: int [E], tile of each edge; every tile has one.
        group: int [E], group of each edge.
        num_tiles: T.
    """
    base = int(group.max(initial=0)) + 1
    both, count = np.unique(tile * base + group, return_counts=True)
    owner, group = np.divmod(both, base)
    order = np.lexsort((group, -count, owner))
    first = np.searchsorted(owner[order], np.arange(num_tiles))
    return group[order][first]


def _result(keys, senders, receivers, block_size, transferred) -> Reformation:
    keys = np.sort(keys)
    covered = np.isin(tile_keys(senders, receivers, block_size), keys)
    tiles = np.stack(np.divmod(keys, TILE_ROW), axis=1).astype(np.int32)
    return Reformation(tiles, covered, transferred, block_size)
