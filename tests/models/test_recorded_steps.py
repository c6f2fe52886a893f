"""Training steps on torch that are recorded and repeated."""

import keras
import numpy as np
import pytest
import task_samples

import keras_bandgnn as kb
from keras_bandgnn import compat

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="torch alone records steps"
)
BACKBONES = (
    "GINEBackbone",
    "GATv2Backbone",
    "GCNBackbone",
    "GatedGCNBackbone",
    "SchNetBackbone",
)
TASKS = ("NodeSelector", "GraphClassifier, several targets", "ForceRegressor")


def trained(monkeypatch, make, data, worth, change=None, **options):
    """Losses and weights after steps that are recorded after `worth` of them."""
    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", worth)
    keras.utils.set_random_seed(1)
    task = make()
    for number, weight in enumerate(task.weights):
        if "seed" not in weight.path and "float" in str(weight.dtype):
            draw = np.random.default_rng(number).uniform(0.1, 0.5, weight.shape)
            weight.assign(draw)
    task.compile(keras.optimizers.Adam(1e-3), **options)
    loader = task.loader(data)
    losses = []
    for step in range(4):
        if change is not None and step == 2:
            change(task)
        # Dropout draws from it.
        kb.ops.seed_global(step)
        losses.append(task.train_on_batch(*loader[step % len(loader)]))
    kept = compat.derived(task).get("steps", {})
    records = [record for record, _ in kept.values() if record]
    weights = [keras.ops.convert_to_numpy(w) for w in task.weights]
    return losses, weights, records


def assert_same(monkeypatch, make, data, change=None, recorded=True, **options):
    """Steps are recorded, and give what steps of Keras do."""
    plain, given, none = trained(monkeypatch, make, data, 100, change, **options)
    found, weights, records = trained(monkeypatch, make, data, 0, change, **options)
    assert not none and bool(records) == recorded
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)
    for weight, expected in zip(weights, given, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", BACKBONES)
def test_recorded_steps_of_backbones_are_those_of_keras(monkeypatch, name):
    def make():
        return task_samples.task_of("GraphRegressor", name)

    assert_same(monkeypatch, make, task_samples.data_of("GraphRegressor", 6))


@pytest.mark.parametrize("name", TASKS)
def test_recorded_steps_of_tasks_are_those_of_keras(monkeypatch, name):
    def make():
        return task_samples.task_of(name)

    assert_same(monkeypatch, make, task_samples.data_of(name, 6))


def _gine(**options):
    backbone = kb.models.GINEBackbone(task_samples.INPUTS, 8, 2, **options)
    return kb.models.GraphRegressor(backbone, num_targets=2)


def _other_rate(task):
    task.backbone.dropout_layer.rate = 0.1


def _freeze(task):
    task.backbone.messages[0].trainable = False


@pytest.mark.parametrize("change", [_other_rate, _freeze])
def test_changes_of_a_model_are_seen(monkeypatch, change):
    data = task_samples.data_of("GraphRegressor", 6)
    assert_same(monkeypatch, lambda: _gine(dropout=0.5), data, change)


def test_code_of_others_is_not_recorded(monkeypatch):
    calls = []

    def loss(y, outputs):
        calls.append(1)
        return keras.ops.mean(keras.ops.square(y - outputs), axis=-1)

    data = task_samples.data_of("GraphRegressor", 6)
    assert_same(monkeypatch, _gine, data, recorded=False, loss=loss)
    assert len(calls) >= 8


def test_operations_whose_values_decide_on_shapes_are_not_recorded():
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_bandgnn.ops.backend.torch_steps import NotRecordable, check_shapes

    check_shapes(make_fx(lambda x: torch.cumsum(x, 0))(torch.ones(3)).graph)
    recorded = make_fx(lambda x: x[torch.nonzero(x)])(torch.ones(3))
    with pytest.raises(NotRecordable, match="nonzero"):
        check_shapes(recorded.graph)


def test_steps_that_compute_again_are_not_recorded(monkeypatch):
    data = task_samples.data_of("GraphRegressor", 6)

    def make():
        return _gine(dropout=0.5, remat=True)

    assert_same(monkeypatch, make, data, recorded=False)


def test_steps_that_branch_by_their_batch_are_not_recorded(monkeypatch):
    data = task_samples.data_of("GraphRegressor", 6)

    def make():
        # Graphs are larger than the largest that it knows.
        backbone = kb.models.GPSBackbone(
            task_samples.INPUTS, 8, 2, num_heads=2, usual_length=2
        )
        return kb.models.GraphRegressor(backbone, num_targets=2)

    assert_same(monkeypatch, make, data, recorded=False)
