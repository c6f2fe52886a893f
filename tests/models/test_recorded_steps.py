"""Steps of training and prediction on torch that are recorded and repeated."""

import functools

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
    "GTBackbone",
)


def records_of(task, kind="train"):
    """The records of a kind of step of a task."""
    records = compat.model_cache(task).get("records", {}).items()
    shapes = [
        each
        for key, value in records
        if key[0] == kind
        for each in value.shapes.values()
    ]
    return [each.record for each in shapes if each.record is not None]


TASKS = ("NodeSelector", "GraphClassifier, several targets", "ForceRegressor")


def trained(
    monkeypatch,
    make,
    data,
    worth,
    change=None,
    optimizer=keras.optimizers.Adam,
    **options,
):
    """Losses and weights after steps that are recorded after `worth` of them."""
    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", worth)
    keras.utils.set_random_seed(1)
    task = make()
    for number, weight in enumerate(task.weights):
        if "seed" not in weight.path and "float" in str(weight.dtype):
            draw = np.random.default_rng(number).uniform(0.1, 0.5, weight.shape)
            weight.assign(draw)
    task.compile(optimizer(1e-3), **options)
    loader = task.loader(data)
    losses = []
    for step in range(4):
        if change is not None and step == 2:
            change(task)
        # Dropout draws from it.
        kb.ops.seed_global(step)
        losses.append(task.train_on_batch(*loader[step % len(loader)]))
    weights = [keras.ops.convert_to_numpy(w) for w in task.weights]
    return losses, weights, records_of(task)


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


def predicted(monkeypatch, make, data, worth, change=None):
    """Outputs of four predictions, recorded after `worth` of them, and the records."""
    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", worth)
    keras.utils.set_random_seed(1)
    task = make()
    loader = task.loader(data, training=False)
    outputs = []
    for step in range(4):
        if change is not None and step == 2:
            change(task)
        outputs.append(task.predict_on_batch(loader[step % len(loader)][0]))
    return outputs, records_of(task, "predict")


@pytest.mark.parametrize("name", sorted({**task_samples.TASKS}))
def test_recorded_predictions_are_those_of_keras(monkeypatch, name):
    def make():
        return task_samples.task_of(name)

    data = task_samples.data_of(name, 6)
    plain, none = predicted(monkeypatch, make, data, 100)
    found, records = predicted(monkeypatch, make, data, 0)
    assert not none and records
    for one, other in zip(found, plain, strict=True):
        for value, expected in zip(
            keras.tree.flatten(one), keras.tree.flatten(other), strict=True
        ):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("few", (True, False))
def test_groups_are_recorded(monkeypatch, few):
    from keras_bandgnn.ops.backend import torch

    if torch.has_accelerator():
        pytest.skip("GPUs multiply all groups at once")
    monkeypatch.setattr(torch, "_FEW_WEIGHTS", 1 << 20 if few else 0)
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(3):
        senders, receivers, types = (rng.integers(0, n, 60) for n in (12, 12, 3))
        node = {"kind": rng.integers(0, 4, 12)}
        graphs.append(kb.Graph(12, senders, receivers, types, node, label=1.0))

    def make():
        preprocessor = kb.preprocessing.GraphPreprocessor(
            [],
            kb.preprocessing.StaticBatcher(3),
            kb.primitives.Plan(rest=kb.primitives.Grouped(4)),
        )
        backbone = kb.models.GGNNBackbone({"kind": 4}, 8, 2, num_edge_types=3)
        return kb.models.GraphRegressor(backbone, preprocessor=preprocessor)

    plain, none = predicted(monkeypatch, make, graphs, 100)
    found, records = predicted(monkeypatch, make, graphs, 0)
    assert not none and records
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)
    assert_same(monkeypatch, make, graphs)


def _other_weights(task):
    for weight in task.trainable_weights:
        weight.assign(0.5 * keras.ops.convert_to_numpy(weight))


def test_predictions_see_changes_of_a_model(monkeypatch):
    data = task_samples.data_of("GraphRegressor", 6)
    for change in (_other_weights, _other_activation, _other_precision):
        plain, _ = predicted(monkeypatch, _gine, data, 100, change)
        found, _ = predicted(monkeypatch, _gine, data, 0, change)
        assert not np.allclose(found[0], found[2], atol=1e-6)
        np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


def test_recorded_predictions_of_foreign_code_are_not_taken(monkeypatch):
    data = task_samples.data_of("GraphRegressor", 6)
    found, records = predicted(monkeypatch, _with_call, data, 0)
    assert not records
    assert not np.allclose(found[0], found[1])


def _gine(**options):
    backbone = kb.models.GINEBackbone(task_samples.INPUTS, 8, 2, **options)
    return kb.models.GraphRegressor(backbone, num_targets=2)


def _other_rate(task):
    task.backbone.dropout_layer.rate = 0.1


def _freeze(task):
    task.backbone.messages[0].trainable = False


def _other_activation(task):
    for layer in compat.sublayers(task):
        if getattr(layer, "activation", None) is keras.activations.relu:
            layer.activation = keras.activations.tanh


def _other_momentum(task):
    for layer in compat.sublayers(task):
        if hasattr(layer, "momentum"):
            layer.momentum = 0.5


def _other_regularizer(task):
    for weight in task.trainable_weights:
        weight.regularizer = keras.regularizers.L2(1.0)


def _other_precision(task):
    for layer in compat.sublayers(task.backbone):
        layer.dtype_policy = keras.DTypePolicy("mixed_bfloat16")


def _without_gradients(task):
    for value in compat.held_values(task.backbone.trainable_variables)[:1]:
        value.requires_grad_(False)


def _other_optimizer(task):
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(task.trainable_variables)
    task.optimizer = optimizer


def _other_scale(task):
    task.optimizer.loss_scale_factor = 8.0


CHANGES = [
    _other_rate,
    _freeze,
    _other_activation,
    _other_momentum,
    _other_regularizer,
    _other_precision,
    _other_optimizer,
    _other_scale,
]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_model_are_seen(monkeypatch, change):
    data = task_samples.data_of("GraphRegressor", 6)
    assert_same(monkeypatch, lambda: _gine(dropout=0.5), data, change)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_weights_without_gradients_are_seen(monkeypatch):
    data = task_samples.data_of("GraphRegressor", 6)
    assert_same(monkeypatch, _gine, data, _without_gradients, recorded=False)


def test_threads_that_predict_at_once_are_recorded(monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", 3)
    data, task = task_samples.data_of("GraphRegressor", 6), _gine()
    expected = task.predict(data)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: task.predict(data), range(40)))
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)
    assert records_of(task, "predict")


def test_factors_of_regularizers_are_seen(monkeypatch):
    from keras_bandgnn.ops.backend import torch_steps

    losses = []
    for worth in (100, 0):
        monkeypatch.setattr(torch_steps, "_WORTH", worth)
        keras.utils.set_random_seed(1)
        task, data = _gine(), task_samples.data_of("GraphRegressor", 6)
        task.trainable_weights[-1].regularizer = keras.regularizers.L2(0.1)
        task.trainable_weights[-1].assign_add([1.0] * 2)
        task.compile(keras.optimizers.SGD(1e-3))
        task.fit(data, epochs=2, verbose=0)
        task.trainable_weights[-1].regularizer.l2 = 5.0
        losses.append(task.fit(data, epochs=1, verbose=0).history["loss"][0])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0] > 5


def test_what_fit_does_in_between_keeps_a_record(monkeypatch):
    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", 0)
    data, task = task_samples.data_of("GraphRegressor", 6), _gine(dropout=0.5)

    task.fit(data, epochs=2, verbose=0)
    first = records_of(task)
    assert first
    task.evaluate(data, verbose=0)
    task.predict(data)
    # `fit` says in each layer that it trains, `train_on_batch` does not.
    task.train_on_batch(*task.loader(data)[0])
    task.fit(data, validation_data=data, epochs=2, verbose=0)
    assert all(now is old for now, old in zip(records_of(task), first, strict=True))


def torch_autocast():
    import torch

    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_autocast_is_seen(monkeypatch):
    from keras_bandgnn.ops.backend import torch_steps

    data = task_samples.data_of("GraphRegressor", 6)
    task = _gine()

    def outputs():
        plain = np.asarray(task.predict(data))
        with torch_autocast():
            return plain, np.asarray(task.predict(data))

    monkeypatch.setattr(torch_steps, "_WORTH", 100)
    expected = outputs()
    assert np.abs(expected[0] - expected[1]).max() > 0
    monkeypatch.setattr(torch_steps, "_WORTH", 0)
    for _ in range(3):
        for found, given in zip(outputs(), expected, strict=True):
            np.testing.assert_allclose(found, given, rtol=1e-5, atol=1e-6)


def test_steps_are_eager_in_modes_of_torch_and_keras(monkeypatch):
    import torch

    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", 0)
    data, task = task_samples.data_of("GraphRegressor", 6), _gine()

    replays, replay = [], torch_steps._Record.__call__

    def counted(self, data):
        replays.append(self)
        return replay(self, data)

    monkeypatch.setattr(torch_steps._Record, "__call__", counted)

    def recorded():
        replays.clear()
        task.fit(data, epochs=3, verbose=0)
        return bool(replays)

    assert recorded()
    first = records_of(task)
    task.run_eagerly = True
    assert not recorded()
    task.run_eagerly = False
    assert recorded()
    with torch.autograd.set_detect_anomaly(True):
        assert not recorded()
    # The record outlives them.
    assert recorded() and records_of(task) == first
    value = task.trainable_variables[0].value
    hook = value.register_hook(lambda gradient: gradient * 0)
    before = keras.ops.convert_to_numpy(value).copy()
    task.compile(keras.optimizers.SGD(0.1))
    assert not recorded()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(value), before)
    hook.remove()
    task.compile(keras.optimizers.SGD(0.1))
    assert recorded()


def test_weights_of_another_precision_are_seen(monkeypatch):
    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", 0)
    data, task = task_samples.data_of("GraphRegressor", 6), _gine()
    expected = [task.predict(data) for _ in range(3)][-1]
    task.double()
    np.testing.assert_allclose(task.predict(data), expected, rtol=1e-4, atol=1e-5)


def test_gradients_stand_in_the_variables(monkeypatch):
    from keras_bandgnn.ops.backend import torch_steps

    def gradients(worth):
        monkeypatch.setattr(torch_steps, "_WORTH", worth)
        keras.utils.set_random_seed(1)
        task = _gine()
        data = task_samples.data_of("GraphRegressor", 6)
        task.compile(keras.optimizers.SGD(0.01))
        task.fit(data, epochs=3, verbose=0)
        values = compat.held_values(task.trainable_variables)
        return [keras.ops.convert_to_numpy(value.grad) for value in values]

    for found, expected in zip(gradients(0), gradients(100), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_code_of_others_is_not_recorded(monkeypatch):
    calls = []

    def loss(y, outputs):
        calls.append(1)
        return keras.ops.mean(keras.ops.square(y - outputs), axis=-1)

    data = task_samples.data_of("GraphRegressor", 6)
    assert_same(monkeypatch, _gine, data, recorded=False, loss=loss)
    assert len(calls) >= 8


class _Growing:
    """Counts its calls; a record would repeat the first one."""

    calls = 0

    def grow(self):
        self.calls += 1
        return float(self.calls)


class _GrowingLoss(_Growing):
    __name__ = "growing"

    def __call__(self, y, outputs):
        return self.grow() * keras.ops.mean(keras.ops.abs(y - outputs), axis=-1)


class _GrowingPenalty(_Growing, keras.regularizers.Regularizer):
    def __call__(self, x):
        return self.grow() * keras.ops.sum(keras.ops.square(x))


class _GrowingScale(_Growing, keras.optimizers.Adam):
    def scale_loss(self, loss):
        return self.grow() * loss


def _with_penalty():
    task = _gine()
    task.trainable_weights[0].regularizer = _GrowingPenalty()
    return task


def _with_call():
    task, growing = _gine(), _Growing()
    layer = task.backbone.messages[0]
    call = layer.call

    def growing_call(*args, **kwargs):
        return growing.grow() * call(*args, **kwargs)

    layer.call = growing_call
    return task


def _wrapped(optimizer):
    return lambda rate: keras.optimizers.LossScaleOptimizer(optimizer(rate))


FOREIGN = {
    "object": lambda: (_gine, {"loss": _GrowingLoss()}),
    "partial": lambda: (
        _gine,
        {"loss": functools.partial(lambda f, y, p: f(y, p), _GrowingLoss())},
    ),
    "cached": lambda: (_gine, {"loss": functools.cache(_GrowingLoss())}),
    "metric": lambda: (
        _gine,
        {"metrics": [keras.metrics.MeanMetricWrapper(_GrowingLoss(), name="g")]},
    ),
    "regularizer": lambda: (_with_penalty, {}),
    "call": lambda: (_with_call, {}),
    "optimizer": lambda: (_gine, {"optimizer": _GrowingScale}),
    "wrapped optimizer": lambda: (_gine, {"optimizer": _wrapped(_GrowingScale)}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_code_of_others_is_found_wherever_it_is(monkeypatch, kind):
    data = task_samples.data_of("GraphRegressor", 6)
    results = []
    for worth in (100, 0):
        make, options = FOREIGN[kind]()
        results.append(trained(monkeypatch, make, data, worth, **options))
    (plain, _, _), (found, _, records) = results
    assert not records
    np.testing.assert_allclose(found, plain, rtol=1e-5)


def test_operations_whose_values_decide_on_shapes_are_not_recorded():
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_bandgnn.ops.backend.torch_programs import NotRecordable, check_shapes

    check_shapes(make_fx(lambda x: torch.cumsum(x, 0))(torch.ones(3)).graph)
    recorded = make_fx(lambda x: x[torch.nonzero(x)])(torch.ones(3))
    with pytest.raises(NotRecordable, match="nonzero"):
        check_shapes(recorded.graph)


def test_a_record_holds_for_batches_with_other_runs_of_groups():
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    from keras_bandgnn.ops.backend import torch_edges

    x = torch.randn(6, 4)
    kernel = torch.randn(3, 4, 5, requires_grad=True)
    batches = [torch.tensor(kinds) for kinds in ([0, 0, 1], [1, 0, 2])]

    def step(kinds):
        out = torch_edges.grouped_matmul(x, kernel, kinds, None, None, None)
        return out, torch.autograd.grad(out.square().sum(), kernel)[0]

    recorded = make_fx(step)(batches[0])
    for kinds in batches:
        with torch.no_grad():
            out, slope = recorded(kinds)
        expected = torch.bmm(x.reshape(3, 2, 4), kernel[kinds]).flatten(0, 1)
        torch.testing.assert_close(out, expected.detach())
        (expected,) = torch.autograd.grad(expected.square().sum(), kernel)
        torch.testing.assert_close(slope, expected)


def test_steps_that_compute_again_are_not_recorded(monkeypatch):
    data = task_samples.data_of("GraphRegressor", 6)

    def make():
        return _gine(dropout=0.5, remat=True)

    assert_same(monkeypatch, make, data, recorded=False)


def test_steps_that_branch_by_their_batch_are_recorded_by_branch(monkeypatch):
    from keras_bandgnn.ops.backend import torch_steps

    data = task_samples.data_of("GraphRegressor", 6)

    def train(worth):
        monkeypatch.setattr(torch_steps, "_WORTH", worth)
        keras.utils.set_random_seed(1)
        backbone = kb.models.GPSBackbone(
            task_samples.INPUTS, 8, 2, num_heads=2, attention_dropout=0.3
        )
        task = kb.models.GraphRegressor(backbone, num_targets=2)
        task.compile(keras.optimizers.Adam(1e-3))
        loader = task.loader(data)
        (x, *rest) = loader[0]
        # As for `fit`, which takes that of the largest graph.
        largest = int(x["graph"]["n_node"].max())
        for layer in backbone.attentions:
            layer.usual_length = largest
        counts = x["graph"]["n_node"].copy()
        counts[0, -1] = largest + 1
        other = {**x, "graph": {**x["graph"], "n_node": counts}}
        losses, branches = [], []
        for number, turn in enumerate((x, x, x, other, x, other, other, x)):
            kb.ops.seed_global(number)
            losses.append(task.train_on_batch(turn, *rest))
            branches.append([record.branches for record in records_of(task)])
        return losses, task.weights, branches

    plain, expected, none = train(100)
    losses, weights, branches = train(2)
    assert not any(none)
    # One record at a time, that of the branch that most batches take.
    own, others = [[True] * 2], [[False] * 2]
    assert branches == [[], [], own, own, own, [], others, others]
    np.testing.assert_allclose(losses, plain, rtol=1e-5, atol=1e-6)
    for weight, value in zip(weights, expected, strict=True):
        weight, value = map(keras.ops.convert_to_numpy, (weight, value))
        np.testing.assert_allclose(weight, value, rtol=1e-5, atol=2e-6)
