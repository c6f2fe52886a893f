import inspect

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.layers import GRUReadout
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor
from keras_bandgnn.training import enable_lora
from tests.registered import backbone_and_loader, registered


def graphs_of(count=12, classes=2):
    rng = np.random.default_rng(0)
    out = []
    for i in range(count):
        n = int(rng.integers(2, 7))
        ends = rng.integers(0, n, (2, 2 * n))
        kind = rng.integers(0, 2, n) + 2 * (i % classes)
        out.append(kb.Graph(n, *ends, node={"kind": kind}, label=i % classes))
    return out


def backbone_of(name):
    return {
        "ggnn": lambda: models.GGNNBackbone({"kind": 6}, 8, 2, num_edge_types=1),
        "gat": lambda: models.GATBackbone({"kind": 6}, 8, 2),
        "graphormer": lambda: models.GraphormerBackbone({"kind": 6}, 8, 1, num_heads=2),
    }[name]()


def task_of(name="ggnn", **options):
    keras.utils.set_random_seed(0)
    preprocessor = None
    backbone = backbone_of(name)
    if options.pop("batcher", None):
        preprocessor = GraphPreprocessor(backbone.graph_layers(), DynamicBatcher(7))
    return models.GraphClassifier(backbone, 2, preprocessor, **options)


def values_of(model):
    return {w.path: np.array(w.numpy()) for w in model.weights}


@pytest.mark.parametrize("name", ["ggnn", "gat", "graphormer"])
def test_only_the_changes_and_the_head_learn(name, tmp_path):
    graphs = graphs_of()
    task = task_of(name)
    before = task.predict(graphs)
    paths = enable_lora(task, rank=2)
    assert paths
    np.testing.assert_allclose(task.predict(graphs), before, atol=1e-6)
    old = values_of(task)
    task.compile(keras.optimizers.Adam(0.03))
    losses = task.fit(graphs, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]
    changed = {
        path
        for path, value in values_of(task).items()
        if not np.array_equal(value, old[path])
    }
    own = {p for p in changed if "/lora_" in p}
    assert len(own) == 2 * len(paths)
    head = {w.path for w in task.head.weights}
    assert len(own) == 2 * len(paths) or len(own) == len(
        [w for w in task.backbone.trainable_variables]
    )
    # The changes are new, the rest is as it was.
    assert changed <= head | own and changed & head

    after = task.predict(graphs)
    assert np.abs(np.array(after) - before).max() > 1e-2
    task.save_to_preset(tmp_path / "tuned")
    again = models.GraphClassifier.from_preset(tmp_path / "tuned")
    assert again.backbone.count_params() == backbone_of(name).count_params()
    np.testing.assert_allclose(again.predict(graphs), after, atol=1e-4)
    assert len(again.trainable_variables) == len(task_of(name).trainable_variables)
    task.save(tmp_path / "tuned.keras")
    with pytest.warns(UserWarning, match="optimizer"):
        read = keras.saving.load_model(tmp_path / "tuned.keras")
    np.testing.assert_allclose(read.predict(graphs), after, atol=1e-4)


def test_half_precision_presets_hold_the_sum(tmp_path):
    graphs = graphs_of()
    task = task_of()
    enable_lora(task, rank=2)
    rng = np.random.default_rng(0)
    for weight in task.trainable_variables:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    expected = task.predict(graphs)
    task.save_to_preset(tmp_path / "half", weights="float16")
    again = models.GraphClassifier.from_preset(tmp_path / "half")
    np.testing.assert_allclose(again.predict(graphs), expected, atol=0.02)


def test_frozen_layers_are_refused():
    """Their low-rank updates would be frozen, too."""
    task = task_of("gat")
    task.loader(graphs_of(), adapt=True)
    task.backbone.trainable = False
    with pytest.raises(ValueError, match="not frozen.*backbone.trainable = True"):
        task.enable_lora(2)
    task.backbone.trainable = True
    assert task.enable_lora(2)


def test_training_goes_on_after_lora():
    graphs = graphs_of()
    task = task_of(batcher=True)
    task.compile(keras.optimizers.Adam(0.02))
    task.fit(graphs, epochs=1, verbose=0)
    task.embed(graphs)
    enable_lora(task, rank=2, alpha=8.0)
    assert float(task.optimizer.learning_rate) == pytest.approx(0.02)
    first = task.predict(graphs)
    task.fit(graphs, epochs=2, verbose=0)
    # The programs are not those of before.
    second = task.predict(graphs)
    assert np.abs(np.array(second) - first).max() > 1e-3
    states = task.embed(graphs)
    (x, *_) = task.loader(graphs[:1], training=False)[0]
    own = np.asarray(keras.ops.convert_to_numpy(task.backbone(x)))[0]
    np.testing.assert_allclose(states[0], own[: len(states[0])], atol=1e-5)


@pytest.mark.parametrize("name", sorted(registered(models.Backbone)))
@pytest.mark.parametrize("layers", [None, "adapted"])
def test_training_moves_nothing_that_is_frozen(name, layers):
    cls = registered(models.Backbone)[name]
    # Batch norms have averages that move without a gradient.
    norm = {"norm": "batch"} if "norm" in inspect.signature(cls).parameters else {}
    backbone, loader = backbone_and_loader(name, **norm)
    batch = loader[0][0]
    backbone(batch)
    if layers is not None:
        # Those of one name: other parts of the backbone are frozen as a whole.
        layers = enable_lora(backbone_and_loader(name, **norm)[0])[0].split("/")[-1]
    enable_lora(backbone, layers=layers)
    old = values_of(backbone)
    backbone(batch, training=True)
    moved = [
        path
        for path, value in values_of(backbone).items()
        if "seed_generator" not in path and not np.array_equal(value, old[path])
    ]
    assert not moved


def test_layers_are_chosen_by_their_path():
    task = task_of("graphormer")
    paths = enable_lora(task.backbone, layers="query|value")
    assert sorted(p.rpartition("/")[2] for p in paths) == ["query", "value"]
    assert len(task.backbone.trainable_variables) == 4
    with pytest.raises(ValueError, match="without LoRA. Received:.*query"):
        enable_lora(task, layers="inner")
    with pytest.raises(ValueError, match="`layers` to match one of.*layers='nothing'"):
        enable_lora(task_of(), layers="nothing")
    with pytest.raises(ValueError, match="`rank` to be at least 1"):
        enable_lora(task_of(), rank=0)


@pytest.mark.parametrize("readout", ["mean", GRUReadout(8, 1)])
def test_a_new_head_on_a_frozen_backbone(readout, tmp_path):
    graphs = graphs_of()
    task_of("gat").save_to_preset(tmp_path / "old")
    loaded = models.GraphClassifier.from_preset(tmp_path / "old")
    task = models.GraphClassifier(
        loaded.backbone, 3, loaded.preprocessor, readout=readout
    )
    task.backbone.trainable = False
    task.compile(keras.optimizers.Adam(0.03))
    old = values_of(task)
    losses = task.fit(graphs_of(classes=3), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    for path, value in values_of(task.backbone).items():
        np.testing.assert_array_equal(value, old[path])
    assert task.predict(graphs)[0].shape == (3,)
    # All of it, slowly.
    task.backbone.trainable = True
    task.compile(keras.optimizers.Adam(0.001))
    task.fit(graphs_of(classes=3), epochs=1, verbose=0)
    changed = values_of(task.backbone)
    assert any(not np.array_equal(v, old[p]) for p, v in changed.items())
