"""Pairs with times: each is scored from what was before it, and from nothing else."""

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import data, models, preprocessing, training

NOW = 1_700_000_000_000
SAMPLER = preprocessing.NeighborSampler([-1, -1], batch_size=16, time="uniform")


def interactions(seed=0, nodes=20, edges=300, spread=200):
    rng = np.random.default_rng(seed)
    return kb.Graph(
        nodes,
        *rng.integers(0, nodes, (2, edges)),
        node={"id": np.arange(nodes)},
        edge={"time": NOW + rng.integers(0, spread, edges)},
    )


def predictor(nodes=20, head="bilinear"):
    backbone = models.SAGEBackbone({"id": nodes}, 8, num_layers=2)
    return models.LinkPredictor(backbone, head)


@pytest.mark.every_backend
def test_sampled_scores_are_those_of_the_graph_before_each_pair():
    graph = interactions()
    task = predictor()
    pairs = data.split_links(graph, 0.0, 0.1, undirected=False, time=True).test_pairs
    sampled = task.predict(graph, pairs, sampler=SAMPLER)
    assert sampled.shape == (len(pairs),)
    for k in range(0, len(pairs), 9):
        before = data.edges_before(graph, int(pairs.time[k]))
        expected = task.predict(before, pairs.take([k]))
        np.testing.assert_allclose(sampled[k], expected[0], atol=1e-5)
    # Another size of batches, and pairs in another order.
    order = np.arange(len(pairs))[::-1]
    again = task.predict(graph, pairs.take(order), batch_size=5, sampler=SAMPLER)
    np.testing.assert_allclose(again[::-1], sampled, atol=1e-5)


def test_later_edges_change_no_score():
    graph = interactions()
    task = predictor()
    split = data.split_links(graph, 0.0, 0.3, undirected=False, time=True)
    valid = split.test_pairs.take(slice(0, 20))
    scores = task.predict(graph, valid, sampler=SAMPLER)
    past = data.edges_before(graph, int(valid.time.max()))
    assert past.num_edges < graph.num_edges
    np.testing.assert_allclose(
        task.predict(past, valid, sampler=SAMPLER), scores, atol=1e-5
    )


def test_predict_evaluate_and_rank_refuse_later_messages():
    graph = interactions()
    task = predictor()
    split = data.split_links(graph, 0.1, 0.1, undirected=False, time=True)
    test = split.test_pairs
    negatives = preprocessing.NegativeSampler(3, "source")
    plain = preprocessing.NeighborSampler([4, 4])
    for call in (
        lambda **o: task.predict(graph, test, **o),
        lambda **o: task.evaluate(graph, test, negatives, **o),
        lambda **o: task.rank(graph, test, negatives=negatives, **o),
    ):
        for options in ({}, {"sampler": plain}):
            with pytest.raises(ValueError, match="earlier than all of `pairs`"):
                call(**options)
        call(sampler=SAMPLER)
    before = data.edges_before(graph, split.cutoffs[1])
    assert len(task.predict(before, test)) == len(test)
    # Pairs without times are compared as before.
    assert len(task.predict(graph, test.without_time())) == len(test)
    assert len(task.predict(graph)) == graph.num_edges


def test_ranks_among_drawn_negatives():
    graph = interactions()
    task = predictor()
    test = data.split_links(graph, 0.1, 0.1, undirected=False, time=True).test_pairs
    negatives = preprocessing.NegativeSampler(7, "source", exclude_known=False)
    ranks = task.rank(graph, test, negatives=negatives, sampler=SAMPLER)
    drawn = negatives.sample(test, 20, seed=0)
    links = task._links(graph)
    from keras_bandgnn.models.link_scores import drawn_negatives

    drawn = drawn_negatives(links, test, negatives, None, 0)
    true = task.predict(graph, test, sampler=SAMPLER)
    table = task.predict(graph, drawn, sampler=SAMPLER).reshape(-1, 7)
    same = drawn.receivers.reshape(-1, 7) == test.receivers[:, None]
    table[same] = -np.inf
    gap = np.abs(table - true[:, None]).min(axis=1) > 1e-4
    expected = 1 + (table > true[:, None]).sum(axis=1)
    assert gap.any()
    np.testing.assert_array_equal(ranks[gap], expected[gap])
    assert 0 < training.mean_reciprocal_rank(ranks) <= 1
    # Of the whole graph before the first pair, too.
    before = data.edges_before(graph, int(test.time.min()))
    assert len(task.rank(before, test, negatives=negatives)) == len(test)


def test_a_model_learns_what_edge_bank_knows():
    # Each sender has one partner, whom it meets again and again.
    rng = np.random.default_rng(0)
    partner = rng.permutation(16) + 16
    senders = rng.integers(0, 16, 600)
    graph = kb.Graph(
        32,
        np.concatenate([senders, partner[senders]]),
        np.concatenate([partner[senders], senders]),
        node={"id": np.arange(32)},
        edge={"time": NOW + np.tile(np.arange(600), 2)},
    )
    split = data.split_links(graph, 0.1, 0.2, undirected=False, time=True)
    task = models.LinkPredictor(
        models.SAGEBackbone({"id": 32}, 16, num_layers=1), "mlp", hidden=32
    )
    sampler = preprocessing.NeighborSampler([4], batch_size=128, time="recent")
    negatives = preprocessing.NegativeSampler(2, "source", exclude_known=False)
    task.fit(graph, split.train_pairs, negatives, sampler=sampler, epochs=15, verbose=0)
    drawn = preprocessing.NegativeSampler(9, "source")
    options = {"negatives": drawn, "sampler": sampler}
    ranks = task.rank(graph, split.test_pairs, **options)
    assert training.mean_reciprocal_rank(ranks) > 0.8


def test_evaluation_along_time():
    graph = interactions()
    task = predictor()
    test = data.split_links(graph, 0.0, 0.2, undirected=False, time=True).test_pairs
    ranks = [
        task.rank(before, window) for before, window in data.walk_time(graph, test, 3)
    ]
    assert sum(map(len, ranks)) == len(test)


def test_wrong_options():
    graph = interactions()
    task = predictor()
    test = data.split_links(graph, 0.0, 0.2, undirected=False, time=True).test_pairs
    with pytest.raises(ValueError, match="`negatives`"):
        task.rank(graph, test, sampler=SAMPLER)
    with pytest.raises(ValueError, match="by_layer"):
        task.predict(graph, test, sampler=SAMPLER, by_layer=True)
    with pytest.raises(ValueError, match="NegativeSampler"):
        task.rank(graph, test, negatives=[[0, 1]])
    with pytest.raises(ValueError, match="pairs with times"):
        task.predict(graph, [[0, 1]], sampler=SAMPLER)
    with pytest.raises(ValueError, match="all have times, or none"):
        task.evaluate(graph, test, [[0, 1]], sampler=SAMPLER)


def test_loaders_of_a_task_have_its_sampler():
    graph, task = interactions(), predictor()
    sampler = preprocessing.NeighborSampler([3, 3], 8, time="recent")
    loader = task.loader(graph, sampler=sampler)
    with pytest.raises(ValueError, match="loader.graph, loader.pairs"):
        task.predict(loader)
    assert loader.assembler.sampler.time == "recent"
    with pytest.raises(
        ValueError, match="a sampler of neighbours, such as NeighborSampler"
    ):
        task.loader(graph, sampler=3)
    with pytest.raises(TypeError, match="samplr"):
        task.loader(graph, samplr=sampler)
