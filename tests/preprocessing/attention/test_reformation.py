import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn.preprocessing import random_tiles, reform
from keras_bandgnn.preprocessing.attention.reformation import LADDER


@st.composite
def clustered(draw):
    """Ends of edges, starts of clusters (empty ones included) and a tile size."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    sizes[0] += 1
    num_nodes = sum(sizes)
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=60))
    ends = np.array(edges, np.int32).reshape(-1, 2).T
    starts = np.append(0, np.cumsum(sizes))
    return ends[0], ends[1], starts, draw(st.integers(1, 4))


def densities(senders, receivers, starts):
    """One by one."""
    out = np.zeros((len(starts) - 1,) * 2)
    for i, j in np.ndindex(out.shape):
        rows = range(starts[i], starts[i + 1])
        columns = range(starts[j], starts[j + 1])
        count = sum(
            r in rows and s in columns for s, r in zip(senders, receivers, strict=True)
        )
        if count:
            out[i, j] = count / (len(rows) * len(columns))
    return out


def tile_edges(senders, receivers, size):
    """Edges of each tile that has some."""
    tiles = {}
    for index, (s, r) in enumerate(zip(senders, receivers, strict=True)):
        tiles.setdefault((int(r) // size, int(s) // size), []).append(index)
    return tiles


@given(clustered(), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_best_tiles_by_brute_force(case, num_tiles):
    senders, receivers, starts, size = case
    held = {k: len(v) for k, v in tile_edges(senders, receivers, size).items()}
    ranked = sorted(held, key=lambda tile: (-held[tile], tile))[:num_tiles]
    made = reform(senders, receivers, starts[-1], block_size=size, num_tiles=num_tiles)
    tiles = made.tiles
    assert tiles.dtype == np.int32 and tiles.shape == (len(ranked), 2)
    assert [tuple(tile) for tile in tiles.tolist()] == sorted(ranked)
    assert made.transferred.all()
    assert made.covered.sum() == sum(held[tile] for tile in ranked)
    assert made.entries == len(ranked) * size**2


def test_no_other_tiles_cover_more():
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, 8, (2, 30))
    held = [len(v) for v in tile_edges(senders, receivers, 2).values()]
    most = max(sum(choice) for choice in itertools.combinations(held, 4))
    made = reform(senders, receivers, 8, block_size=2, num_tiles=4)
    assert made.covered.sum() == most


@given(clustered(), st.sampled_from(LADDER))
@settings(max_examples=150, deadline=None)
def test_threshold_by_brute_force(case, threshold):
    senders, receivers, starts, size = case
    made = reform(senders, receivers, starts[-1], starts, size, threshold)
    sparse = densities(senders, receivers, starts)
    limit = threshold * len(senders) / starts[-1] ** 2 if len(senders) else 0
    cluster = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pair = [
        (int(cluster[r]), int(cluster[s]))
        for s, r in zip(senders, receivers, strict=True)
    ]
    transferred = [bool(sparse[p] < limit) for p in pair]
    assert made.transferred.tolist() == transferred
    # Each tile goes to the pair of most of its edges.
    tiles, owned = tile_edges(senders, receivers, size), {}
    for tile, edges in tiles.items():
        pairs = [pair[e] for e in edges]
        owner = min(set(pairs), key=lambda p: (-pairs.count(p), p))
        owned.setdefault(owner, []).append(tile)
    chosen = []
    for p in {p for p, moved in zip(pair, transferred, strict=True) if moved}:
        ranked = sorted(owned.get(p, []), key=lambda t: (-len(tiles[t]), t))
        chosen += ranked[: pair.count(p) // size**2 + 1]
    assert [tuple(tile) for tile in made.tiles.tolist()] == sorted(chosen)
    inside = sorted(e for tile in chosen for e in tiles[tile])
    assert np.flatnonzero(made.covered).tolist() == inside
    moved = np.flatnonzero(transferred)
    kept = len(set(moved) & set(inside))
    assert made.coverage == (kept / len(moved) if len(moved) else 1)
    assert made.edge_coverage == len(inside) / max(len(senders), 1)


def test_the_ladder_goes_from_nothing_to_everything():
    rng = np.random.default_rng(0)
    senders = np.sort(rng.integers(0, 200, 2000) ** 2 // 200)
    receivers = rng.integers(0, 200, 2000) ** 2 // 200
    starts = [0, 50, 90, 91, 200]
    made = [reform(senders, receivers, 200, starts, 4, value) for value in LADDER]
    shares = [m.transferred.mean() for m in made]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    assert not len(made[0].tiles) and not made[0].covered.any()
    assert made[0].coverage == 1 and made[0].edge_coverage == 0
    assert LADDER[1] == 1 and LADDER[-1] == math.inf


@pytest.mark.parametrize("options", [{"num_tiles": 70}, {"threshold": math.inf}])
def test_random_tiles_have_the_counts(options):
    rng = np.random.default_rng(1)
    senders, receivers = rng.integers(0, 100, (2, 1500)) // [[2], [1]]
    starts = np.array([0, 30, 100])
    made = random_tiles(senders, receivers, 100, starts, 4, seed=3, **options)
    tiles = made.tiles.tolist()
    assert len({tuple(tile) for tile in tiles}) == len(tiles)
    assert tiles == sorted(tiles) and made.tiles.max() < 25
    if "num_tiles" in options:
        assert len(tiles) == 70
    else:
        # Blocks belong to the cluster of their first node.
        side = made.tiles * 4 >= 30
        edges = np.stack([receivers, senders], axis=1) >= 30
        for pair in np.ndindex(2, 2):
            count = (edges == pair).all(axis=1).sum()
            room = np.prod([(8, 17)[half] for half in pair])
            expected = min(count // 16 + 1, room) if count else 0
            assert (side == pair).all(axis=1).sum() == expected
    chosen = {tuple(tile) for tile in tiles}
    ends = zip(receivers.tolist(), senders.tolist(), strict=True)
    assert made.covered.tolist() == [(r // 4, s // 4) in chosen for r, s in ends]
    same = random_tiles(senders, receivers, 100, starts, 4, seed=3, **options)
    other = random_tiles(senders, receivers, 100, starts, 4, seed=4, **options)
    np.testing.assert_array_equal(made.tiles, same.tiles)
    assert made.tiles.tolist() != other.tiles.tolist()


@pytest.mark.parametrize("make", [reform, random_tiles])
@pytest.mark.parametrize("threshold", LADDER)
def test_without_edges(make, threshold):
    made = make([], [], 5, [0, 2, 5], 2, threshold)
    assert made.tiles.shape == (0, 2) and made.covered.shape == (0,)
    assert made.coverage == 1 and made.edge_coverage == 0 and made.entries == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`starts` to be an array"),
        ({"starts": [0, 3]}, "ascending to num_nodes=4"),
        ({"starts": [1, 4]}, "ascending from 0"),
        ({"starts": [0, 3, 2, 4]}, "ascending from 0"),
        ({"starts": [0, 4], "block_size": 0}, "`block_size` to be at least 1"),
        ({"starts": [0, 4], "threshold": -1}, "`threshold` to be at least 0"),
        ({"starts": [0, 4], "threshold": math.nan}, "`threshold`"),
        ({"num_tiles": -1}, "`num_tiles` to be at least 0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        reform([0], [1], 4, **options)
    with pytest.raises(ValueError, match="senders"):
        reform([4], [1], 4, [0, 4])


@given(clustered(), st.floats(0.05, 1.0))
@settings(max_examples=40, deadline=None)
def test_tiles_by_the_share_that_edges_fill(case, fill):
    senders, receivers, starts, size = case
    made = reform(senders, receivers, int(starts[-1]), block_size=size, least_fill=fill)
    counts = tile_edges(senders, receivers, size)
    wanted = sorted(t for t, held in counts.items() if len(held) >= fill * size**2)
    assert [tuple(t) for t in made.tiles.tolist()] == wanted
