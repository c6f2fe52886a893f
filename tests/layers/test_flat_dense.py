import keras
import numpy as np
import pytest

from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.ops.batched import flat_matmul
from keras_bandgnn.testing import run_layer_test


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


@pytest.mark.parametrize("shape", [(4, 3), (1, 4, 3), (2, 4, 5, 3), (2, 0, 3)])
def test_rows_under_any_axes(shape):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype("float32")
    kernel = rng.normal(size=(3, 2)).astype("float32")
    np.testing.assert_allclose(numpy(flat_matmul(x, kernel)), x @ kernel, atol=1e-6)
    layer = FlatDense(2, "relu")
    layer.build(shape)
    layer.set_weights([kernel, np.array([0.5, -0.5])])
    want = np.maximum(x @ kernel + [0.5, -0.5], 0)
    np.testing.assert_allclose(numpy(layer(x)), want, atol=1e-6)


def test_it_is_a_layer():
    run_layer_test(FlatDense(4, use_bias=False), np.ones((2, 5, 3), "float32"))
    symbolic = FlatDense(4)(keras.KerasTensor((None, None, 3)))
    assert symbolic.shape == (None, None, 4)
