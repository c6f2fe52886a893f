import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dense import RESTS, check_against_oracle, evaluate, joined, values

from keras_bandgnn.primitives import Banded, Edges, Grouped, Plan
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.supernode import Supernode


def hub_graphs(seed, lengths, weighted=False, num_types=3):
    """Random graphs in each of which a few nodes send or receive much."""
    rng = np.random.default_rng(seed)
    parts, start = [], 0
    for number, length in enumerate(lengths):
        count = int(rng.integers(0, 4 * length))
        ends = rng.integers(0, length, (2, count))
        # A third of the edges ends at a hub, a third begins at one; some do both.
        hubs = rng.integers(0, length, 3)
        for side in ends:
            chosen = rng.random(count) < 0.4
            side[chosen] = rng.choice(hubs, chosen.sum())
        parts.append([*(ends + start), np.full(count, number)])
        start += length
    sender, receiver, graph = np.concatenate(parts, axis=1).astype(np.int32)
    kind = rng.integers(0, num_types, len(sender)).astype(np.int32)
    weight = rng.normal(size=len(sender)).astype(np.float32) if weighted else None
    return Edges(sender, receiver, kind, start, num_types, weight), graph


LENGTHS = ([26, 14], [7, 33], [40])


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize(("weighted", "groups"), [(False, 1), (True, 3)])
def test_equals_the_oracle(rest, least, weighted, groups):
    all_edges = [
        hub_graphs(seed, lengths, weighted)[0]
        for seed, lengths in enumerate(LENGTHS[:groups])
    ]
    chosen = Plan(Supernode(least), rest=RESTS[rest])
    check_against_oracle(chosen, all_edges, 1e-5)


def test_bfloat16_is_close():
    all_edges = [hub_graphs(seed, LENGTHS[seed])[0] for seed in range(2)]
    # bfloat16 keeps 8 bits: 2**-8 of the largest term, some terms per sum.
    check_against_oracle(Plan(Supernode(4)), all_edges, 0.03, "bfloat16")


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    least=st.sampled_from([2, 5, 30]),
    rest=st.sampled_from(sorted(RESTS)),
)
def test_equals_segment_alone(seed, least, rest):
    edges = hub_graphs(seed, [17, 23])[0]
    inputs = values(seed, 1)
    chosen = Plan(Supernode(least), rest=RESTS[rest])
    own, _ = evaluate(chosen, [edges], *inputs)
    other, _ = evaluate(Plan(), [edges], *inputs)
    np.testing.assert_allclose(own, other, atol=1e-5 * max(1, np.abs(other).max()))


def test_all_primitives_in_one_plan():
    chosen = Plan(Dense(8), Supernode(6), BlockSparse(4, 2), Banded(3), rest=Grouped())
    all_edges = [hub_graphs(s, [5, 24, 4, 7], weighted=True)[0] for s in range(2)]
    check_against_oracle(chosen, all_edges, 1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    least=st.sampled_from([1, 2, 5, 9]),
    num_types=st.sampled_from([1, 3]),
    followed=st.booleans(),
)
def test_capacities_suffice_wherever_graphs_lie(
    seed, lengths, least, num_types, followed
):
    edges, graph = hub_graphs(seed, lengths, num_types=num_types)
    last = [Dense(4), Banded(3)] if followed else []
    chosen = Plan(Supernode(least), *last)
    sizes = chosen.sizes(edges, graph, len(lengths))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))[: rng.integers(1, len(lengths) + 1)]
    part = joined(edges, graph, lengths, order)
    budget = {name: int(values[order].sum()) for name, values in sizes.items()}
    arrays = chosen.pack(part, budget)
    count = sum(a["mask"].sum() for a in arrays.values() if "mask" in a)
    count += (arrays["segment"]["receiver"] < part.num_nodes).sum()
    assert count == len(part)


def test_rows_and_columns_hold_each_edge_once():
    # Node 0 receives 3 edges of type 1 and node 4 sends 3, one of them to node 0.
    sender = np.array([1, 2, 4, 4, 4, 0, 4], np.int32)
    receiver = np.array([0, 0, 0, 2, 3, 3, 2], np.int32)
    kind = np.array([1, 1, 1, 1, 1, 0, 0], np.int32)
    edges = Edges(sender, receiver, kind, 5, 2)
    assert Supernode(3).cover(edges).tolist() == [True] * 3 + [False] * 4
    # Of node 4's edges of type 1 two are left once node 0 has its row.
    both = Supernode(2)
    assert both.cover(edges).tolist() == [True] * 5 + [False] * 2
    sizes = both.sizes(edges, np.zeros(7, np.int64), 1)
    assert {name: int(n[0]) for name, n in sizes.items()} == {
        "supernode:2": 5,
        "supernode:2.in": 1,
        "supernode:2.out": 1,
    }


def test_padding_and_layout():
    sender = np.array([1, 2, 4, 4, 4], np.int32)
    receiver = np.array([0, 0, 0, 2, 3], np.int32)
    edges = Edges(sender, receiver, np.ones(5, np.int32), 5, 2)
    budget = {"supernode:2": 6, "supernode:2.in": 3, "supernode:2.out": 1}
    arrays = Supernode(2).pack(edges, budget)
    assert arrays["in_node"].reshape(-1, 8)[:, 0].tolist() == [0, 5]
    assert arrays["in_type"].tolist() == [1, 1]
    assert arrays["out_node"].tolist() == [4] + [0] * 7
    assert arrays["row"].tolist() == [0, 0, 0, 16, 16, 16]
    assert arrays["column"].tolist() == [8, 8, 8, 0, 0, 8]


def test_no_edges_give_zeros():
    empty = np.zeros(0, np.int32)
    edges = Edges(empty, empty, empty, 5, 2)
    assert not evaluate(Plan(Supernode(4)), [edges], *values(1, 1, 5, 2))[0].any()


def test_key_round_trip_and_errors():
    assert Supernode.from_key("supernode:17") == Supernode(17) != Supernode(18)
    chosen = Plan(Supernode(8), rest=Grouped())
    assert Plan.from_config(chosen.get_config()) == chosen
    for bad in (0, 2.5, "8"):
        with pytest.raises(ValueError, match="`min_degree` to be (at l|an int)"):
            Supernode(bad)
    with pytest.raises(ValueError, match="key of a primitive"):
        Plan(rest="supernode")
    edges = hub_graphs(0, [40])[0]
    names = ("supernode:2", "supernode:2.in", "supernode:2.out")
    edges = edges.keep(Supernode(2).cover(edges))
    for name in names:
        budget = {**dict.fromkeys(names, 999), name: 1}
        with pytest.raises(ValueError, match=f"budget of '{name}'"):
            Supernode(2).pack(edges, budget)
