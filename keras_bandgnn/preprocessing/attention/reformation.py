"""Elastic computation reformation: which tiles of a clustered graph become dense."""

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
    seed_number,
)
from keras_bandgnn.preprocessing.ordering.tiles import (
    best_tiles,
    keys_of,
    main_group,
    tile_counts,
    tile_keys,
    tiles_of,
)

# Thresholds, in multiples of the density of the graph; the paper's last one is the
# density 1, which no pair of clusters of a simple graph exceeds.
LADDER = (0.0, 1.0, 1.5, 5.0, 7.0, 10.0, math.inf)


@dataclasses.dataclass(frozen=True)
class Reformation:
    """Dense tiles of a graph, and what they mean for its edges.

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
        kept = np.count_nonzero(self.transferred & self.covered)
        return float(kept / count) if count else 1.0

    @property
    def edge_coverage(self) -> float:
        """Share of all edges that are covered."""
        return float(np.count_nonzero(self.covered) / max(self.covered.size, 1))


def graph_density(num_edges: int, num_nodes: int) -> float:
    """Return the share of the adjacency matrix that edges fill, E / N^2."""
    num_edges = positive_int("num_edges", num_edges, 0, 2**62)
    num_nodes = positive_int("num_nodes", num_nodes)
    return num_edges / num_nodes**2


def cluster_densities(senders, receivers, starts) -> np.ndarray:
    """Return the edges of each pair of clusters divided by its entries, float64 [k, k].

    Args:
        senders: int [E].
        receivers: int [E].
        starts: int [k + 1], first node of each cluster, then N.

    Returns:
        The row is the cluster of the receivers, the column that of the senders.

    Example:
    >>> cluster_densities([0, 2], [1, 3], [0, 2, 4]).tolist()
    [[0.25, 0.0], [0.0, 0.25]]
    """
    starts = _checked_starts(starts)
    return _densities(_pairs(*_ends(senders, receivers, starts[-1]), starts), starts)


def reform(
    senders,
    receivers,
    num_nodes: int,
    starts=None,
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
    >>> made = reform([0, 1, 3, 4], [1, 0, 0, 7], 8, block_size=2, num_tiles=1)
    >>> made.tiles.tolist(), made.covered.tolist()
    ([[0, 0]], [True, True, False, False])
    """
    count = num_tiles if least_fill is None else 0
    ends, starts = _checked(senders, receivers, num_nodes, starts, count)
    block_size = positive_int("block_size", block_size)
    threshold = non_negative_number("threshold", threshold)
    least_fill = optional(positive_number, "least_fill", least_fill)
    if least_fill is not None:
        keys, _, count = tile_counts(*ends, block_size)
        tiles = tiles_of(keys[count >= least_fill * block_size**2])
        return _result(tiles, *ends, block_size, np.ones(ends[0].size, bool))
    if num_tiles is not None:
        tiles = best_tiles(*ends, block_size, num_tiles)
        return _result(tiles, *ends, block_size, np.ones(ends[0].size, bool))
    transferred, pair = _transferred(*ends, starts, threshold)
    num_wanted = _wanted(pair[transferred], starts.size - 1, block_size)
    keys, tile, count = tile_counts(*ends, block_size)
    owner = main_group(tile, pair, keys.size)
    # Of equals the lower key comes first.
    order = np.lexsort((keys, -count, owner))
    rank = np.arange(keys.size) - np.searchsorted(owner[order], owner[order])
    best = order[rank < num_wanted[owner[order]]]
    return _result(tiles_of(keys[best]), *ends, block_size, transferred)


def random_tiles(
    senders,
    receivers,
    num_nodes: int,
    starts=None,
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
    block_size = positive_int("block_size", block_size)
    threshold = non_negative_number("threshold", threshold)
    rng = np.random.default_rng(seed_number("seed", seed))
    blocks = -(-num_nodes // block_size)
    if num_tiles is not None:
        transferred = np.ones(ends[0].size, bool)
        num_wanted, first = np.array([num_tiles]), np.array([0, blocks])
    else:
        transferred, pair = _transferred(*ends, starts, threshold)
        num_wanted = _wanted(pair[transferred], starts.size - 1, block_size)
        first = -(-starts // block_size)
    sizes, count = np.diff(first), first.size - 1
    places = [np.empty((0, 2), np.int64)]
    for index in np.flatnonzero(num_wanted):
        row, column = divmod(int(index), count)
        room = int(sizes[row] * sizes[column])
        picked = rng.choice(room, min(int(num_wanted[index]), room), replace=False)
        place = np.divmod(picked, max(sizes[column], 1))
        places.append(np.stack(place, axis=1) + [first[row], first[column]])
    tiles = tiles_of(keys_of(np.concatenate(places)))
    return _result(tiles, *ends, block_size, transferred)


def _checked(senders, receivers, num_nodes, starts, num_tiles):
    num_nodes = positive_int("num_nodes", num_nodes)
    if num_tiles is not None:
        positive_int("num_tiles", num_tiles, 0)
        starts = [0, num_nodes]
    elif starts is None:
        raise ValueError("Expected `starts` or `num_tiles`. Received: neither.")
    starts = _checked_starts(starts)
    if starts[-1] != num_nodes:
        raise ValueError(
            "Expected `starts` to end with the number of nodes. "
            f"Received: starts[-1]={starts[-1]}, num_nodes={num_nodes}."
        )
    return _ends(senders, receivers, num_nodes), starts


def _checked_starts(starts) -> np.ndarray:
    starts = int_array("starts", starts).astype(np.int64)
    if starts.ndim != 1 or starts.size < 2 or starts[0] or (np.diff(starts) < 0).any():
        raise ValueError(
            "Expected `starts` to ascend from 0 to the number of nodes. "
            f"Received: starts={starts.tolist()!r:.80}."
        )
    return starts


def _ends(senders, receivers, num_nodes) -> tuple[np.ndarray, np.ndarray]:
    return (
        checked_ids("senders", senders, int(num_nodes), "num_nodes"),
        checked_ids("receivers", receivers, int(num_nodes), "num_nodes"),
    )


def _densities(pair, starts) -> np.ndarray:
    """Return the density of each pair of clusters [k, k] by the pair of each edge."""
    sizes = np.diff(starts)
    room = np.outer(sizes, sizes)
    count = np.bincount(pair, minlength=room.size).reshape(room.shape)
    return count / np.maximum(room, 1)


def _pairs(senders, receivers, starts) -> np.ndarray:
    """Return each edge's pair of clusters: receiver cluster * k + sender cluster."""
    row = np.searchsorted(starts, receivers, side="right") - 1
    return row * (starts.size - 1) + np.searchsorted(starts, senders, side="right") - 1


def _transferred(senders, receivers, starts, threshold):
    """Return whether each edge is of a sparse pair, and the pair of each edge."""
    pair = _pairs(senders, receivers, starts)
    if not pair.size:
        return np.zeros(0, bool), pair
    limit = threshold * graph_density(pair.size, int(starts[-1]))
    return (_densities(pair, starts) < limit).ravel()[pair], pair


def _wanted(pair, num_clusters, block_size) -> np.ndarray:
    """Return the tiles of each pair of clusters by its edges, int64 [k * k]."""
    count = np.bincount(pair, minlength=num_clusters**2)
    return np.where(count, count // block_size**2 + 1, 0)


def _result(tiles, senders, receivers, block_size, transferred) -> Reformation:
    covered = np.isin(tile_keys(senders, receivers, block_size), keys_of(tiles))
    return Reformation(tiles, covered, transferred, block_size)
