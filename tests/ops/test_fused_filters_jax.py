"""The fused continuous-filter convolution of JAX: as the same operations one by one."""

import keras
import numpy as np
import pytest

from keras_bandgnn.ops import has_accelerator
from keras_bandgnn.ops.sparse import filtered_sum

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax" or has_accelerator(),
    reason="checks the operation of JAX on CPUs",
)
NODES, WIDTH, FUNCTIONS = 40, 8, 6


def given(edges, seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(0.0, 0.3, shape).astype("float32")

    return {
        "sent": normal(2, NODES, WIDTH),
        "edges": normal(2, edges, FUNCTIONS),
        "factor": rng.random((2, edges)).astype("float32"),
        "kernel": normal(FUNCTIONS, WIDTH),
        "bias": normal(WIDTH),
        "last": normal(WIDTH, WIDTH),
        "last_bias": normal(WIDTH),
    }, {
        "sender": rng.integers(0, NODES, (2, edges)).astype("int32"),
        # The last ones are padding.
        "receiver": np.sort(rng.integers(0, NODES + 1, (2, edges)), 1).astype("int32"),
    }


def fused(values, edge, activate):
    weights = [values.get(n) for n in ("kernel", "bias", "last", "last_bias")]
    return filtered_sum(
        values["sent"], values["edges"], values.get("factor"), weights, edge, activate
    )


def composed(values, edge, activate):
    import jax
    import jax.numpy as jnp

    def softplus(x):
        return jax.nn.softplus(x) - np.log(2.0)

    rows = softplus(values["edges"] @ values["kernel"] + values.get("bias", 0.0))
    rows = rows @ values["last"] + values.get("last_bias", 0.0)
    rows = softplus(rows) if activate else rows
    if "factor" in values:
        rows = rows * values["factor"][..., None]
    group = np.arange(2)[:, None]
    rows = rows * values["sent"][group, edge["sender"]]
    out = jnp.zeros((2, NODES + 1, WIDTH)).at[group, edge["receiver"]].add(rows)
    return out[:, :NODES]


def close(a, b):
    import jax

    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5 * max(1.0, np.abs(y).max()))


# In one chunk, in whole ones, and with a rest.
@pytest.mark.parametrize("edges", [600, 4096, 5000])
@pytest.mark.parametrize("activate", [True, False])
@pytest.mark.parametrize("absent", [(), ("factor",), ("bias", "last_bias")])
def test_outputs_and_gradients(edges, activate, absent):
    import jax
    import jax.numpy as jnp

    values, edge = given(edges)
    values = {k: jnp.asarray(v) for k, v in values.items() if k not in absent}
    assert fused(values, edge, activate) is not None

    def results(function):
        def loss(learnt, fixed):
            return jnp.sin(function({**learnt, **fixed}, edge, activate)).sum()

        @jax.jit
        def run(learnt, fixed):
            # Of the weights only, and then of the edges, as for forces.
            return (
                function({**learnt, **fixed}, edge, activate),
                jax.grad(loss)(learnt, fixed),
                jax.grad(loss, 1)(learnt, fixed),
            )

        constants = ("edges", "factor")
        fixed = {k: v for k, v in values.items() if k in constants}
        learnt = {k: v for k, v in values.items() if k not in constants}
        return run(learnt, fixed)

    close(results(fused), results(composed))


def test_gradients_of_forces():
    import jax
    import jax.numpy as jnp

    values, edge = given(3000)
    values = {k: jnp.asarray(v) for k, v in values.items()}

    def results(function):
        def energy(edges, learnt):
            return jnp.sin(function({**learnt, "edges": edges}, edge, False)).sum()

        def loss(learnt):
            edges = values["edges"]
            return (jax.grad(energy)(edges, learnt) ** 2).sum()

        learnt = {k: v for k, v in values.items() if k != "edges"}
        return jax.jit(jax.grad(loss))(learnt)

    close(results(fused), results(composed))


def test_few_edges_and_other_types_are_left_to_layers():
    import jax.numpy as jnp

    values, edge = given(100)
    assert fused({k: jnp.asarray(v) for k, v in values.items()}, edge, True) is None
    values, edge = given(1000)
    half = {k: jnp.asarray(v, "bfloat16") for k, v in values.items()}
    assert fused(half, edge, True) is None
