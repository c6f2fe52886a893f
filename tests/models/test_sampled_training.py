"""Training and prediction with samplers, over every backbone, against whole graphs."""

import re

import keras
import numpy as np
import pytest
from registered import BACKBONES, WIDTH, for_backbone, registered, sample_of

import keras_bandgnn as kb
from keras_bandgnn.models import link_pairs
from keras_bandgnn.models.backbone import Backbone
from keras_bandgnn.preprocessing import (
    ClusterSampler,
    NeighborSampler,
    SubgraphSampler,
)
from keras_bandgnn.preprocessing.sampling.reused_memory import ReusedMemory

pytestmark = pytest.mark.every_backend(
    "one_compilation", "prediction_by_layer", "pairs_around"
)

NODES = 60
# Many programs or many steps, of layers that other tests run on every backend.
on_torch = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="needs many programs"
)


def backbone_of(name, **options):
    return sample_of(BACKBONES, name)(**options)[0]


NAMES = [
    name
    for name, cls in registered(Backbone).items()
    if cls.__module__.startswith("keras_bandgnn")
]
SMALL = {name: backbone_of(name) for name in NAMES}
LOCAL = [name for name in NAMES if SMALL[name].is_local]
FRAMED = [name for name in LOCAL if SMALL[name].trims_hops]


def large_graph(seed=0, **changes):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, NODES, (2, 4 * NODES))
    ends[:, :3] = 5  # Loops, and an edge several times.
    graph = kb.Graph(
        NODES,
        *ends,
        edge_type=rng.integers(0, 2, ends.shape[1]),
        node={
            "h": rng.normal(size=(NODES, 3)),
            "train": (np.arange(NODES) % 2).astype(int),
            "valid": (np.arange(NODES) % 2 == 0).astype(int),
            "cluster": np.arange(NODES) // 15,
        },
        label=rng.integers(0, 3, NODES),
        label_level="node",
    )
    return graph.replace(**changes)


def task_of(backbone, **options):
    return kb.models.NodeClassifier(backbone, 3, **options)


def sage(num_layers=2, units=WIDTH, **options):
    options = {"num_edge_types": 2, **options}
    return kb.models.SAGEBackbone({"h": {"features": 3}}, units, num_layers, **options)


def depth_of(backbone):
    return backbone.depth or 1


def outputs_of_seeds(task, graph, sampler):
    """The output of each node, from the batch whose seed it is."""
    loader = task.loader(graph, sampler=sampler)
    out = np.zeros((NODES, 3))
    for index in range(len(loader)):
        outputs = keras.ops.convert_to_numpy(task(loader[index][0]))[0]
        seeds = loader.supergraphs(index, 0)[0].members
        out[seeds] = outputs[: len(seeds)]
    return out


@pytest.mark.parametrize("name", LOCAL)
def test_all_neighbours_give_the_outputs_of_the_whole_graph(name):
    keras.utils.set_random_seed(1)
    task = task_of(deeper(name) if name in FRAMED else backbone_of(name))
    (graph,) = for_backbone(task.backbone, [large_graph()])
    whole = task.predict(graph)[0]
    sampler = NeighborSampler([-1] * depth_of(task.backbone), batch_size=11)
    np.testing.assert_allclose(
        outputs_of_seeds(task, graph, sampler), whole, rtol=1e-5, atol=1e-5
    )


def deeper(name, **options):
    """The sample of a backbone with two layers."""
    config = backbone_of(name).get_config()
    cls = registered(Backbone)[name]
    return cls.from_config({**config, "num_layers": 2, **options})


FRAMES = {
    "plain": {},
    "concat": {"jumping_knowledge": "concat", "num_layers": 3},
    "max": {"jumping_knowledge": "max", "ego_separation": True},
    "linear": {"residual": "linear", "feed_forward": True, "norm": "layer"},
    "first": {"activation_first": True, "norm": None, "residual": True, "remat": True},
}


@on_torch
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", ["SAGEBackbone", "GCNBackbone", "GatedGCNBackbone"])
def test_all_neighbours_under_options_of_the_frame(name, frame):
    keras.utils.set_random_seed(1)
    graph = large_graph()
    task = task_of(deeper(name, **FRAMES[frame]))
    whole = task.predict(graph)[0]
    sampler = NeighborSampler([-1] * task.backbone.num_layers, batch_size=13)
    np.testing.assert_allclose(
        outputs_of_seeds(task, graph, sampler), whole, rtol=1e-5, atol=1e-5
    )
    by_layer = task.predict_by_layer(graph, block_size=17)[0]
    np.testing.assert_allclose(by_layer, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FRAMED)
@pytest.mark.release(elsewhere=True)
def test_prediction_by_layer_is_that_of_the_whole_graph(name, tmp_path):
    keras.utils.set_random_seed(1)
    task = task_of(deeper(name))
    graphs = for_backbone(task.backbone, [large_graph(), large_graph(1)])
    whole = task.predict(graphs)
    folder = tmp_path / "scratch"
    found = task.predict_by_layer(graphs, block_size=16, folder=folder)
    for one, two in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    assert not list(folder.iterdir())


@on_torch
@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "pool"])
@pytest.mark.parametrize("edges", [False, True])
def test_reductions_of_sage(reduce, edges):
    graph = large_graph()
    more = {"edge_inputs": {"type": 2}} if edges else {}
    task = task_of(sage(reduce=reduce, **more))
    whole = task.predict(graph)[0]
    found = outputs_of_seeds(task, graph, NeighborSampler([-1, -1], 9))
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)
    by_layer = task.predict_by_layer(graph, block_size=17)[0]
    np.testing.assert_allclose(by_layer, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_backbones_that_read_more_than_neighbours_refuse(name):
    if name in LOCAL:
        return
    graph = sample_of(BACKBONES, name)()[1][0]
    task = task_of(backbone_of(name))
    with pytest.raises(ValueError, match="reads nothing but neighbours"):
        task.loader(graph, sampler=NeighborSampler([3]))
    with pytest.raises(ValueError, match="Use predict"):
        task.predict_by_layer(graph)


@pytest.mark.parametrize(
    "options", [{"norm": "graph"}, {"virtual_node": True}], ids=str
)
def test_options_that_read_more_than_neighbours_refuse(options):
    task = task_of(deeper("SAGEBackbone", **options))
    with pytest.raises(ValueError, match="reads nothing but neighbours"):
        task.fit(large_graph(), sampler=NeighborSampler([3, 3]))
    task.fit(
        large_graph(), sampler=ClusterSampler(4, feature="cluster"), verbose=0, epochs=1
    )


GLOBAL = [{"norm": "graph"}, {"virtual_node": True}]
SAMPLERS = {
    "neighbours": lambda: NeighborSampler([3, 2], batch_size=8),
    "clusters": lambda: ClusterSampler(4, batch_size=2, feature="cluster"),
    "walks": lambda: SubgraphSampler(5, walk_length=2, coverage=5),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_trains_with_one_compilation(name):
    graph = large_graph()
    guard = kb.training.RecompileGuard()
    task = task_of(sage())
    history = task.fit(
        graph,
        mask="train",
        validation_mask="valid",
        sampler=SAMPLERS[name](),
        epochs=10,
        verbose=0,
        callbacks=[guard],
    ).history
    assert history["loss"][-1] < history["loss"][0]
    assert len(history["val_accuracy"]) == 10
    trained = [c for c in guard.compilations if c.kind == "train"]
    assert len(trained) == (0 if keras.backend.backend() == "torch" else 1)
    scores = task.evaluate(
        graph, mask="valid", sampler=SAMPLERS[name](), verbose=0, return_dict=True
    )
    assert np.isfinite(scores["loss"])


@pytest.mark.parametrize("name", ["GATBackbone", "GGNNBackbone", "GTBackbone"])
@pytest.mark.parametrize("sampler", ["clusters", "walks"])
def test_any_backbone_trains_on_subgraphs(name, sampler):
    task = task_of(backbone_of(name))
    history = task.fit(
        large_graph(), sampler=SAMPLERS[sampler](), epochs=2, verbose=0
    ).history
    assert np.isfinite(history["loss"]).all()


def test_memory_of_batches_is_not_written_while_it_is_read(monkeypatch):
    rng = np.random.default_rng(0)
    graph = kb.Graph(
        4000,
        *rng.integers(0, 4000, (2, 40_000)),
        node={"h": rng.normal(size=(4000, 256))},
        label=rng.integers(0, 3, 4000),
        label_level="node",
    )
    backbone = kb.models.SAGEBackbone({"h": {"features": 256}}, 16, 2, norm=None)
    config, found = backbone.get_config(), []
    for empty in (ReusedMemory.empty, lambda self, *given: np.empty(*given)):
        monkeypatch.setattr(ReusedMemory, "empty", empty)
        keras.utils.set_random_seed(0)
        task = task_of(kb.models.SAGEBackbone.from_config(config))
        task.compile(keras.optimizers.SGD(0.1))
        task.fit(graph, sampler=NeighborSampler([9, 9], 250), epochs=2, verbose=0)
        found.append(task.get_weights())
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_other_tasks_over_nodes():
    graph = large_graph()
    numbers = np.asarray(graph.node["h"]) @ np.array([[1.0], [2.0], [0.5]])
    numbers[::7] = np.nan
    regressor = kb.models.NodeRegressor(sage(), 1)
    fit = {"sampler": SAMPLERS["neighbours"](), "verbose": 0}
    losses = regressor.fit(graph, [numbers], epochs=8, **fit).history["loss"]
    assert losses[-1] < losses[0]
    by_layer, whole = regressor.predict_by_layer(graph)[0], regressor.predict(graph)[0]
    np.testing.assert_allclose(by_layer, whole, rtol=1e-5, atol=1e-5)
    targets = (np.asarray(graph.node["h"]) > 0).astype("float32")
    targets[3, 1] = np.nan
    several = kb.models.NodeClassifier(sage(), 3, multi_label=True)
    losses = several.fit(graph, [targets], epochs=8, **fit).history["loss"]
    assert losses[-1] < losses[0]


def test_weights_of_nodes_count():
    graph = large_graph()
    weights = np.zeros(NODES)
    weights[:20] = 1.0
    task = task_of(sage(1))
    graph = graph.replace(label=np.arange(NODES) % 3)
    some = task.evaluate(
        graph,
        sample_weight=[weights],
        sampler=NeighborSampler([-1], 7),
        verbose=0,
        return_dict=True,
    )
    label = np.where(np.arange(NODES) < 20, graph.label, -1)
    cut = task.evaluate(graph.replace(label=label), verbose=0, return_dict=True)
    assert some["accuracy"] == pytest.approx(cut["accuracy"], abs=1e-6)


def test_weights_of_several_graphs_of_one_size():
    graphs = [large_graph(), large_graph(1)]
    weights = [np.linspace(0, 1, NODES)] * 2
    task = task_of(sage(1))
    one = task.evaluate(graphs, sample_weight=weights, verbose=0)
    two = task.evaluate(graphs, sample_weight=np.concatenate(weights), verbose=0)
    assert one == two


def test_loaders_take_masks():
    graph = large_graph()
    loader = task_of(sage()).loader(
        graph, mask="train", sampler=SAMPLERS["neighbours"](), shuffle=True
    )
    members = np.concatenate([s.members for s in loader.composition(0)])
    assert sorted(members) == np.flatnonzero(graph.node["train"]).tolist()


def test_errors_name_the_option():
    for options in GLOBAL:
        ((name, value),) = options.items()
        task = task_of(deeper("SAGEBackbone", **options))
        for call in (
            lambda t=task: t.fit(large_graph(), sampler=NeighborSampler([3, 3])),
            lambda t=task: t.predict_by_layer(large_graph()),
        ):
            with pytest.raises(ValueError, match=f"with {name}={value!r}"):
                call()


def gradient_of(task, batches):
    """The gradient of the mean loss over entries, by the mean of small steps."""
    optimizer = keras.optimizers.SGD(1.0)
    task.compile(optimizer)
    before = task.get_weights()
    total, count = None, 0.0
    for batch in batches:
        entries = float(np.sum(batch[2]))
        task.set_weights(before)
        task.train_on_batch(*batch)
        steps = [
            entries * (a - b) for a, b in zip(before, task.get_weights(), strict=True)
        ]
        total = (
            steps
            if total is None
            else [s + t for s, t in zip(steps, total, strict=True)]
        )
        count += entries
    task.set_weights(before)
    return np.concatenate([(t / count).ravel() for t in total])


def test_gradients_of_all_neighbours_add_up_to_that_of_the_whole_graph():
    keras.utils.set_random_seed(2)
    graph = large_graph()
    task = task_of(sage(norm=None))
    whole = task.loader(graph)
    exact = gradient_of(task, [whole[0]])
    loader = task.loader(graph, sampler=NeighborSampler([-1, -1], 13))
    found = gradient_of(task, [loader[i] for i in range(len(loader))])
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)


@pytest.mark.release
@on_torch
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_gradients_of_sampled_neighbours_are_unbiased(reduce):
    """One linear layer and a linear loss, for which the theory says so."""
    keras.utils.set_random_seed(2)
    graph = large_graph()
    options = {"norm": None, "residual": False, "activation": "linear"}
    task = kb.models.NodeRegressor(sage(1, 4, reduce=reduce, **options), 1)

    class Linear(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.sum(y_true * y_pred, axis=-1)

    label = np.random.default_rng(0).normal(size=(NODES, 1)).astype("float32")
    graph = graph.replace(label=label)
    task.compile(keras.optimizers.SGD(1.0), Linear(), weighted_metrics=[])
    before = task.get_weights()

    def steps(loader, epochs):
        out = []
        for epoch in range(epochs):
            task.set_weights(before)
            task.train_on_batch(*loader.build(0, epoch))
            after = task.get_weights()
            out.append(
                np.concatenate(
                    [(a - b).ravel() for a, b in zip(before, after, strict=True)]
                )
            )
        return np.array(out)

    exact = steps(task.loader(graph), 1)[0]
    loader = task.loader(
        graph, shuffle=True, sampler=NeighborSampler([2], batch_size=NODES)
    )
    draws = steps(loader, 800)
    error = draws.std(0) / np.sqrt(len(draws)) + 1e-6
    assert (np.abs(draws.mean(0) - exact) < 5 * error).all()


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda t, g: t.fit(g, sampler=NeighborSampler([3])), "Expected 2 fan-outs"),
        (lambda t, g: t.fit(g, sampler=15), "a sampler, such as NeighborSampler"),
        (lambda t, g: t.predict_by_layer(g, block_size=0), "block_size"),
        (lambda t, g: t.predict_by_layer(g, folder=3), "folder"),
        (
            lambda t, g: t.fit(t.loader(g), sampler=NeighborSampler([3, 3])),
            "a graph, of which the sampler makes batches",
        ),
    ],
)
def test_errors(call, text):
    task = task_of(sage())
    with pytest.raises(ValueError, match=re.escape(text)):
        call(task, large_graph())


def test_tasks_over_graphs_take_no_sampler():
    backbone = sage()
    task = kb.models.GraphClassifier(backbone, 2)
    graph = kb.Graph(2, [0], [1], node={"h": np.ones((2, 3))}, label=1)
    with pytest.raises(ValueError, match="a task over nodes"):
        task.fit([graph] * 4, sampler=NeighborSampler([3, 3]))


def pairs_graph():
    rng = np.random.default_rng(3)
    senders, receivers = rng.integers(0, NODES, (2, 150))
    return kb.Graph(
        NODES,
        np.concatenate([senders, receivers]),
        np.concatenate([receivers, senders]),
        node={"h": rng.normal(size=(NODES, 3))},
    )


def test_pairs_around_sampled_nodes():
    """All neighbours of the nodes of pairs give the scores of the whole graph."""
    keras.utils.set_random_seed(1)
    graph = pairs_graph()
    task = kb.models.LinkPredictor(sage(num_edge_types=1))
    split = kb.data.split_links(graph, 0.1, 0.1)
    links = link_pairs.GraphPairs(split.train, None, False, None)
    loader, whole = (
        link_pairs.make_link_loader(
            task,
            links,
            split.train_pairs,
            split.train_pairs,
            negatives=kb.preprocessing.NegativeSampler(2),
            batch_size=16,
            shuffle=True,
            seed=4,
            sampler=sampler,
        )
        for sampler in (NeighborSampler([-1, -1]), None)
    )
    assert len(loader) == len(whole)
    for index in range(len(loader)):
        (one, y, weight), (two, same_y, same_weight) = loader[index], whole[index]
        assert (y == same_y).all() and (weight == same_weight).all()
        scores, expected = (
            keras.ops.convert_to_numpy(task(x)) * weight for x in (one, two)
        )
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_links_train_on_samples():
    graph = pairs_graph()
    task = kb.models.LinkPredictor(sage(num_edge_types=1))
    split = kb.data.split_links(graph, 0.1, 0.1)
    guard = kb.training.RecompileGuard()
    history = task.fit(
        split.train,
        split.train_pairs,
        batch_size=16,
        validation_pairs=split.valid_pairs,
        sampler=NeighborSampler([3, 2]),
        epochs=4,
        verbose=0,
        callbacks=[guard],
    ).history
    assert len(history["val_loss"]) == 4
    trained = [c for c in guard.compilations if c.kind == "train"]
    assert len(trained) == (0 if keras.backend.backend() == "torch" else 1)
    scores = task.predict(split.train, split.test_pairs)
    by_layer = task.predict(split.train, split.test_pairs, by_layer=True)
    np.testing.assert_allclose(by_layer, scores, rtol=1e-5, atol=1e-5)
    found = task.evaluate(split.train, split.test_pairs, by_layer=True)
    assert found == pytest.approx(task.evaluate(split.train, split.test_pairs))
    flat = kb.data.FlatGraphs.from_graphs([split.train])
    assert (task.predict(flat, split.test_pairs) == scores).all()
    for sampler in (ClusterSampler(2), 2):
        with pytest.raises(ValueError, match="a sampler of neighbours, such as"):
            task.fit(split.train, sampler=sampler)
