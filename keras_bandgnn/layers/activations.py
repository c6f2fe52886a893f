"""Activations that Keras lacks."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bandgnn")
def shifted_softplus(x):
    """Softplus that is 0 at 0: log(0.5 exp(x) + 0.5).

    Args:
        x: float, any shape.

    Returns:
        float, the shape of `x`.

    Reference:
        Schuett et al. 2017 (SchNet).

    Example:
    >>> float(shifted_softplus(keras.ops.zeros(())))
    0.0
    """
    return ops.softplus(x) - math.log(2.0)
