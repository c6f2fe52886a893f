"""Losses and gradients under samplers have the expectation of the whole graph's.

Every sampler with every backbone and masks that follow the degree, on a graph in which
each draw has the exact messages: what differs from the whole graph then is how nodes
and edges count. `REFUSED` and `BIASED` have the combinations that are not estimates of
the whole graph, as docs/large-graphs.md says; anything else has to be one.
"""

import keras
import numpy as np
import pytest
from docstrings import sample
from registered import BACKBONES, for_backbone, registered, sample_of

import keras_bandgnn as kb
from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.models.backbone import Backbone
from keras_bandgnn.preprocessing import (
    ClusterSampler,
    NeighborSampler,
    SampleLoader,
    Sampler,
    SubgraphSampler,
)

COMPONENTS, CLASSES = 24, 3
MASKS = (None, "hub", "leaf")
on_torch = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="needs many programs"
)

# Of a depth. Walks reach all that two layers read.
SAMPLERS = {
    "NeighborSampler": lambda depth: NeighborSampler([2] * depth, batch_size=40),
    "NeighborSampler, by type": lambda depth: NeighborSampler(
        [{0: 1, 1: 2}] * depth, batch_size=40
    ),
    "SubgraphSampler": lambda depth: SubgraphSampler(12, 2, coverage=200),
    "ClusterSampler": lambda depth: ClusterSampler(6, 2, feature="cluster"),
}
# Attention between all nodes of a graph is that between those of a batch.
BIASED = {
    (sampler, backbone)
    for sampler in ("SubgraphSampler", "ClusterSampler")
    for backbone in ("GPSBackbone", "GTBackbone", "GraphormerBackbone")
}


def names_of_samplers():
    """The samplers that `kb.preprocessing` exports."""
    exported = {
        name: getattr(kb.preprocessing, name) for name in kb.preprocessing.__all__
    }
    return {
        name
        for name, cls in exported.items()
        if isinstance(cls, type) and issubclass(cls, Sampler) and cls is not Sampler
    }


for name in names_of_samplers() - {key.partition(",")[0] for key in SAMPLERS}:
    SAMPLERS[name] = lambda depth, name=name: sample(getattr(kb.preprocessing, name))

# They read more than the neighbours of a node.
REFUSED = {
    (sampler, backbone)
    for sampler in SAMPLERS
    if SAMPLERS[sampler](2).of_neighbours
    for backbone in (
        "GPSBackbone",
        "GTBackbone",
        "GraphormerBackbone",
        "MPEUBackbone",
        "PaiNNBackbone",
        "SchNetBackbone",
    )
}


def names_of_backbones():
    return [
        name
        for name, cls in registered(Backbone).items()
        if cls.__module__.startswith("keras_bandgnn")
    ]


def layered_graph(by_type=False, seed=0):
    """Components in which all edges into a node come from one other node.

    In each a top sends to two middles, and each middle to leaves, by 1 to 6 parallel
    edges, so that messages into a node are alike, of each type. Walks pass the top much
    more often than each leaf.
    """
    rng = np.random.default_rng(seed)
    senders, receivers, cluster = [], [], []
    for component in range(COMPONENTS):
        top = len(cluster)
        middles = [top + 1, top + 2]
        ends = [(top, top)] + [(top, middle) for middle in middles]
        for middle in middles:
            leaves = range(middles[-1] + 1, middles[-1] + 1 + component % 3 + 1)
            ends += [(middle, leaf) for leaf in leaves]
            middles[-1] = leaves[-1]
        cluster += [component % 6] * (middles[-1] + 1 - top)
        for sender, receiver in ends:
            times = int(rng.integers(1, 7))
            senders += [sender] * times
            receivers += [receiver] * times
    senders, receivers, n = np.array(senders), np.array(receivers), len(cluster)
    degree = np.bincount(senders, minlength=n) + np.bincount(receivers, minlength=n)
    kind = np.zeros(len(senders), int)
    if by_type:
        kind = rng.integers(0, 2, len(senders))
    position = 1.5 * rng.normal(size=(n, 3))
    return kb.Graph(
        n,
        senders,
        receivers,
        edge_type=kind,
        node={
            "h": rng.normal(size=(n, 3)),
            "atomic_number": rng.integers(1, 9, n),
            "position": position,
            "cluster": np.array(cluster),
            "kind": np.array(cluster) % 2,
            "hub": (degree > np.quantile(degree, 0.7)).astype(int),
            "leaf": (degree <= np.quantile(degree, 0.4)).astype(int),
        },
        edge={"displacement": position[senders] - position[receivers] + 0.1},
        # Mostly of one class, so that gradients are not the noise of their mean.
        label=rng.choice(CLASSES, n, p=[0.8, 0.1, 0.1]),
        label_level="node",
    )


def plain_backbone(name):
    """A sample without norms, whose statistics are those of a batch, and deeper."""
    config = sample_of(BACKBONES, name)()[0].get_config()
    changes = {"norm": None, "num_layers": 2, "num_steps": 2}
    config |= {key: value for key, value in changes.items() if key in config}
    return registered(Backbone)[name].from_config(config)


def loader_of(task, graph, mask, sampler, replicas=1):
    """A loader of the task's batches, as `task.loader` makes it, of G subgraphs."""
    loader = task.loader(graph, mask=mask, sampler=sampler, shuffle=True)
    if replicas == 1:
        return loader
    assembler = loader.assembler
    rows = () if assembler.sets is None else (STATE_ROW,)
    return SampleLoader(
        loader.parts[0],
        sampler,
        trimmed=assembler.trimmed,
        rescale=assembler.rescale,
        num_edge_types=loader.num_edge_types,
        replicas=replicas,
        features={"node": (*assembler.node, *rows), "edge": tuple(assembler.edge)},
        classes=not isinstance(task, kb.models.NodeRegressor),
    )


def mean_gradient(task, loader, epochs=1):
    """The mean gradient of the steps of some epochs."""
    task.compile(keras.optimizers.SGD(1.0))
    before, steps = task.get_weights(), []
    for epoch in range(epochs):
        for index in range(len(loader)):
            task.set_weights(before)
            task.train_on_batch(*loader.build(index, epoch))
            after = task.get_weights()
            pairs = zip(before, after, strict=True)
            steps.append(np.concatenate([(a - b).ravel() for a, b in pairs]))
    task.set_weights(before)
    return np.mean(steps, axis=0)


def loss_of(task, loader):
    return task.evaluate(loader, verbose=0, return_dict=True)["loss"]


def estimate(task, loader):
    """The loss that is printed, and the mean gradient."""
    return loss_of(task, loader), mean_gradient(task, loader)


def compared(exact, drawn):
    """Ratio of the losses, that of the gradients along the exact one, and cosine."""
    lengths = [np.linalg.norm(gradient) for _, gradient in (exact, drawn)]
    along = float(exact[1] @ drawn[1])
    return drawn[0] / exact[0], along / lengths[0] ** 2, along / np.prod(lengths)


def table(samplers=SAMPLERS, backbones=None):
    """Yield (sampler, backbone, mask, `compared` or why it is not an estimate)."""
    for name in backbones or names_of_backbones():
        whole = {}
        for key in samplers:
            keras.utils.set_random_seed(3)
            by_type = "type" in key
            task = kb.models.NodeClassifier(plain_backbone(name), CLASSES)
            (graph,) = for_backbone(task.backbone, [layered_graph(by_type)])
            sampler = SAMPLERS[key](task.backbone.depth or 1)
            for mask in MASKS:
                if (key, name) in REFUSED:
                    with pytest.raises(
                        ValueError, match="reads nothing but neighbours"
                    ):
                        task.loader(graph, mask=mask, sampler=sampler)
                    yield key, name, mask, "refused"
                elif (key, name) in BIASED:
                    yield key, name, mask, "biased, documented"
                else:
                    if (by_type, mask) not in whole:
                        loader = task.loader(graph, mask=mask)
                        whole[by_type, mask] = estimate(task, loader)
                    replicas = 256 if isinstance(sampler, SubgraphSampler) else 1
                    loader = loader_of(task, graph, mask, sampler, replicas)
                    result = compared(whole[by_type, mask], estimate(task, loader))
                    yield key, name, mask, result


# The sum of a plan, attention, and a maximum; the others take as long each.
SHORT = {"SAGEBackbone", "GATBackbone", "PNABackbone"}
RELEASED = [
    pytest.param(name, marks=[] if name in SHORT else pytest.mark.release)
    for name in names_of_backbones()
]


@on_torch
@pytest.mark.parametrize("name", RELEASED)
def test_losses_and_gradients_are_those_of_the_whole_graph(name):
    for sampler, _, mask, result in table(backbones=[name]):
        if isinstance(result, str):
            continue
        # Each node comes once per epoch, or as often as walks visit it.
        exact = sampler != "SubgraphSampler"
        tolerance = {"rtol": 2e-4} if exact else {"rtol": 0.1}
        np.testing.assert_allclose(
            result, (1.0, 1.0, 1.0), **tolerance, err_msg=f"{sampler}, mask={mask}"
        )


def constant_task(**options):
    """A task whose outputs are 0, so that every node has the loss ln 3."""
    backbone = kb.models.GCNBackbone({"h": {"features": 3}}, 8, num_edge_types=2)
    task = kb.models.NodeClassifier(backbone, CLASSES, **options)
    for weight in task.weights:
        weight.assign(np.zeros(weight.shape, "float32"))
    return task


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("key", SAMPLERS)
def test_a_constant_loss_is_exact(key, mask):
    graph, task = layered_graph(by_type="type" in key), constant_task()
    sampler = SAMPLERS[key](2)
    options = {"mask": mask, "sampler": sampler, "verbose": 0}
    log = np.log(CLASSES)
    found = task.evaluate(graph, return_dict=True, **options)["loss"]
    assert found == pytest.approx(log, rel=1e-5)
    weights = [np.full(graph.num_nodes, 2.0)]
    found = task.evaluate(graph, sample_weight=weights, return_dict=True, **options)
    assert found["loss"] == pytest.approx(2 * log, rel=1e-5)
    task.compile(keras.optimizers.SGD(0.0))
    history = task.fit(graph, validation_mask="hub", epochs=2, **options).history
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(history[name], log, rtol=1e-5)


@on_torch
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("key", ["SubgraphSampler", "ClusterSampler"])
def test_weights_metrics_and_reductions_are_estimates(key, mask):
    """Weights of nodes and classes, metrics with and without weights, targets."""
    graph = layered_graph()
    rng = np.random.default_rng(2)
    keras.utils.set_random_seed(1)
    backbone = kb.models.EmbeddingBackbone({"h": {"features": 3}}, 8)
    task = kb.models.NodeClassifier(backbone, CLASSES)
    reductions = ["sum_over_batch_size", "mean_with_sample_weight"]
    weighted = task.labelled(
        "x",
        graph,
        sample_weight=[rng.uniform(0, 2, graph.num_nodes)],
        class_weight={0: 3.0, 1: 0.5, 2: 1.0},
    )[0]
    for reduction in reductions:
        loss = keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)

        def scores(loader, loss=loss):
            task.compile(
                loss=loss, metrics=["accuracy"], weighted_metrics=["crossentropy"]
            )
            return [*task.evaluate(loader, verbose=0, return_dict=True).values()]

        whole = task.loader(weighted, mask=mask)
        sampler = SAMPLERS[key](1)
        loader = loader_of(task, weighted, mask, sampler, 128 if key[0] == "S" else 1)
        np.testing.assert_allclose(scores(loader), scores(whole), rtol=0.1)


@on_torch
@pytest.mark.parametrize("key", SAMPLERS)
def test_targets_with_gaps_and_numbers_of_minus_one(key):
    graph = layered_graph(by_type="type" in key)
    rng = np.random.default_rng(4)
    numbers = rng.normal(size=(graph.num_nodes, 2)).astype("float32")
    numbers[graph.node["hub"] == 1, 1] = np.nan
    keras.utils.set_random_seed(1)
    backbone = kb.models.EmbeddingBackbone({"h": {"features": 3}}, 8)
    task = kb.models.NodeRegressor(backbone, 2, target_names=["a", "b"])
    for weights in (None, {"a": 1.0, "b": 2.0}):
        task.compile(keras.optimizers.SGD(1.0), loss_weights=weights)
        config = task.get_compile_config()
        labelled = graph.replace(label=numbers)
        whole = task.loader(labelled)
        sampler = SAMPLERS[key](1)
        loader = loader_of(task, labelled, None, sampler, 64 if key[0] == "S" else 1)
        gradients = []
        for each in (whole, loader):
            gradients.append(mean_gradient(task, each))
        exact, drawn = gradients
        assert np.linalg.norm(drawn - exact) < 0.1 * np.linalg.norm(exact), config
    task = kb.models.NodeRegressor(backbone, 1)
    # -1 is a number, not an unknown class.
    label = np.where(graph.node["leaf"] == 1, -1.0, 2.0).astype("float32")
    labelled = graph.replace(label=label)
    sampler = SAMPLERS[key](1)
    loader = loader_of(task, labelled, None, sampler, 64 if key[0] == "S" else 1)
    ratio = loss_of(task, loader) / loss_of(task, task.loader(labelled))
    assert ratio == pytest.approx(1.0, abs=0.1)
