import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dense import (
    RESTS,
    check_against_oracle,
    evaluate,
    joined,
    small_graphs,
    values,
)

from keras_bandgnn.models import GGNNBackbone
from keras_bandgnn.preprocessing import DynamicBatcher, GraphLoader, StaticBatcher
from keras_bandgnn.primitives import Banded, Edges, Grouped, Plan
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.testing import random_graph

LENGTHS = ([26, 14], [7, 33], [40])


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize(("weighted", "groups"), [(False, 1), (True, 3)])
def test_equals_the_oracle(rest, least, weighted, groups):
    all_edges = [
        small_graphs(seed, lengths, weighted)[0]
        for seed, lengths in enumerate(LENGTHS[:groups])
    ]
    chosen = Plan(BlockSparse(8, least), rest=RESTS[rest])
    check_against_oracle(chosen, all_edges, 1e-5)


@pytest.mark.parametrize("least", [1, 3])
def test_bfloat16_is_close(least):
    all_edges = [small_graphs(seed, LENGTHS[seed])[0] for seed in range(2)]
    # bfloat16 keeps 8 bits: 2**-8 of the largest term, a few terms per sum.
    check_against_oracle(Plan(BlockSparse(8, least)), all_edges, 0.03, "bfloat16")


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([5, 16]),
    least=st.sampled_from([1, 2]),
    rest=st.sampled_from(sorted(RESTS)),
)
def test_equals_segment_alone(seed, size, least, rest):
    edges = small_graphs(seed, [17, 23])[0]
    inputs = values(seed, 1)
    chosen = Plan(BlockSparse(size, least), rest=RESTS[rest])
    own, _ = evaluate(chosen, [edges], *inputs)
    other, _ = evaluate(Plan(), [edges], *inputs)
    np.testing.assert_allclose(own, other, atol=1e-5 * max(1, np.abs(other).max()))


# Dense corners, where many graphs share a tile, and sparse ones.
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    size=st.sampled_from([1, 3, 8, 16]),
    least=st.sampled_from([1, 2, 5, 9]),
    num_types=st.sampled_from([1, 3]),
    band=st.booleans(),
)
def test_capacities_suffice_wherever_graphs_lie(
    seed, lengths, size, least, num_types, band
):
    edges, graph = small_graphs(seed, lengths, num_types=num_types)
    first = [Banded(3, "band")] if band else []
    chosen = Plan(*first, BlockSparse(size, least))
    sizes = chosen.sizes(edges, graph, len(lengths))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))[: rng.integers(1, len(lengths) + 1)]
    part = joined(edges, graph, lengths, order)
    # What the graphs need says the bound, and not one more.
    budget = {name: int(values[order].sum()) for name, values in sizes.items()}
    arrays = chosen.pack(part, budget)
    count = sum(a["mask"].sum() for a in arrays.values() if "mask" in a)
    count += (arrays["segment"]["receiver"] < part.num_nodes).sum()
    assert count == len(part)


def test_a_graph_alone_gets_what_it_needs_at_its_worst_place():
    # A clique of 8 nodes: one tile of 4 x 4 more per side where it is not aligned.
    ends = np.array(np.meshgrid(np.arange(8), np.arange(8)), np.int32).reshape(2, -1)
    edges = Edges(*ends, np.zeros(64, np.int32), 8, 1)
    sizes = BlockSparse(4).sizes(edges, np.zeros(64, np.int64), 1)
    assert {name: int(n[0]) for name, n in sizes.items()} == {
        "block_sparse:4": 9,
        "block_sparse:4.row": 3,
        "block_sparse:4.edge": 64,
    }
    # A shift of 1 leaves a corner of one edge, and of 3 too: they cost shares.
    alone = BlockSparse(4, 16).sizes(edges, np.zeros(64, np.int64), 1)
    assert alone["block_sparse:4:16"].tolist() == [4]


def test_always_covered_edges_are_covered_everywhere():
    edges, graph = small_graphs(5, [40, 12])
    primitive = BlockSparse(8, 3)
    always = primitive.always_covers(edges)
    assert 0 < always.sum() < len(edges)
    for shift in range(8):
        moved = Edges(
            edges.sender + np.int32(shift),
            edges.receiver + np.int32(shift),
            edges.type,
            edges.num_nodes + shift,
            3,
        )
        for part in (slice(None), graph == 0, graph == 1):
            covered = primitive.cover(moved.keep(part))
            assert covered[always[part]].all()


def test_only_full_enough_tiles_are_covered():
    edges, _ = small_graphs(1, [40])
    covered = BlockSparse(8, 3).cover(edges)
    tiles = np.stack([edges.type, edges.receiver // 8, edges.sender // 8])
    _, place, count = np.unique(tiles, axis=1, return_inverse=True, return_counts=True)
    assert 0 < covered.sum() < len(edges)
    np.testing.assert_array_equal(covered, count[place] >= 3)


def test_empty_tiles_cost_nothing():
    # Types 0 and 2 of 4; receiver blocks 2 and 0; sender blocks 0 and 1.
    edges = Edges(
        np.array([0, 5, 1, 2], np.int32),
        np.array([9, 8, 3, 8], np.int32),
        np.array([2, 2, 0, 2], np.int32),
        num_nodes=12,
        num_types=4,
    )
    budget = {"block_sparse:4": 3, "block_sparse:4.row": 2, "block_sparse:4.edge": 4}
    arrays = BlockSparse(4).pack(edges, budget)
    assert arrays["tile"].tolist() == [1, 2, 0, 1]
    assert arrays["block"].tolist() == [0, 0, 1]
    assert arrays["row"].tolist() == [0, 1, 1]
    assert arrays["row_block"].tolist() == [0, 2]
    assert arrays["row_type"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("least", "batcher"), [(1, StaticBatcher), (2, DynamicBatcher)]
)
@pytest.mark.release(elsewhere=True)
def test_a_backbone_gives_the_same_states_under_every_plan(least, batcher):
    rng = np.random.default_rng(0)
    graphs = [random_graph(rng, int(n)) for n in rng.integers(3, 40, 6)]
    plans = Plan(BlockSparse(16, least)), Plan()
    backbone = GGNNBackbone({"type": 512}, hidden_dim=8, num_steps=2, num_edge_types=3)
    outputs = []
    for chosen in plans:
        loader = GraphLoader(graphs, batcher(3), plan=chosen, shuffle=False)
        states = {}
        for batch in (loader[i] for i in range(len(loader))):
            x = batch[0]
            out = keras.ops.convert_to_numpy(backbone(x))
            mask, graph = x["node"]["mask"], x["node"]["graph_id"]
            for number, own in zip(x["graph"]["id"][0], range(99), strict=False):
                if number >= 0:
                    states[int(number)] = out[mask & (graph == own)]
        outputs.append(states)
    assert sorted(outputs[0]) == sorted(outputs[1]) == list(range(6))
    for number, own in outputs[0].items():
        np.testing.assert_allclose(own, outputs[1][number], atol=1e-5)


def test_no_edges_give_zeros():
    empty = np.zeros(0, np.int32)
    edges = Edges(empty, empty, empty, 5, 2)
    for least in (1, 4):
        chosen = Plan(BlockSparse(8, least))
        assert not evaluate(chosen, [edges], *values(1, 1, 5, 2))[0].any()


def test_key_round_trip_and_errors():
    for primitive in (BlockSparse(16), BlockSparse(8, 4)):
        assert BlockSparse.from_key(primitive.key()) == primitive
        chosen = Plan(primitive, rest=Grouped())
        assert Plan.from_config(chosen.get_config()) == chosen
    assert BlockSparse(8, 4).key() == "block_sparse:8:4"
    # A plan may consist of tiles alone.
    assert Plan(rest=BlockSparse(16)).keys == ("block_sparse:16",)
    for bad in (0, 2.5, "8"):
        with pytest.raises(ValueError, match="`block_size` to be (at l|an int)"):
            BlockSparse(bad)
        with pytest.raises(ValueError, match="`min_edges` to be (at l|an int)"):
            BlockSparse(8, bad)
    edges = small_graphs(0, [40])[0]
    names = ("block_sparse:8", "block_sparse:8.row", "block_sparse:8.edge")
    for name in names:
        budget = {**dict.fromkeys(names, 999), name: 1}
        with pytest.raises(ValueError, match=f"budget of '{name}'"):
            BlockSparse(8).pack(edges, budget)
