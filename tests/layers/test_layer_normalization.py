"""`LayerNormalization`: as Keras' layer, in values, gradients and arguments."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_bandgnn as kb
from keras_bandgnn import ops as graph_ops

ROWS = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")


def both(**options):
    found = [
        kind(**options)
        for kind in (keras.layers.LayerNormalization, kb.layers.LayerNormalization)
    ]
    for layer in found:
        layer.build(ROWS.shape)
        for number, weight in enumerate(layer.weights):
            values = np.random.default_rng(number + 1).normal(size=weight.shape)
            weight.assign(values)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epsilon": 1e-5},
        {"axis": 2},
        {"axis": (1, 2)},
        {"center": False},
        {"scale": False},
        {"dtype": "bfloat16"},
        {"dtype": "mixed_bfloat16"},
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_keras(options):
    def results(layer):
        def value(x):
            return ops.reshape(ops.sum(ops.sin(ops.cast(layer(x), "float32"))), (1,))

        rows = ops.convert_to_tensor(ROWS)
        out = layer(rows)
        assert keras.backend.standardize_dtype(out.dtype) == layer.compute_dtype
        return ops.cast(out, "float32"), graph_ops.value_and_gradient(value, rows)[1]

    expected, found = (
        [ops.convert_to_numpy(each) for each in results(layer)]
        for layer in both(**options)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_gradients_of_the_weights_are_those_of_keras():
    def weights_after_a_step(layer):
        model = keras.Sequential([layer, keras.layers.Flatten()])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.train_on_batch(ROWS, np.ones((2, 42), "float32"))
        return [ops.convert_to_numpy(w) for w in layer.weights]

    expected, found = map(weights_after_a_step, both(epsilon=1e-5))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_values_are_those_of_numpy():
    layer = kb.layers.LayerNormalization(epsilon=1e-5)
    away = ROWS - ROWS.mean(axis=-1, keepdims=True)
    expected = away / np.sqrt((away**2).mean(axis=-1, keepdims=True) + 1e-5)
    found = ops.convert_to_numpy(layer(ROWS))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="others have Keras' precision"
)
def test_double_precision_is_kept():
    layer = kb.layers.LayerNormalization(epsilon=1e-9, dtype="float64")
    rows = 1e3 + np.random.default_rng(3).normal(size=(4, 16))
    away = rows - rows.mean(axis=-1, keepdims=True)
    expected = away / np.sqrt((away**2).mean(axis=-1, keepdims=True) + 1e-9)
    found = ops.convert_to_numpy(layer(ops.convert_to_tensor(rows, "float64")))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_rows_without_channels():
    assert kb.layers.LayerNormalization()(np.ones((3, 0), "float32")).shape == (3, 0)


def test_integers_are_normalised_as_numbers():
    found = ops.convert_to_numpy(kb.layers.LayerNormalization()(np.arange(4)[None]))
    np.testing.assert_allclose(found[0], [-1.341, -0.447, 0.447, 1.341], atol=2e-3)
