import keras
import numpy as np
import pytest
from keras import ops

from keras_bandgnn.primitives.banded import banded_matmul, banded_tiles

GROUPS, TYPES, WIDTH = 2, 3, 5


def made_edges(num_nodes, size, seed=0):
    """Edges between neighbouring blocks, some of them twice, then padding."""
    rng = np.random.default_rng(seed)
    receiver = rng.integers(0, num_nodes, (GROUPS, 60))
    low = np.maximum((receiver // size - 1) * size, 0)
    high = np.minimum((receiver // size + 2) * size, num_nodes)
    sender = rng.integers(low, high)
    kind = rng.integers(0, TYPES, receiver.shape)
    values = rng.integers(1, 4, receiver.shape).astype("float32")
    for array in (sender, receiver, kind, values):
        array[:, -10:] = 0
    return [a.astype("int32") for a in (sender, receiver, kind)], values


def oracle(ids, values, x):
    out = np.zeros((GROUPS, x.shape[1], TYPES, x.shape[2]))
    for g in range(GROUPS):
        for s, r, p, w in zip(*(i[g] for i in ids), values[g], strict=True):
            out[g, r, p] += w * x[g, s]
    return out.reshape(GROUPS, x.shape[1], -1)


@pytest.mark.parametrize(("num_nodes", "size"), [(22, 4), (8, 8), (3, 4), (300, 128)])
def test_banded_matmul_is_the_typed_sum(num_nodes, size):
    ids, values = made_edges(num_nodes, size)
    x = np.random.default_rng(1).standard_normal((GROUPS, num_nodes, WIDTH))
    x = x.astype("float32")
    tiles = banded_tiles(*ids, ops.array(values), num_nodes, TYPES, size)
    out = banded_matmul(tiles, ops.array(x), size, TYPES)
    np.testing.assert_allclose(
        ops.convert_to_numpy(out), oracle(ids, values, x), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("size", [256, 384])
def test_tiles_have_128_columns(size):
    ids, values = made_edges(2 * size, size)
    tiles = banded_tiles(*ids, ops.array(values), 2 * size, TYPES, size)
    assert tuple(tiles.shape) == (GROUPS, 2, 3 * size // 128, size * TYPES, 128)
    x = np.random.default_rng(1).standard_normal((GROUPS, 2 * size, WIDTH))
    x = x.astype("float32")
    out = banded_matmul(tiles, ops.array(x), size, TYPES)
    np.testing.assert_allclose(
        ops.convert_to_numpy(out), oracle(ids, values, x), rtol=1e-5, atol=1e-5
    )


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="differentiates with JAX")
def test_gradients_of_states_and_values():
    import jax

    ids, values = made_edges(22, 4)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((GROUPS, 22, WIDTH)).astype("float32")
    weight = rng.standard_normal((GROUPS, 22, TYPES * WIDTH)).astype("float32")

    def loss(values, x):
        tiles = banded_tiles(*ids, values, 22, TYPES, 4)
        return (banded_matmul(tiles, x, 4, TYPES) * weight).sum()

    d_values, d_x = jax.grad(loss, (0, 1))(values, x)
    expected_x = np.zeros_like(x)
    expected_values = np.zeros_like(values)
    weight = weight.reshape(GROUPS, 22, TYPES, WIDTH)
    for g in range(GROUPS):
        for e, (s, r, p) in enumerate(zip(*(i[g] for i in ids), strict=True)):
            expected_x[g, s] += values[g, e] * weight[g, r, p]
            expected_values[g, e] = (weight[g, r, p] * x[g, s]).sum()
    np.testing.assert_allclose(d_x, expected_x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_values, expected_values, rtol=1e-4, atol=1e-5)
