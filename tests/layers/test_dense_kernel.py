import keras
import numpy as np
import pytest

from keras_bandgnn.layers.dense import FlatDense, dense_kernel


def test_kernel_after_rounding_to_eight_bits():
    layer = FlatDense(3)
    layer.build((None, 4))
    kernel = np.asarray(keras.ops.convert_to_numpy(dense_kernel(layer)))
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    before = np.asarray(keras.ops.convert_to_numpy(layer(x)))
    np.testing.assert_allclose(before, x @ kernel, atol=1e-5)
    layer.quantize("int8")
    found = np.asarray(keras.ops.convert_to_numpy(dense_kernel(layer)))
    step = np.abs(kernel).max(axis=0) / 127
    assert (np.abs(found - kernel) <= 0.51 * step).all() and (found != kernel).any()
    after = np.asarray(keras.ops.convert_to_numpy(layer(x)))
    np.testing.assert_allclose(after, before, atol=0.1)


def test_other_types_are_refused():
    layer = FlatDense(4)
    layer.build((None, 4))
    layer.quantize("float8")
    with pytest.raises(ValueError, match="in float32 or int8. Received: 'float8'"):
        dense_kernel(layer)
