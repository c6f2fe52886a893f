"""Functions as one program, which JAX compiles faster than their operations."""

from collections.abc import Callable

import keras


def compiled(function: Callable) -> Callable:
    """Return the function as JAX runs it in training: as one program.

    Eager JAX compiles each operation for each shape, which takes several times as long.
    The other backends compile nothing here.
    """
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(lambda *arguments: function(*arguments))
