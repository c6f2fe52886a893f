"""Objectives of `LinkPredictor`: BPR, its negatives, and the penalty of embeddings."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.data import NodePairs, split_links
from keras_bandgnn.models.link_scores import mean_loss
from keras_bandgnn.models.pair_task import embedding_penalty
from keras_bandgnn.preprocessing import (
    GraphLoader,
    LinkLoader,
    NegativeSampler,
    NeighborSampler,
    StaticBatcher,
)
from tests.models.test_link_edge_sets import BUYS, SETS, shop

pytestmark = pytest.mark.every_backend


def predictor(**options):
    keras.utils.set_random_seed(0)
    backbone = kb.models.LightGCNBackbone({"sets": SETS}, 8, 2)
    options = {"objective": "bpr", "edge_set": BUYS, **options}
    return kb.models.LinkPredictor(backbone, **options)


def loader_of(split, negatives, batch_size=20):
    return LinkLoader(
        split.train,
        split.train_pairs,
        negatives,
        batch_size,
        split.known,
        shuffle=False,
        # Types of edges count alike.
        loader=GraphLoader([split.train], StaticBatcher(1), num_edge_types=0),
        edge_set=BUYS,
    )


@pytest.mark.parametrize("count", [1, 3])
def test_losses_of_steps_and_of_evaluate_are_those_of_numpy(count):
    split = split_links(shop(), edge_set=BUYS)
    task = predictor()
    # The last of the batches is padded.
    loader = loader_of(split, NegativeSampler(count, "source"))
    rows = []
    for index in range(len(loader)):
        x, y, weight = loader[index]
        scores = np.asarray(task.predict_on_batch(x))[0]
        rows.append(scores[weight[0] > 0].reshape(-1, 1 + count))
        own = np.logaddexp(0, rows[-1][:, 1:] - rows[-1][:, :1]).mean()
        task.reset_metrics()
        logs = task.test_on_batch(x, y, weight, return_dict=True)
        assert logs["loss"] == pytest.approx(own, rel=1e-4)
    assert len(rows[-1]) < 20
    every = np.concatenate(rows)
    logs = task.evaluate(loader, return_dict=True, verbose=0)
    positive, negative = every[:, 0], every[:, 1:].ravel()
    assert logs["loss"] == pytest.approx(mean_loss(task, positive, negative), rel=1e-4)
    best = (every[:, :1] >= every[:, 1:]).all(axis=1).mean()
    assert logs["accuracy"] == pytest.approx(best)


def test_default_negatives_are_other_items_of_the_same_user():
    split = split_links(shop(), edge_set=BUYS)
    task = predictor()
    loader = task.loader(split.train)
    x, y, _ = loader[0]
    ends = [x["pair"][end].reshape(-1, 2) for end in ("sender", "receiver")]
    real = x["pair"]["mask"].reshape(-1, 2)[:, 0]
    assert (ends[0][real, 0] == ends[0][real, 1]).all()
    order = np.argsort(loader.assembler._row)
    drawn = order[ends[1][real, 1]]
    assert {*split.train.node["set"][drawn]} == {[*split.train.sets].index("item")}
    result = task.evaluate(split.train, split.test_pairs, known=split.known)
    assert 0 < result["loss"] < 1


def test_the_default_optimizer_moves_embeddings_of_small_gradients():
    optimizer = predictor().optimizer
    assert (float(optimizer.learning_rate), optimizer.epsilon) == (
        pytest.approx(1e-3),
        1e-9,
    )
    weight = keras.Variable(np.zeros(2, "float32"))
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer.apply([keras.ops.full((2,), 1e-7, "float32")], [weight])
    # With Keras' own epsilon 3e-5.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(weight), -7.6e-4, rtol=0.01)


@pytest.mark.parametrize("sampler", [None, NeighborSampler([5, 5], batch_size=16)])
@pytest.mark.release(elsewhere=True)
def test_learns_the_order_of_items(sampler, tmp_path):
    split = split_links(shop(), 0.1, 0.1, edge_set=BUYS)
    task = predictor(embedding_l2=1e-4)
    task.compile(keras.optimizers.Adam(0.05))
    before = task.evaluate(split.train, split.test_pairs, known=split.known)
    history = task.fit(
        split.train,
        split.train_pairs,
        NegativeSampler(2, "source"),
        known=split.known,
        validation_pairs=split.valid_pairs,
        sampler=sampler,
        epochs=30,
        verbose=0,
    ).history
    assert np.isfinite(history["val_loss"]).all()
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    after = task.evaluate(split.train, split.test_pairs, known=split.known)
    assert after["auc"] > max(0.75, before["auc"])
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert (again.objective, again.embedding_l2) == ("bpr", 1e-4)
    np.testing.assert_allclose(
        again.predict(split.train, split.test_pairs),
        task.predict(split.train, split.test_pairs),
        atol=1e-6,
    )


def penalty_of(task, x):
    """The penalty of a batch."""
    states = next(iter(task.backbone.hidden_states(x)))
    return float(keras.ops.convert_to_numpy(embedding_penalty(states, x)))


def embeddings(task, graph):
    """The embedded features of nodes, before messages."""
    (states,) = task.embed([graph], layer=0)
    return states


@pytest.mark.parametrize("kind", ["source", "uniform"])
def test_the_penalty_is_that_of_the_nodes_of_the_pairs(kind):
    split = split_links(shop(), edge_set=BUYS)
    task = predictor(objective="softmax")
    loader = loader_of(split, NegativeSampler(2, kind, "either"))
    table = embeddings(task, split.train)
    order = np.argsort(loader.assembler._row)
    for index in (0, len(loader) - 1):
        x, *_ = loader[index]
        pair = {name: values[0] for name, values in x["pair"].items()}
        total, positives = 0.0, 0
        for first in pair["positive"]:
            if not pair["mask"][first]:
                continue
            positives += 1
            ends = [(e, first) for e in ("sender", "receiver")]
            for place in range(first + 1, first + 3):
                for end in ("sender", "receiver"):
                    if pair[end][place] != pair[end][first]:
                        ends.append((end, place))
            nodes = [order[pair[end][place]] for end, place in ends]
            total += 0.5 * np.square(table[nodes]).sum()
        value = penalty_of(task, x)
        assert value == pytest.approx(total / positives, rel=1e-5)


def test_training_adds_the_penalty_and_evaluation_does_not():
    split = split_links(shop(), edge_set=BUYS)
    batch = loader_of(split, NegativeSampler(1, "source"), None)[0]
    losses = {}
    for factor in (0.0, 0.5):
        task = predictor(embedding_l2=factor)
        task.compile(keras.optimizers.SGD(0.0))
        penalty = penalty_of(task, batch[0])
        losses[factor] = []
        for _ in range(3):
            task.reset_metrics()
            logs = task.train_on_batch(*batch, return_dict=True)
            losses[factor].append(logs["loss"] - factor * penalty)
        task.reset_metrics()
        losses[factor].append(task.test_on_batch(*batch, return_dict=True)["loss"])
    np.testing.assert_allclose(losses[0.5], losses[0.0], rtol=1e-4)


def test_negatives_of_other_users_are_refused():
    split, task = split_links(shop(), edge_set=BUYS), predictor()
    for call in (
        lambda: task.fit(split.train, negatives=NegativeSampler(), verbose=0),
        lambda: task.fit(loader_of(split, NegativeSampler()), verbose=0),
        lambda: task.evaluate(
            split.train, split.test_pairs, NegativeSampler(), split.known
        ),
    ):
        with pytest.raises(ValueError, match="'source' or 'typed'.*objective='bpr'"):
            call()
    typed = LinkLoader(split.train, split.train_pairs, edge_set=BUYS)
    with pytest.raises(ValueError, match="plan has one type of edges"):
        task.fit(typed, verbose=0)
    with pytest.raises(ValueError, match="as many `negatives`.*'bpr'"):
        pairs = NodePairs([0, 1], [0, 1], edge_set=BUYS)
        task.evaluate(split.train, pairs, pairs.take([0, 0, 1]))
    with pytest.raises(ValueError, match="embedding_l2"):
        predictor(embedding_l2=-1.0)


def test_steps_have_the_transposes_that_the_host_lays_out():
    split, task = split_links(shop(), edge_set=BUYS), predictor()
    x, *_ = task.loader(split.train)[0]
    (arrays,) = x["plan"].values()
    names = [name for name in arrays if name.startswith("back_")]
    assert bool(names) == graph_ops.USES_TRANSPOSE
