import keras
import numpy as np
import pytest
from keras import ops

from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.ops.backend import current as backend


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(100_003,), (3, 211, 160)])
def test_a_share_of_the_entries_stays(rate, shape):
    layer = Dropout(rate, seed=1)
    out = ops.convert_to_numpy(layer(ops.ones(shape), training=True))
    np.testing.assert_allclose(out[out > 0], 1 / (1 - rate), rtol=1e-6)
    deviation = np.sqrt(rate * (1 - rate) / out.size)
    assert abs((out == 0).mean() - rate) < 5 * deviation
    # Of the neighbours of a removed entry as many are removed.
    flat = out.reshape(-1) == 0
    for step in (1, 2, 3, 4, 8, 160):
        both = (flat[step:] & flat[:-step]).mean()
        assert abs(both - rate**2) < 5 * np.sqrt(rate**2 * (1 - rate**2) / out.size)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(ops.ones(9))), np.ones(9))


def test_each_call_draws_another_mask():
    keras.utils.set_random_seed(0)
    layer, ones = Dropout(0.5), ops.ones((4096,))
    masks = [ops.convert_to_numpy(layer(ones, training=True)) > 0 for _ in range(8)]
    for number, one in enumerate(masks):
        for other in masks[:number]:
            assert abs((one == other).mean() - 0.5) < 5 / np.sqrt(4 * 4096)


def test_the_same_seed_gives_the_same_mask():
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        out = Dropout(0.3, seed=7)(ops.ones((64, 8)), training=True)
        found.append(ops.convert_to_numpy(out))
    np.testing.assert_array_equal(*found)


def test_the_gradient_has_the_mask_of_the_values():
    layer, ones = Dropout(0.4, seed=3), ops.ones((50, 8))

    def function(x):
        return ops.sum(layer(x, training=True) * x, axis=-1)

    # The derivative of m x^2 at 1 is 2 m.
    values, gradient = backend.value_and_gradient(function, ones)
    gradient = ops.convert_to_numpy(gradient)
    np.testing.assert_allclose(gradient.sum(-1), 2 * ops.convert_to_numpy(values), 1e-5)
    assert set(np.round(gradient.reshape(-1), 4)) == {0.0, np.float32(3.3333)}


def test_dtypes_are_kept():
    layer = Dropout(0.5, dtype="mixed_bfloat16")
    out = layer(ops.ones((8, 4), "bfloat16"), training=True)
    assert keras.backend.standardize_dtype(out.dtype) == "bfloat16"


def test_masks_are_drawn_in_an_uncompiled_fit():
    inputs = keras.Input((8,))
    dense = keras.layers.Dense(8, kernel_initializer="identity")
    model = keras.Model(inputs, Dropout(0.5)(dense(inputs)))
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
    data = np.ones((4, 8), "float32")
    loss = model.fit(data, data, batch_size=4, verbose=0).history["loss"]
    np.testing.assert_allclose(loss, [1.0])  # entries are 0 or 2


@pytest.mark.parametrize("jit", [False, True])
def test_a_rate_may_be_given_to_a_layer_without_one(jit):
    layer = Dropout(0.0, seed=1)
    inputs = keras.Input((512,))
    dense = keras.layers.Dense(512, kernel_initializer="identity")
    model = keras.Model(inputs, layer(dense(inputs)))
    model.compile(
        keras.optimizers.SGD(0.0),
        "mse",
        jit_compile=jit and keras.backend.backend() != "torch",
    )
    ones = np.ones((2, 512), "float32")
    assert model.train_on_batch(ones, ones) == 0
    layer.rate = 0.5
    model.compile(
        keras.optimizers.SGD(0.0),
        "mse",
        jit_compile=jit and keras.backend.backend() != "torch",
    )
    assert model.train_on_batch(ones, ones) > 0.5
    once, again = (layer(ones, training=True) for _ in range(2))
    assert 0.3 < ops.mean(ops.cast(once == 0, "float32")) < 0.7
    assert not ops.all(once == again)
    assert layer.get_config()["rate"] == 0.5
    for wrong in (-0.1, 1.5, float("nan"), "much"):
        with pytest.raises(ValueError, match="`rate`"):
            layer.rate = wrong
