"""Link prediction: training, scores, ranks, and pairs that stay the caller's."""

import inspect

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.data import NodePairs, split_links
from keras_bandgnn.layers.link_scorer import SCORES
from keras_bandgnn.models.link_scores import mean_loss, score_pairs
from keras_bandgnn.preprocessing import (
    GraphPreprocessor,
    LargestComponent,
    LinkLoader,
    NegativeSampler,
    NeighborSampler,
    RCMKCompile,
    StaticBatcher,
)
from keras_bandgnn.preprocessing.loading.link_loader import validation_loader
from keras_bandgnn.preprocessing.sampling.negative_sampler import KINDS
from keras_bandgnn.training import mean_reciprocal_rank

pytestmark = pytest.mark.every_backend("knowledge_graph", "test_files", "one_shape")

NODES = 40


def communities(nodes=NODES, groups=4, inside=0.7, outside=0.02, seed=0):
    """An undirected graph of groups that are joined within."""
    rng = np.random.default_rng(seed)
    group = np.arange(nodes) % groups
    chance = np.where(group[:, None] == group, inside, outside)
    one, other = np.nonzero(np.triu(rng.random((nodes, nodes)) < chance, 1))
    return kb.Graph(
        nodes,
        np.concatenate([one, other]),
        np.concatenate([other, one]),
        node={"id": np.arange(nodes), "group": group},
    )


def kinship(nodes=NODES, seed=0):
    """Triples of two relations: the next node of a ring, and the node opposite."""
    senders = np.tile(np.arange(nodes), 2)
    steps = np.repeat([1, nodes // 2], nodes)
    kinds = np.repeat([0, 1], nodes)
    order = np.random.default_rng(seed).permutation(2 * nodes)
    return kb.Graph(
        nodes,
        senders[order],
        ((senders + steps) % nodes)[order],
        edge_type=kinds[order],
        node={"id": np.arange(nodes)},
    )


def predictor(head="dot", backbone=None, seed=0, **options):
    keras.utils.set_random_seed(seed)
    if backbone is None:
        backbone = kb.models.GCNBackbone({"id": NODES}, 8)
    return kb.models.LinkPredictor(backbone, head, **options)


def table(seed=0, width=8, **options):
    keras.utils.set_random_seed(seed)
    return kb.models.EmbeddingBackbone({"id": NODES}, width, **options)


# === Training ===


@pytest.mark.parametrize(
    ("objective", "head"),
    [
        ("softmax", "mlp"),
        *(
            pytest.param(*case, marks=pytest.mark.release)
            for case in [
                ("binary", "dot"),
                ("binary", "bilinear"),
                ("binary", "mlp"),
                ("softmax", "dot"),
                ("softmax", "bilinear"),
            ]
        ),
    ],
)
def test_learns_communities(head, objective):
    split = split_links(communities(80, inside=0.6, outside=0.01))
    keras.utils.set_random_seed(0)
    backbone = kb.models.GCNBackbone({"id": 80}, 16, dropout=0.2)
    options = {"objective": objective, "activation": "silu"}
    task = predictor(head, backbone, symmetric=head != "dot", **options)
    task.compile(keras.optimizers.Adam(0.01 if head == "dot" else 0.03))
    negatives = NegativeSampler(3, kind="source")
    history = task.fit(
        split.train,
        split.train_pairs,
        negatives,
        batch_size=128,
        epochs=40,
        validation_pairs=split.valid_pairs,
        verbose=0,
    ).history
    assert history["loss"][-1] < history["loss"][0]
    assert np.isfinite(history["val_loss"]).all()
    result = task.evaluate(split.train, split.test_pairs, known=split.known)
    assert result["auc"] > 0.75
    assert result["average_precision"] > 0.7


def test_relations_of_a_knowledge_graph():
    graph = kinship()
    task = predictor("complex", table(width=32), num_relations=2, objective="softmax")
    task.compile(keras.optimizers.Adam(0.05))
    known = NodePairs.of_edges(graph)
    before = mean_reciprocal_rank(task.rank(graph, known, known, "both"))
    negatives = NegativeSampler(10, "source", "either", self_pairs=True)
    task.fit(graph, known, negatives, 20, epochs=60, verbose=0)
    after = mean_reciprocal_rank(task.rank(graph, known, known, "both"))
    assert before < 0.3
    # The relation "next" has a direction.
    assert after > 0.9


def self_answers(task, graph, pairs):
    """The share of questions to which a node is its own best answer."""
    states = task.embed([graph])[0][None]
    first = []
    for end in ("receiver", "sender"):
        scores = score_pairs(task, states, pairs, len(pairs), end)
        own = pairs.senders if end == "receiver" else pairs.receivers
        first.append(scores.argmax(axis=1) == own)
    return np.mean(first)


# Of relations that hold between different nodes.
@pytest.mark.parametrize("head", SCORES)
def test_no_node_is_its_own_best_answer(head):
    graph = kinship()
    pairs = NodePairs.of_edges(graph)
    relations = None if head == "dot" else 2
    task = predictor(
        head, table(width=32), num_relations=relations, objective="softmax"
    )
    ranks = []
    for epochs in (0, 10):
        negatives = NegativeSampler(10, "source", "either", self_pairs=True)
        if epochs:
            task.compile(keras.optimizers.Adam(0.02))
            task.fit(graph, pairs, negatives, 20, epochs=epochs, verbose=0)
        ranks.append(task.rank(graph, pairs, sides="both"))
        if head != "dot":
            assert self_answers(task, graph, pairs) <= 0.35
    if head == "dot":
        # |h|^2 is at least h_s . h_r at one end of every pair.
        assert self_answers(task, graph, pairs) >= 0.5
        others = task.rank(graph, pairs, sides="both", self_pairs=False)
        assert (others <= ranks[1]).all()
        assert (others < ranks[1]).mean() >= 0.5
    else:
        assert mean_reciprocal_rank(ranks[1]) > 1.5 * mean_reciprocal_rank(ranks[0])


def test_training_follows_from_the_seed():
    split = split_links(communities())
    losses = []
    for _ in range(2):
        task = predictor(backbone=table(dropout=0.3))
        losses.append(
            task.fit(
                split.train,
                split.train_pairs,
                batch_size=64,
                epochs=3,
                verbose=0,
                seed=5,
            ).history["loss"]
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0][0] != losses[0][1]


def test_the_edges_are_the_pairs_by_default():
    graph = communities()
    losses = [
        predictor().fit(graph, pairs, epochs=2, verbose=0).history["loss"]
        for pairs in (None, split_links(graph, 0.0, 0.0).train_pairs)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("objective", ["binary", "softmax"])
def test_padding_and_batches_do_not_change_the_loss(objective):
    split = split_links(communities())
    task = predictor(objective=objective)
    # The last of the batches is padded.
    sampler = NegativeSampler(2)
    loader = LinkLoader(split.train, split.train_pairs, sampler, 50, shuffle=False)
    batches = [loader[k] for k in range(len(loader))]
    assert not batches[-1][2].all()
    rows = []
    for x, y, weight in batches:
        scores = np.asarray(task.predict_on_batch(x))[0]
        real = weight[0] > 0
        assert (y[0] > 0).sum() == 50
        rows.append(scores[real].reshape(-1, 3))
        if objective == "binary":
            sign = np.array([-1, 1, 1])
            own = np.logaddexp(0, sign * rows[-1]).mean()
        else:
            own = (np.log(np.exp(rows[-1]).sum(1)) - rows[-1][:, 0]).mean()
        task.reset_metrics()
        logs = task.test_on_batch(x, y, weight, return_dict=True)
        assert logs["loss"] == pytest.approx(own, rel=1e-4)
    every = np.concatenate(rows)
    positive, negative = every[:, 0], every[:, 1:].ravel()
    # Keras' evaluation of all batches, and the exact one of the same scores.
    logs = task.evaluate(loader, return_dict=True, verbose=0)
    assert logs["loss"] == pytest.approx(mean_loss(task, positive, negative), rel=1e-4)


def test_callbacks_and_resumed_epochs(tmp_path):
    split = split_links(communities())
    task = predictor()
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(sorted(logs))

    task.fit(
        split.train,
        split.train_pairs,
        batch_size=50,
        epochs=2,
        validation_pairs=split.valid_pairs,
        callbacks=[
            Watch(),
            keras.callbacks.EarlyStopping("val_roc_auc", mode="max"),
            kb.training.ThroughputMonitor(),
            kb.training.RecompileGuard(),
        ],
        verbose=0,
    )
    assert {"loss", "accuracy", "roc_auc", "val_loss", "val_roc_auc"} <= set(seen[0])


# === The loader ===


def test_batches_hold_every_pair_once_and_negatives_behind_each():
    graph = kinship()
    pairs = NodePairs.of_edges(graph)
    loader = LinkLoader(graph, pairs, NegativeSampler(3, "source"), batch_size=30)
    assert len(loader) == 3
    for epoch in range(2):
        seen = []
        for index in range(3):
            x, y, weight = loader.build(index, epoch)
            pair = x["pair"]
            assert {name: v.shape for name, v in pair.items()} == {
                **dict.fromkeys(("sender", "receiver", "type", "mask"), (1, 120)),
                "positive": (1, 30),
            }
            rows = [pair[n].reshape(-1, 4) for n in ("sender", "receiver", "type")]
            mask = pair["mask"].reshape(-1, 4)
            np.testing.assert_array_equal(weight, pair["mask"])
            assert (y.reshape(-1, 4) == [1, 0, 0, 0]).all()
            assert mask.all(axis=1).sum() == mask.sum() // 4 == (30, 30, 20)[index]
            real = mask[:, 0]
            assert (rows[0] == rows[0][:, :1]).all() and (
                rows[2] == rows[2][:, :1]
            ).all()
            assert all((row[~real] == 0).all() for row in rows)
            seen += [tuple(row[k, 0] for row in rows) for k in np.flatnonzero(real)]
        every = zip(pairs.senders, pairs.receivers, pairs.types, strict=True)
        assert sorted(seen) == sorted(every)
    one, other = (loader.build(0, epoch)[0]["pair"]["sender"] for epoch in range(2))
    assert (one != other).any()
    again = LinkLoader(graph, pairs, NegativeSampler(3, "source"), batch_size=30)
    np.testing.assert_array_equal(one, again[0][0]["pair"]["sender"])
    assert again.fingerprint() == loader.fingerprint()
    other = LinkLoader(graph, pairs, NegativeSampler(2, "source"), batch_size=30)
    assert other.fingerprint() != loader.fingerprint()


def test_figures_and_state_of_a_loader():
    graph = kinship()
    loader = LinkLoader(
        graph, NodePairs.of_edges(graph), NegativeSampler(), batch_size=30, prefetch=0
    )
    usage = loader.usage()
    assert usage["pair"].tolist() == [[60, 60, 40], [60, 60, 60]]
    assert usage["node"][0].tolist() == [NODES] * 3
    assert "batches=3" in repr(loader)
    state = loader.state_dict(2)
    expected = [loader[k][0]["pair"]["sender"] for k in range(3)]
    loader.load_state_dict(state)
    assert len(loader) == 1
    np.testing.assert_array_equal(loader[0][0]["pair"]["sender"], expected[2])


def test_training_has_one_shape():
    split = split_links(communities())
    loader = LinkLoader(split.train, split.train_pairs, NegativeSampler(), 50)
    shapes = {
        str(keras.tree.map_structure(np.shape, loader.build(k, epoch)))
        for epoch in range(2)
        for k in range(len(loader))
    }
    assert len(shapes) == 1
    history = predictor().fit(loader, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()


# === Scores ===


def scores_of(task, graph, pairs):
    """Each pair from the states, in NumPy."""
    (states,) = task.embed([graph])
    return (states[pairs.senders] * states[pairs.receivers]).sum(axis=1)


def test_scores_are_in_the_order_of_the_pairs():
    graph = communities()
    task = predictor()
    pairs = NodePairs([3, 0, 3, 9], [5, 7, 5, 9])
    expected = scores_of(task, graph, pairs)
    np.testing.assert_allclose(task.predict(graph, pairs), expected, atol=1e-5)
    np.testing.assert_allclose(task.predict([graph], pairs, 3), expected, atol=1e-5)
    array = np.stack([pairs.senders, pairs.receivers], axis=1)
    np.testing.assert_allclose(task.predict(graph, array), expected, atol=1e-5)
    assert task.predict(graph).shape == (graph.num_edges,)
    assert task.predict(graph, pairs.take(slice(0))).shape == (0,)


@pytest.mark.parametrize("plan", ["segment", "banded"])
def test_reordered_nodes_keep_their_pairs(plan):
    split = split_links(communities())
    primitives = [kb.primitives.Banded(8)] if plan == "banded" else []
    plan = kb.primitives.Plan(*primitives)
    preprocessor = GraphPreprocessor([RCMKCompile(8)], StaticBatcher(1), plan)
    plain, ordered = predictor(), predictor(preprocessor=preprocessor)
    losses = []
    for task in (plain, ordered):
        fitted = task.fit(
            split.train, split.train_pairs, batch_size=64, epochs=3, verbose=0
        )
        losses.append(fitted.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    scores = [task.predict(split.train, split.test_pairs) for task in (plain, ordered)]
    np.testing.assert_allclose(*scores, rtol=1e-3, atol=1e-3)
    # A graph that was reordered before has its own numbers.
    part = split.train.subgraph(np.arange(NODES)[::-1])
    tests = split.test_pairs
    flipped = NodePairs(NODES - 1 - tests.senders, NODES - 1 - tests.receivers)
    again = ordered.predict(part, flipped)
    np.testing.assert_allclose(again, scores[1], rtol=1e-3, atol=1e-3)


def test_dropped_nodes_are_refused():
    graph = kb.Graph(NODES, [0, 1], [1, 0], node={"id": np.arange(NODES)})
    task = predictor(preprocessor=GraphPreprocessor([LargestComponent()]))
    with pytest.raises(ValueError, match="keeps all nodes.*drop nodes"):
        task.fit(graph, verbose=0)
    with pytest.raises(ValueError, match="states of all nodes.*drop"):
        task.predict(graph, [[0, 1]])


def test_evaluation_is_that_of_the_scores():
    graph = communities()
    pairs, wrong = NodePairs([0, 1, 2], [4, 5, 6]), NodePairs([0, 1, 2], [1, 2, 3])
    for objective in ("binary", "softmax"):
        task = predictor(objective=objective)
        result = task.evaluate(graph, pairs, wrong)
        positive, negative = (
            scores_of(task, graph, pairs),
            scores_of(task, graph, wrong),
        )
        if objective == "binary":
            loss = np.concatenate(
                [np.logaddexp(0, -positive), np.logaddexp(0, negative)]
            ).mean()
        else:
            loss = np.logaddexp(0, negative - positive).mean()
        assert result["loss"] == pytest.approx(loss, rel=1e-5)
        assert result["auc"] == kb.training.link_auc(positive, negative)
    with pytest.raises(ValueError, match="as many `negatives` for each pair"):
        task.evaluate(graph, pairs, wrong.take([0, 1]))


def test_typed_negatives_of_a_feature():
    graph = communities()
    sampler = NegativeSampler(2, "typed", node_type="group")
    task = predictor()
    task.fit(graph, negatives=sampler, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="Expected a node feature 'group'"):
        bare = graph.replace(node={"id": graph.node["id"]})
        task.fit(bare, negatives=sampler, verbose=0)
    assert 0 <= task.evaluate(graph, [[0, 4]], sampler)["auc"] <= 1


# === Ranks ===


def brute_ranks(table, pairs, known, end):
    """Ranks by a loop over pairs and nodes."""
    other = "senders" if end == "receivers" else "receivers"
    columns = getattr(known, other), known.types, getattr(known, end)
    true = set(zip(*(column.tolist() for column in columns), strict=True))
    ranks = []
    for q, row in enumerate(table):
        own = int(getattr(pairs, end)[q])
        question = int(getattr(pairs, other)[q]), int(pairs.types[q])
        rank = 1.0
        for node, score in enumerate(row):
            if node != own and (*question, node) not in true:
                rank += (score > row[own]) + 0.5 * (score == row[own])
        ranks.append(rank)
    return np.array(ranks)


@pytest.mark.parametrize("head", ["bilinear", "mlp", "distmult", "complex"])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("chunk", [None, 7])
def test_ranks_are_those_of_a_loop(head, filtered, chunk):
    graph = kinship()
    rng = np.random.default_rng(0)
    known = NodePairs(*rng.integers(0, NODES, (2, 300)), rng.integers(0, 2, 300))
    pairs = known.take(slice(0, 25))
    task = predictor(head, table(), num_relations=2)
    ranks = task.rank(graph, pairs, known if filtered else None, "both", chunk)
    assert ranks.shape == (2, 25)
    every = np.arange(NODES)
    for row, end in enumerate(("receivers", "senders")):
        scores = []
        for q in range(25):
            ends = {
                name: np.full(NODES, getattr(pairs, name)[q])
                for name in ("senders", "receivers", "types")
            }
            scores.append(task.predict(graph, NodePairs(**{**ends, end: every})))
        # Rounded, as sums of different shapes differ in the last bits.
        filters = known if filtered else pairs.take(slice(0))
        scores = np.round(scores / np.abs(scores).max(), 5)
        expected = brute_ranks(scores, pairs, filters, end)
        np.testing.assert_allclose(ranks[row], expected, atol=0.51)
        assert np.abs(ranks[row] - expected).mean() < 0.1


def test_nodes_that_score_alike_share_a_rank():
    graph = communities()
    task = predictor(backbone=kb.models.EmbeddingBackbone({"group": 4}, 4))
    task.backbone.set_weights([np.zeros((4, 4))])
    ranks = task.rank(graph, [[0, 1]], sides="both")
    assert ranks.tolist() == [[(NODES + 1) / 2]] * 2
    task.backbone.set_weights([np.eye(4)])
    # The nodes of one group tie with the true one, and all others are behind.
    assert task.rank(graph, [[0, 4]]).tolist() == [(NODES / 4 + 1) / 2]
    known = NodePairs([0, 0, 0], [8, 4, 12])
    assert task.rank(graph, [[0, 4]], known).tolist() == [(NODES / 4 - 2 + 1) / 2]


# === Files and errors ===


@pytest.mark.parametrize(
    "head, options",
    [
        ("dot", {}),
        ("bilinear", {"symmetric": True}),
        ("mlp", {"hidden": 5, "activation": "tanh", "num_relations": 2}),
        ("complex", {"num_relations": 2, "objective": "softmax"}),
    ],
)
@pytest.mark.release(elsewhere=True)
def test_files(head, options, tmp_path):
    graph = kinship()
    task = predictor(head, table(), **options)
    task.fit(graph, NodePairs.of_edges(graph), epochs=1, verbose=0)
    pairs = NodePairs([0, 4], [5, 1], [0, 1])
    expected = task.predict(graph, pairs)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "preset")
    for again in (
        keras.models.load_model(tmp_path / "task.keras"),
        kb.models.Task.from_preset(tmp_path / "preset"),
    ):
        assert type(again) is kb.models.LinkPredictor
        assert {**again.get_config(), "name": task.name} == task.get_config()
        np.testing.assert_allclose(again.predict(graph, pairs), expected, atol=1e-6)
        again.fit(graph, NodePairs.of_edges(graph), epochs=1, verbose=0)


def test_bad_input():
    graph, task = communities(), predictor()
    with pytest.raises(ValueError, match="Expected one graph.*2 graphs.*Join them"):
        task.fit([graph, graph], verbose=0)
    with pytest.raises(ValueError, match=r"`pairs` with node ids in \[0, 40\)"):
        task.predict(graph, [[0, 40]])
    with pytest.raises(ValueError, match="`validation_pairs` with node ids"):
        task.fit(graph, validation_pairs=[[0, 40]], verbose=0)
    with pytest.raises(ValueError, match="NodePairs, or an array"):
        task.evaluate(graph, 3)
    with pytest.raises(ValueError, match="`validation_data` to be None"):
        task.fit(graph, validation_data=[graph], verbose=0)
    with pytest.raises(ValueError, match="`negatives` to be a NegativeSampler"):
        task.fit(graph, negatives=3, verbose=0)
    with pytest.raises(ValueError, match="LinkPredictor, whose pairs"):
        task.export("folder")
    with pytest.raises(ValueError, match="a part 'pair'.*predict"):
        task(kb.preprocessing.GraphLoader([graph])[0][0])
    with pytest.raises(ValueError, match="compiled task"):
        predictor(compile=False).fit(graph, verbose=0)
    typed = predictor("distmult", num_relations=2)
    with pytest.raises(ValueError, match=r"types in \[0, 2\).*Raise num_relations"):
        typed.predict(graph, [[0, 1, 2]])
    with pytest.raises(ValueError, match="at least one pair"):
        task.fit(graph, NodePairs([], []), verbose=0)


# === A loader in place of a graph ===

LOADER_OPTIONS = {
    "pairs": [[0, 1]],
    "negatives": NegativeSampler(2),
    "batch_size": 4,
    "known": [[0, 1]],
    "sampler": NeighborSampler([2, 2], 4),
    "undirected": False,
}
# What is of no graph, or has an effect with a loader.
WITH_LOADER = {"self", "x", "validation_pairs", "seed", "kwargs"}


def test_fit_of_a_loader_refuses_what_the_loader_has_itself():
    split = split_links(communities())
    loader = LinkLoader(split.train, split.train_pairs, NegativeSampler(), 50)
    task = predictor()
    names = set(inspect.signature(kb.models.LinkPredictor.fit).parameters)
    assert names - WITH_LOADER == set(LOADER_OPTIONS)
    for name, value in LOADER_OPTIONS.items():
        with pytest.raises(ValueError, match=f"Received: {name}"):
            task.fit(loader, **{name: value}, verbose=0)
    for name in ("pairs", "negatives", "known"):
        with pytest.raises(ValueError, match=f"Received: {name}"):
            task.evaluate(loader, **{name: LOADER_OPTIONS[name]}, verbose=0)


def test_validation_pairs_of_a_loader_are_those_of_a_graph():
    split = split_links(communities())
    logs = []
    for kind in ("graph", "loader"):
        task = predictor()
        task.compile(keras.optimizers.SGD(0.0))
        options = {"validation_pairs": split.valid_pairs, "verbose": 0}
        if kind == "graph":
            logs.append(task.fit(split.train, split.train_pairs, **options).history)
            continue
        train = LinkLoader(split.train, split.train_pairs, NegativeSampler())
        valid = validation_loader(train, split.valid_pairs)
        real = valid[0][0]["pair"]["mask"]
        assert real.sum() == 2 * len(split.valid_pairs) == real.size
        logs.append(task.fit(train, **options).history)
        with pytest.raises(ValueError, match="`validation_pairs` that are no edges"):
            task.fit(train, validation_pairs=split.train_pairs, verbose=0)
    assert logs[0]["val_loss"] == pytest.approx(logs[1]["val_loss"], rel=1e-5)


class WatchedSampler(NeighborSampler):
    """A sampler of a user's own, with an argument of its own."""

    def __init__(self, fan_outs, calls, **options):
        super().__init__(fan_outs, **options)
        self.calls = calls

    def subgraph(self, *args):
        self.calls.append(1)
        return super().subgraph(*args)

    def get_config(self):
        return {**super().get_config(), "calls": self.calls}


def test_a_sampler_of_another_class_stays_what_it_is():
    calls = []
    sampler = WatchedSampler([2, 2], calls)
    predictor().fit(communities(), epochs=1, sampler=sampler, verbose=0)
    assert calls


# === Messages of more types than relations, and no pairs ===


def test_messages_may_have_types_of_their_own():
    """Reverse edges carry messages, and are no relations."""
    triples = NodePairs.of_edges(kinship())
    pairs = triples.take(slice(20, None))
    back = pairs.reversed()
    every = NodePairs.concatenate(
        [pairs, NodePairs(back.senders, back.receivers, back.types + 2)]
    )
    columns = every.senders, every.receivers
    graph = kb.Graph(
        NODES, *columns, edge_type=every.types, node={"id": np.arange(NODES)}
    )
    backbone = kb.models.GCNBackbone({"id": NODES}, 8, num_edge_types=4)
    task = predictor("distmult", backbone, num_relations=2)
    test, valid = triples.take(slice(10)), triples.take(slice(10, 20))
    bare = graph.replace(senders=[], receivers=[], edge_type=[])
    for kind in KINDS:
        sampler = NegativeSampler(2, kind, "either")
        for known in (None, every):
            options = {"known": known, "verbose": 0}
            task.fit(graph, pairs, sampler, validation_pairs=valid, **options)
            assert task.evaluate(graph, test, sampler, **options)["auc"] >= 0
    ranks = task.rank(graph, test, known=every, verbose=0)
    # Types that are no relations filter nothing.
    np.testing.assert_array_equal(ranks, task.rank(graph, test, known=pairs, verbose=0))
    for call in (task.fit, task.evaluate, task.rank):
        with pytest.raises(ValueError, match="Raise num_relations"):
            call(graph, every, verbose=0)
        with pytest.raises(ValueError, match="`known` with types"):
            call(bare, pairs, known=every, verbose=0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_pairs(kind):
    split, none = split_links(communities()), np.zeros((0, 2), int)
    task, sampler = predictor(), NegativeSampler(2, kind)
    assert len(sampler.sample(none, NODES)) == 0
    for pairs in (none, NodePairs([], [])):
        for call in (task.fit, task.evaluate):
            with pytest.raises(ValueError, match="`pairs` to have at least one pair"):
                call(split.train, pairs, sampler, verbose=0)
        assert task.predict(split.train, pairs).shape == (0,)
        assert task.rank(split.train, pairs, verbose=0).shape == (0,)
    with pytest.raises(ValueError, match="`negatives` to have at least one pair"):
        task.evaluate(split.train, split.test_pairs, none)
    with pytest.raises(ValueError, match="at least one pair"):
        task.evaluate(split.train.replace(senders=[], receivers=[], edge_type=[]))
