"""`LinkPredictor` with negatives that pairs share: the losses of one pair at a time."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.data import NodePairs, split_links
from keras_bandgnn.preprocessing import (
    GraphPreprocessor,
    NegativeSampler,
    NeighborSampler,
    RCMKCompile,
    SharedNegatives,
)
from keras_bandgnn.testing import gradients_of
from tests.models.test_link_edge_sets import BUYS, SETS, shop

pytestmark = pytest.mark.every_backend

NODES = 14
HEADS = ("dot", "bilinear", "distmult", "complex")


def triples(count=27, seed=0):
    rng = np.random.default_rng(seed)
    return NodePairs(*rng.integers(0, NODES, (2, count)), rng.integers(0, 3, count))


def graph_of():
    rng = np.random.default_rng(1)
    ends = rng.permutation(NODES)
    return kb.Graph(NODES, ends, np.roll(ends, 1), node={"id": np.arange(NODES)})


def predictor(head="complex", objective="softmax", preprocessor=None, **options):
    keras.utils.set_random_seed(0)
    backbone = kb.models.EmbeddingBackbone({"id": NODES}, 6)
    relations = None if head == "dot" else 3
    task = kb.models.LinkPredictor(
        backbone, head, relations, preprocessor, objective=objective, **options
    )
    # Scores that differ.
    task.set_weights([20 * w for w in task.get_weights()])
    return task


def loader_of(task, negatives, pairs, **options):
    """The loader that `fit` makes."""
    from keras_bandgnn.models.link_pairs import make_link_loader

    links = task._links(options.pop("graph", graph_of()))
    pairs = links.read("pairs", pairs)
    return make_link_loader(
        task, links, pairs, negatives=negatives, batch_size=10, **options
    )


def one_by_one(x, y):
    """The batch of the same comparisons, in which each pair has rows of its own."""
    pair = {name: values[0] for name, values in x["pair"].items()}
    ends = [end for end in ("receiver", "sender") if f"shared_{end}" in pair]
    rows, widths = [], set()
    for end in ends:
        for q in range(y.shape[1]):
            others = [n for n in pair[f"shared_{end}"] if n not in (-1, pair[end][q])]
            widths.add(len(others))
            for node in (pair[end][q], *others):
                row = {name: pair[name][q] for name in ("sender", "receiver", "type")}
                rows.append({**row, end: node, "mask": pair["mask"][q]})
    (width,) = widths
    columns = {n: np.array([[row[n] for row in rows]]) for n in rows[0]}
    columns["positive"] = np.arange(0, len(rows), 1 + width, dtype=np.int32)[None]
    labels = np.zeros((1, len(rows)), np.float32)
    weight = columns["mask"].astype(np.float32)
    return {**x, "pair": columns}, labels, weight


def loss_of(task, batch):
    task.reset_metrics()
    return task.test_on_batch(*batch, return_dict=True)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("sides", ["receiver", "both"])
def test_loss_and_gradients_are_those_of_pairs_one_by_one(head, sides):
    task = predictor(head)
    loader = loader_of(task, SharedNegatives(sides=sides), triples())
    # The last batch is padded.
    for step in (0, len(loader) - 1):
        batch = loader[step]
        alone = one_by_one(*batch[:2])
        logs, others = loss_of(task, batch), loss_of(task, alone)
        assert logs["loss"] == pytest.approx(others["loss"], rel=1e-5)
        assert logs["accuracy"] == pytest.approx(others["accuracy"])
        gradients = gradients_of(task, batch)
        for path, values in gradients_of(task, alone).items():
            np.testing.assert_allclose(gradients[path], values, atol=1e-5)
            assert np.abs(values).max() > 1e-3


@pytest.mark.parametrize("count", [None, 5])
def test_losses_are_those_of_numpy(count):
    """The scores are those of `predict`, by which `rank` compares, too."""
    task, graph, pairs = predictor(), graph_of(), triples()
    loader = loader_of(task, SharedNegatives(count), pairs)
    total, row = [], np.argsort(loader.assembler._row)
    for step in range(len(loader)):
        batch = loader[step]
        pair = {name: v[0] for name, v in batch[0]["pair"].items()}
        losses = []
        for end in ("receiver", "sender"):
            for q in np.flatnonzero(pair["mask"]):
                nodes = [n for n in pair[f"shared_{end}"] if n != pair[end][q]]
                nodes = row[[pair[end][q], *nodes]]
                fixed = np.repeat(
                    row[pair["sender" if end == "receiver" else "receiver"][q]],
                    len(nodes),
                )
                ends = (fixed, nodes) if end == "receiver" else (nodes, fixed)
                asked = NodePairs(*ends, np.repeat(pair["type"][q], len(nodes)))
                scores = task.predict(graph, asked)
                losses.append(np.logaddexp.reduce(scores) - scores[0])
        assert loss_of(task, batch)["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
        total += losses
    assert len(total) == 2 * len(pairs)
    logs = task.evaluate(loader, return_dict=True, verbose=0)
    assert logs["loss"] == pytest.approx(np.mean(total), rel=1e-4)


def test_all_nodes_are_those_that_ranks_compare():
    """The first of all answers is one that is right."""
    task, graph, pairs = predictor(), graph_of(), triples()
    loader = loader_of(task, SharedNegatives(), pairs)
    logs = task.evaluate(loader, return_dict=True, verbose=0)
    ranks = task.rank(graph, pairs, sides="both")
    assert logs["accuracy"] == pytest.approx((ranks == 1).mean())


def test_nodes_in_another_order_have_the_same_losses():
    losses = []
    for preprocessor in (None, GraphPreprocessor([RCMKCompile(4)])):
        task = predictor(preprocessor=preprocessor)
        loader = loader_of(task, SharedNegatives(), triples())
        losses.append(loss_of(task, loader[0])["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("sides", ["receiver", "both"])
def test_nodes_of_edge_sets_are_those_of_the_set_of_the_end(sides):
    graph = shop(permuted=True)
    keras.utils.set_random_seed(0)
    backbone = kb.models.LightGCNBackbone({"sets": SETS}, 8, 2)
    task = kb.models.LinkPredictor(backbone, objective="softmax", edge_set=BUYS)
    split = split_links(graph, 0.1, 0.1, edge_set=BUYS)
    negatives = SharedNegatives(sides=sides)
    task.compile(keras.optimizers.SGD(0.0))
    history = task.fit(
        split.train,
        split.train_pairs,
        negatives,
        batch_size=16,
        validation_pairs=split.valid_pairs,
        verbose=0,
    ).history
    options = {"known": None, "undirected": True}
    ends = ("receiver", "sender") if sides == "both" else ("receiver",)
    ranks = [
        task.rank(split.train, split.train_pairs, sides=end, **options) for end in ends
    ]
    assert history["accuracy"][0] == pytest.approx(np.mean(np.array(ranks) == 1))
    assert np.isfinite(history["val_loss"]).all()


@pytest.mark.parametrize("count", [None, 6])
def test_learns_triples_with_one_shape(count):
    nodes = np.arange(NODES)
    pairs = NodePairs(
        np.tile(nodes, 2),
        np.concatenate([(nodes + 1) % NODES, (nodes - 1) % NODES]),
        np.repeat([0, 1], NODES),
    )
    task, graph = predictor(), kb.Graph(NODES, [], [], node={"id": nodes})
    task.compile(keras.optimizers.Adam(0.1))
    guard = kb.training.RecompileGuard()
    history = task.fit(
        graph,
        pairs,
        SharedNegatives(count),
        batch_size=10,
        epochs=40,
        callbacks=[guard],
        verbose=0,
    ).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    ranks = task.rank(graph, pairs, pairs, sides="both")
    assert kb.training.mean_reciprocal_rank(ranks) > 0.8


@pytest.mark.parametrize("sides", ["receiver", "both"])
def test_shapes_of_outputs(sides):
    task = predictor()
    x, *_ = loader_of(task, SharedNegatives(5, sides), triples())[0]
    shapes = keras.tree.map_structure(lambda array: array.shape, x)
    shape = (1, 2 if sides == "both" else 1, 10, 6)
    assert task.compute_output_shape(shapes) == shape
    assert tuple(task(x).shape) == shape
    shapes["pair"] = dict.fromkeys(shapes["pair"], (None, None))
    assert task.compute_output_shape(shapes) == (None, shape[1], None, None)


def test_combinations_that_do_not_fit_are_refused():
    graph, pairs = graph_of(), triples()
    for options, match in (
        ({"objective": "binary"}, "objective='binary'"),
        ({"objective": "bpr"}, "objective='bpr'"),
        ({"head": "mlp"}, "head 'mlp'"),
    ):
        with pytest.raises(ValueError, match=f"NegativeSampler with .*{match}"):
            predictor(**options).fit(graph, pairs, SharedNegatives(), verbose=0)
    backbone = kb.models.SAGEBackbone({"id": NODES}, 6, num_layers=1)
    task = kb.models.LinkPredictor(backbone, objective="softmax")
    sampler = NeighborSampler([2], batch_size=8)
    pairs = np.stack([pairs.senders, pairs.receivers], axis=1)
    with pytest.raises(ValueError, match="NegativeSampler with a sampler"):
        task.fit(graph, pairs, SharedNegatives(), sampler=sampler, verbose=0)
    with pytest.raises(ValueError, match="negatives"):
        task.evaluate(graph, pairs, SharedNegatives(), undirected=False)
    with pytest.raises(ValueError, match="NegativeSampler"):
        options = {"negatives": SharedNegatives(), "undirected": False}
        task.rank(graph, pairs, **options)
    batch = loader_of(task, NegativeSampler(), pairs)[0][0]
    with pytest.raises(ValueError, match="nodes of SharedNegatives"):
        task.head.compare(np.zeros((1, NODES, 6), "float32"), batch)


# === N3 ===


@pytest.mark.parametrize("negatives", [SharedNegatives(), NegativeSampler(2)])
def test_training_adds_the_nuclear_norm_of_positives(negatives):
    task = predictor(n3=0.5, embedding_l2=0.1)
    plain = predictor(embedding_l2=0.1)
    loader = loader_of(task, negatives, triples())
    # The last batch is padded.
    batch = loader[len(loader) - 1]
    pair, losses = batch[0]["pair"], []
    norms = task.head.nuclear_norm(task.backbone(batch[0]), batch[0])
    rows = pair["positive"][0][pair["mask"][0][pair["positive"][0]]]
    assert 0 < len(rows) < 10
    expected = 0.5 * keras.ops.convert_to_numpy(norms)[0, rows].mean()
    for model in (task, plain):
        model.compile(keras.optimizers.SGD(0.0))
        losses.append(model.train_on_batch(*batch, return_dict=True)["loss"])
    assert losses[0] - losses[1] == pytest.approx(expected, rel=1e-4)
    # Evaluation does not.
    assert loss_of(task, batch)["loss"] == pytest.approx(loss_of(plain, batch)["loss"])


def test_the_nuclear_norm_has_finite_gradients_at_zero():
    task = predictor(n3=0.5)
    task.set_weights([0 * w for w in task.get_weights()])
    batch = loader_of(task, SharedNegatives(), triples())[0]
    for values in gradients_of(task, batch).values():
        assert np.isfinite(values).all()


def test_options_of_the_nuclear_norm(tmp_path):
    task = predictor(n3=0.25)
    task.save_to_preset(tmp_path / "preset")
    assert kb.models.LinkPredictor.from_preset(tmp_path / "preset").n3 == 0.25
    with pytest.raises(ValueError, match="n3"):
        predictor(n3=-1.0)
    with pytest.raises(ValueError, match="0 with the head 'dot'"):
        predictor("dot", n3=0.1)
