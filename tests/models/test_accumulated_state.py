"""What accumulates over steps is float32, whatever the policy and the norm."""

import keras
import numpy as np
import pytest
from docstrings import sample
from registered import BACKBONES, registered

import keras_bandgnn as kb
from keras_bandgnn.models import MessagePassingBackbone
from keras_bandgnn.models.message_passing.message_passing_backbone import NORMS

pytestmark = pytest.mark.every_backend

# Frames whose layers have no norm.
WITHOUT_NORM = {"LightGCNBackbone"}
POLICIES = ("mixed_bfloat16", "mixed_float16")


def cases():
    for name in BACKBONES:
        cls = getattr(kb.models, name)
        framed = issubclass(cls, MessagePassingBackbone) and name not in WITHOUT_NORM
        for norm in NORMS if framed else (None,):
            yield name, norm


@pytest.fixture(params=POLICIES)
def policy(request):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


def is_full(variable) -> bool:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return dtype == "float32" or "int" in dtype


@pytest.mark.parametrize("name, norm", list(cases()))
def test_variables_of_tasks(name, norm, policy):
    options = {} if norm is None else {"norm": norm}
    backbone, _ = BACKBONES[name](**options)
    task = kb.models.GraphRegressor(backbone)
    task.compile(keras.optimizers.Adam(1e-3, use_ema=True), metrics=["mae"])
    task.optimizer.build(task.trainable_variables)
    variables = [*task.variables, *task.optimizer.variables, *task.metrics_variables]
    assert [v.path for v in variables if not is_full(v)] == []


@pytest.mark.parametrize("name", sorted(registered(keras.metrics.Metric)))
def test_variables_of_metrics(name, policy):
    metric = sample(registered(keras.metrics.Metric)[name])
    assert all(map(is_full, metric.variables))


@pytest.mark.parametrize("dtype", POLICIES)
def test_moving_averages_are_not_rounded(dtype):
    # In bfloat16 a sum of ones stops at 256, and 0.9 of 300 keeps two digits.
    rng = np.random.default_rng(0)
    graphs = [
        kb.Graph(3000, [], [], node={"h": 300 + rng.integers(-9, 9, (3000, 2))})
        for _ in range(30)
    ]
    layer = kb.layers.MaskedBatchNormalization(dtype=dtype)
    means, spreads = np.zeros(2), np.ones(2)
    for graph in graphs:
        (batch,) = kb.preprocessing.GraphLoader([graph])[0]
        rows = keras.ops.cast(batch["node"]["h"], layer.compute_dtype)
        layer(rows, batch, training=True)
        real = keras.ops.convert_to_numpy(keras.ops.cast(rows, "float32"))
        real = np.float64(real[0, :3000])
        means = 0.9 * means + 0.1 * real.mean(axis=0)
        spreads = 0.9 * spreads + 0.1 * real.var(axis=0, ddof=1)
    received = [
        keras.ops.convert_to_numpy(each)
        for each in (layer.moving_mean, layer.moving_variance)
    ]
    np.testing.assert_allclose(received[0], means, rtol=1e-5)
    np.testing.assert_allclose(received[1], spreads, rtol=1e-3)
