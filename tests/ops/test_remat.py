import ast
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_bandgnn as kb
from keras_bandgnn.ops import remat, value_and_gradient

STEPS = 4


@keras.saving.register_keras_serializable(package="tests")
class Recurrent(keras.layers.Layer):
    """A few steps of one dense layer with dropout."""

    def __init__(self, remat, rate=0.5, per_step=False, seed=7, **kwargs):
        super().__init__(**kwargs)
        self.remat, self.per_step = remat, per_step
        self.dense = keras.layers.Dense(6, activation="tanh")
        self.drop = keras.layers.Dropout(rate, seed=seed)

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, x, training=False):
        def step(states):
            return states + self.drop(self.dense(states), training=training)

        layers = [self.dense, self.drop]
        if self.per_step:
            for _ in range(STEPS):
                x = remat.checkpoint(step, x, layers)
            return x
        return remat.repeat(step, x, STEPS, layers, self.remat)


def train(*args, batches=3):
    """Losses, weights and seeds after a few training steps."""
    keras.utils.set_random_seed(1)
    layer = Recurrent(*args)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 6)).astype("float32")
    inputs = keras.Input((6,))
    layer.build((None, 6))
    kernel = rng.standard_normal((6, 6)).astype("float32")
    layer.dense.set_weights([kernel, np.zeros(6, "float32")])
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    losses = [float(model.train_on_batch(x, 0 * x)) for _ in range(batches)]
    seeds = [ops.convert_to_numpy(v) for v in layer.drop.non_trainable_variables]
    return losses, layer.dense.get_weights(), seeds


@pytest.mark.parametrize(("rate", "seed"), [(0.0, 7), (0.5, 7), (0.5, None)])
@pytest.mark.parametrize("per_step", [False, True])
def test_remat_trains_the_same_function(rate, seed, per_step):
    plain = train(False, rate, False, seed)
    saved = train(True, rate, per_step, seed)
    np.testing.assert_allclose(saved[0], plain[0], rtol=1e-5)
    for a, b in zip(saved[1], plain[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    # The masks of the next batch depend on them.
    for a, b in zip(saved[2], plain[2], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("count", [5, 12, 13])
def test_rows_in_chunks_have_the_same_gradients(monkeypatch, count):
    monkeypatch.setattr(remat, "_ROWS", 4)
    rng = np.random.default_rng(0)
    x, y, kernel = (
        rng.normal(size=shape).astype("float32")
        for shape in ((1, count, 3), (1, count, 2), (3, 2))
    )
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    dense.set_weights([kernel, np.ones(2, "float32")])

    def loss(within):
        def step(x):
            factor = ops.convert_to_tensor(y)

            def function(x, y):
                return ops.tanh(dense(x)) * y, ops.exp(x)

            out, exp = remat.by_rows(function, x, factor)
            return ops.concatenate([out, exp], axis=-1)

        def value(x):
            out = remat.checkpoint(step, x, [dense]) if within else step(x)
            return ops.sum(ops.square(out[..., 0] - out[..., 3]) * out[..., 1])

        return value_and_gradient(value, ops.convert_to_tensor(x))

    for one, other in zip(loss(True), loss(False), strict=True):
        one, other = map(ops.convert_to_numpy, (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_masks_differ_between_steps():
    layer = Recurrent(True)
    layer.build((None, 6))
    # Each step adds 1, doubled where it is kept: with one mask for all steps every
    # entry were 0 or 8.
    layer.dense.set_weights([np.zeros((6, 6), "float32"), np.full(6, 20, "float32")])
    out = ops.convert_to_numpy(layer(np.zeros((50, 6), "float32"), training=True))
    assert set(np.unique(np.round(out, 3))) == {0, 2, 4, 6, 8}


def test_a_failing_step_leaves_the_seeds_alone():
    layer = Recurrent(True)
    layer.build((None, 6))
    before = layer.drop.seed_generator.state.numpy()

    def step(states):
        layer.drop(states, training=True)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        remat.repeat(step, ops.ones((2, 6)), 3, [layer.drop])
    np.testing.assert_array_equal(layer.drop.seed_generator.state.numpy(), before)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="looks at JAX programs")
def test_jax_keeps_one_state_per_step():
    import jax

    def saved(use):
        def loss(x, w):
            return remat.repeat(lambda s: ops.tanh(s @ w) * s, x, STEPS, (), use).sum()

        shape = jax.ShapeDtypeStruct((256, 256), "float32")
        _, pullback = jax.eval_shape(lambda x, w: jax.vjp(loss, x, w), shape, shape)
        return sum(leaf.size for leaf in jax.tree.leaves(pullback))

    # One input per step and the kernel, and not three values per step.
    assert saved(True) <= (STEPS + 1) * 256**2 + 8
    assert saved(False) > 1.8 * saved(True)


def test_saved_tensors_of_torch_are_read_once():
    # A checkpoint of torch computes them for the first reader alone.
    folder = Path(kb.__file__).parent / "ops" / "backend"
    readers = 0
    for path in folder.glob("torch*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "backward":
                count = sum(
                    isinstance(each, ast.Attribute) and each.attr == "saved_tensors"
                    for each in ast.walk(node)
                )
                assert count <= 1, f"{path.name}:{node.lineno}"
                readers += count
    assert readers
