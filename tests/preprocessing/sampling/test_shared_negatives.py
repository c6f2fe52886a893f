"""Nodes that all pairs of a step share: all of them, or distinct ones."""

import numpy as np
import pytest

from keras_bandgnn.data import NodePairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing import (
    LinkLoader,
    NeighborSampler,
    SampleLoader,
    SharedNegatives,
)

NODES = 12


def ring(**options):
    node = np.arange(NODES)
    graph = Graph(NODES, node, (node + 1) % NODES, node={"id": node})
    pairs = NodePairs.of_edges(graph)
    return LinkLoader(graph, pairs, batch_size=5, **options)


@pytest.mark.parametrize("sides", ["receiver", "sender", "both"])
def test_all_nodes_by_default(sides):
    drawn = SharedNegatives(sides=sides).sample(NODES)
    assert set(drawn) == ({"receiver", "sender"} if sides == "both" else {sides})
    for ids in drawn.values():
        np.testing.assert_array_equal(ids, np.arange(NODES))
    # More than there are.
    for ids in SharedNegatives(NODES + 3, sides).sample(NODES).values():
        np.testing.assert_array_equal(ids, np.arange(NODES))


def test_draws_are_distinct_uniform_and_follow_from_the_seed():
    shared = SharedNegatives(3)
    counts = np.zeros((2, NODES), int)
    for seed in range(2000):
        drawn = shared.sample(NODES, seed)
        for row, end in zip(counts, ("receiver", "sender"), strict=True):
            assert len(set(drawn[end])) == 3
            row[drawn[end]] += 1
    expected = 2000 * 3 / NODES
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    again = shared.sample(NODES, 7)
    for end, ids in shared.sample(NODES, 7).items():
        np.testing.assert_array_equal(ids, again[end])
    assert (again["receiver"] != again["sender"]).any()


def test_ends_of_different_sizes_are_padded():
    nodes = {"sender": np.array([4, 6]), "receiver": np.array([1, 2, 3, 5])}
    rng = np.random.default_rng(0)
    drawn = SharedNegatives().draw(nodes, rng)
    assert drawn["sender"].tolist() == [4, 6, -1, -1]
    assert drawn["receiver"].tolist() == [1, 2, 3, 5]
    drawn = SharedNegatives(3).draw(nodes, rng)
    assert drawn["sender"].tolist() == [4, 6, -1]
    assert len(drawn["receiver"]) == 3


def test_batches_have_pairs_alone_and_the_nodes_beside_them():
    loader = ring(negatives=SharedNegatives(4), seed=3)
    draws = []
    for epoch in range(2):
        for step in range(len(loader)):
            x, y, weight = loader.build(step, epoch)
            pair = x["pair"]
            assert pair["sender"].shape == (1, 5)
            assert pair["positive"].tolist() == [[0, 1, 2, 3, 4]]
            assert (y == 1).all() and weight.sum() == (2 if step == 2 else 5)
            for end in ("receiver", "sender"):
                assert pair[f"shared_{end}"].shape == (1, 4)
                assert pair[f"shared_{end}"].dtype == np.int32
                draws.append(tuple(pair[f"shared_{end}"][0]))
    # New ones in each step.
    assert len(set(draws)) > 8


def test_configurations_and_text():
    shared = SharedNegatives(4, "sender")
    assert shared.get_config() == {"count": 4, "sides": "sender"}
    assert repr(shared) == "SharedNegatives(count=4, sides='sender')"


def test_wrong_arguments():
    with pytest.raises(ValueError, match="count"):
        SharedNegatives(0)
    with pytest.raises(ValueError, match="sides"):
        SharedNegatives(sides="either")
    with pytest.raises(ValueError, match="negatives"):
        ring(negatives="all")
    graph = Graph(4, [0, 1, 2], [1, 2, 3], node={"id": [*range(4)]})
    sampled = SampleLoader(graph, NeighborSampler([2], batch_size=4))
    with pytest.raises(ValueError, match="NegativeSampler with a sampler"):
        LinkLoader(graph, [[0, 1]], SharedNegatives(), loader=sampled)
