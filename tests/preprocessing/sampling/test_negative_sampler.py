"""Negatives: uniform over what is free, none known, of the right types."""

import numpy as np
import pytest

from keras_bandgnn.data import NodePairs
from keras_bandgnn.preprocessing import NegativeSampler
from keras_bandgnn.preprocessing.sampling.negative_sampler import FreePlaces

NODES, TYPES = 12, 2


def positives(count=40, nodes=NODES, types=TYPES, seed=0):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (2, count))
    return NodePairs(*ends, rng.integers(0, types, count))


def triples(pairs):
    return list(
        zip(
            pairs.senders.tolist(),
            pairs.receivers.tolist(),
            pairs.types.tolist(),
            strict=True,
        )
    )


def chi_square(counts):
    """The statistic of equal probabilities, in standard deviations above its mean."""
    counts = np.asarray(counts, float)
    expected = counts.mean()
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - freedom) / np.sqrt(2 * freedom)


def test_free_places_are_equally_likely():
    row, place = np.array([0, 0, 2, 2, 2]), np.array([1, 3, 0, 1, 4])
    places = FreePlaces(row, place, np.array([5, 3, 6]))
    assert places.free.tolist() == [3, 3, 3]
    rows = np.repeat([0, 1, 2], 6000)
    drawn = places.draw(rows, np.random.default_rng(0))
    for number, free in enumerate(([0, 2, 4], [0, 1, 2], [2, 3, 5])):
        values, counts = np.unique(drawn[rows == number], return_counts=True)
        assert values.tolist() == free
        assert chi_square(counts) < 4


@pytest.mark.parametrize("kind", ["uniform", "source", "typed"])
@pytest.mark.parametrize("replace", ["receiver", "sender", "either"])
def test_no_negative_is_known(kind, replace):
    pairs, known = positives(), positives(60, seed=1)
    sampler = NegativeSampler(50, kind, replace)
    drawn = sampler.sample(pairs, NODES, known)
    assert len(drawn) == 50 * len(pairs)
    assert not set(triples(drawn)) & {*triples(pairs), *triples(known)}
    assert (drawn.senders != drawn.receivers).all()
    np.testing.assert_array_equal(drawn.types, np.repeat(pairs.types, 50))


def test_uniform_pairs_are_equally_likely():
    pairs = positives(6, types=1)
    drawn = NegativeSampler(20_000).sample(pairs, NODES)
    table = np.zeros((NODES, NODES))
    np.add.at(table, (drawn.senders, drawn.receivers), 1)
    free = ~np.eye(NODES, dtype=bool)
    free[pairs.senders, pairs.receivers] = False
    assert (table[~free] == 0).all()
    assert abs(chi_square(table[free])) < 4


@pytest.mark.parametrize("end, other", [("receiver", "sender"), ("sender", "receiver")])
def test_replaced_nodes_are_equally_likely(end, other):
    pairs = NodePairs([0, 0, 0, 3], [1, 2, 0, 1], [0, 0, 1, 0])
    if end == "sender":
        pairs = pairs.reversed()
    drawn = NegativeSampler(20_000, "source", end).sample(pairs, NODES)
    for number, free in ((0, {0, 1, 2}), (2, {0}), (3, {1, 3})):
        rows = slice(20_000 * number, 20_000 * (number + 1))
        kept = getattr(drawn, f"{other}s")[rows]
        assert (kept == getattr(pairs, f"{other}s")[number]).all()
        values, counts = np.unique(getattr(drawn, f"{end}s")[rows], return_counts=True)
        assert values.tolist() == sorted(set(range(NODES)) - free)
        assert abs(chi_square(counts)) < 4


def test_either_end_is_replaced_as_often():
    pairs = positives(2000, nodes=200, types=1)
    drawn = NegativeSampler(3, "source", "either").sample(pairs, 200)
    sender = (drawn.senders == np.repeat(pairs.senders, 3)).reshape(-1, 3)
    receiver = (drawn.receivers == np.repeat(pairs.receivers, 3)).reshape(-1, 3)
    # All negatives of a positive at the same end.
    assert (sender.all(axis=1) | receiver.all(axis=1)).all()
    assert 0.45 < sender.all(axis=1).mean() < 0.55


def test_typed_nodes_occur_at_that_end_of_the_relation():
    pairs = NodePairs([0, 1, 2, 3, 4], [5, 6, 7, 8, 8], [0, 0, 0, 1, 1])
    drawn = NegativeSampler(30, "typed").sample(pairs.take(slice(3)), NODES, pairs)
    assert set(drawn.receivers.tolist()) == {5, 6, 7}
    drawn = NegativeSampler(30, "typed", "sender").sample(pairs, NODES)
    assert set(drawn.senders[drawn.types == 0].tolist()) == {0, 1, 2}
    # Both senders of the relation 1 are known with its receiver: others replace them.
    others = set(range(NODES)) - {3, 4, 8}
    assert set(drawn.senders[drawn.types == 1].tolist()) == others


def test_typed_nodes_have_the_same_feature():
    label = np.arange(NODES) % 3
    pairs = positives()
    sampler = NegativeSampler(20, "typed", "either", node_type="kind")
    drawn = sampler.sample(pairs, NODES, node_types=label)
    for end in ("senders", "receivers"):
        before = np.repeat(getattr(pairs, end), 20)
        np.testing.assert_array_equal(label[getattr(drawn, end)], label[before])
    with pytest.raises(ValueError, match="node_types.*feature 'kind'"):
        sampler.sample(pairs, NODES)


def test_known_pairs_may_be_drawn_when_asked():
    pairs = NodePairs([0], [1])
    drawn = NegativeSampler(50, "source", exclude_known=False).sample(pairs, 3)
    assert set(drawn.receivers.tolist()) == {1, 2}


@pytest.mark.parametrize("kind", ["uniform", "source", "typed"])
def test_pairs_of_a_node_with_itself(kind):
    # All others are known.
    pairs = full(4)
    drawn = NegativeSampler(2, kind, self_pairs=True).sample(pairs, 4)
    assert (drawn.senders == drawn.receivers).all()
    if kind != "uniform":
        np.testing.assert_array_equal(drawn.senders, np.repeat(pairs.senders, 2))


def full(nodes, without=()):
    pairs = np.argwhere(~np.eye(nodes, dtype=bool))
    return NodePairs(*pairs[[tuple(p) not in without for p in pairs.tolist()]].T)


def test_dense_graphs():
    # One free pair is found at once, and none is an error.
    pairs = full(40, without=[(3, 7)])
    drawn = NegativeSampler(3).sample(pairs, 40)
    assert set(triples(drawn)) == {(3, 7, 0)}
    for kind in ("source", "typed"):
        with pytest.raises(ValueError, match="a free node for each of `pairs`"):
            NegativeSampler(1, kind, "either").sample(full(5), 5)
    with pytest.raises(
        ValueError, match="not known for each type.*all pairs of type 0"
    ):
        NegativeSampler().sample(full(5), 5)
    # One end is full: the other is replaced.
    pairs = NodePairs([0, 0], [1, 2])
    drawn = NegativeSampler(4, "source", "either").sample(pairs, 3)
    assert (drawn.receivers == np.repeat([1, 2], 4)).all()


def test_draws_follow_from_seed_epoch_and_step():
    pairs, sampler = positives(), NegativeSampler(4, "source", "either")
    first = triples(sampler.sample(pairs, NODES, seed=1, epoch=2, step=3))
    assert triples(sampler.sample(pairs, NODES, seed=1, epoch=2, step=3)) == first
    for key in ({"seed": 2}, {"epoch": 1}, {"step": 1}):
        key = {"seed": 1, "epoch": 2, "step": 3, **key}
        assert triples(sampler.sample(pairs, NODES, **key)) != first


def test_a_part_of_the_pairs():
    pairs = positives()
    draw = NegativeSampler(5, "source", "either").prepare(pairs, NODES)
    index = np.array([7, 3, 30])
    drawn = draw(index, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn.types, np.repeat(pairs.types[index], 5))
    one = drawn.senders == np.repeat(pairs.senders[index], 5)
    other = drawn.receivers == np.repeat(pairs.receivers[index], 5)
    assert (one | other).all()
    assert not set(triples(drawn)) & set(triples(pairs))


def test_configuration():
    sampler = NegativeSampler(3, "typed", "either", False, True, "kind")
    again = NegativeSampler(**sampler.get_config())
    assert repr(again) == repr(sampler)
    for arguments in ({"kind": "x"}, {"replace": "both"}, {"per_positive": 0}):
        with pytest.raises(ValueError, match="Expected.*Received"):
            NegativeSampler(**arguments)
    with pytest.raises(ValueError, match="node_type.*None with kind='source'"):
        NegativeSampler(kind="source", node_type="kind")
