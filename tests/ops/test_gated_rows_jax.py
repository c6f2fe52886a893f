"""The GRU of JAX in chunks of rows: as for all rows at once."""

import keras
import numpy as np
import pytest

from keras_bandgnn.ops import has_accelerator

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax" or has_accelerator(),
    reason="checks the operation of JAX on CPUs",
)


@pytest.mark.parametrize("rows", [4096, 5000])
def test_chunks_of_rows_change_nothing(rows):
    import jax
    import jax.numpy as jnp

    from keras_bandgnn.ops.backend import jax as backend
    from keras_bandgnn.ops.backend.jax_gates import gated

    def at_once(*given):
        return gated(*given)[0]

    rng = np.random.default_rng(0)
    shapes = (1, rows, 4), (1, rows, 6), (4, 18), (18,), (6, 18), (18,)
    given = [jnp.asarray(rng.normal(size=s), "float32") for s in shapes]

    def results(function):
        def loss(*given):
            return jnp.sin(function(*given)).sum()

        gradients = jax.jit(jax.grad(loss, range(6)))(*given)
        return [function(*given), *gradients]

    whole, chunked = results(at_once), results(backend.gated_update)
    for a, b in zip(chunked, whole, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=1e-6 * max(1.0, np.abs(b).max()) * 20)
    text = str(jax.make_jaxpr(backend.gated_update)(*given))
    assert "scan" in text


def test_programs_for_accelerators_have_no_chunks():
    import jax
    import jax.numpy as jnp

    from keras_bandgnn.ops.backend import jax as backend
    from keras_bandgnn.ops.context import for_accelerator

    shapes = (1, 5000, 4), (1, 5000, 6), (4, 18), (18,), (6, 18), (18,)
    given = [jnp.ones(shape) for shape in shapes]
    with for_accelerator():
        assert backend.has_accelerator()
        text = str(jax.make_jaxpr(lambda *g: backend.gated_update(*g))(*given))
    assert "scan" not in text and not backend.has_accelerator()
