"""`LayerNormalization`: Keras' layer, with faster and with right gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import positive_number
from keras_bandgnn.ops.backend import current as backend

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class LayerNormalization(keras_bases.LayerNormalization):
    """Normalisation of each row by the mean and variance of its channels.

        out = gamma (x - mean) / sqrt(variance + epsilon) + beta

    This is `keras.layers.LayerNormalization`, with its arguments and weights. On CPUs
    in JAX the gradient is one of our own, which sums over rows and channels by products
    with ones: the sums that XLA derives take up to ten times as long. (As that of other
    operations there it is a gradient in reverse, to which `jax.jvp` does not apply.) In
    TensorFlow it has second derivatives, as training on forces needs them; those of
    Keras' layer are wrong.

    Args:
        epsilon: Added to the variance.
        **kwargs: The other arguments of `keras.layers.LayerNormalization`.

    Input shape:
        inputs: float [..., H]; integers are cast.

    Output shape:
        float [..., H].

    Raises:
        ValueError: If epsilon is not positive.

    Reference:
        Ba et al. 2016, https://arxiv.org/abs/1607.06450, Eq. 4.

    Example:
    >>> import numpy as np
    >>> out = LayerNormalization()(np.array([[1.0, 3.0]]))
    >>> keras.ops.convert_to_numpy(out).round(1).tolist()
    [[-1.0, 1.0]]
    """

    splits_sequences = True

    def __init__(self, epsilon: float = 1e-3, **kwargs: Unpack[LayerOptions]):
        super().__init__(epsilon=positive_number("epsilon", epsilon), **kwargs)

    def call(self, inputs: Tensor) -> Tensor:
        """Return the normalised rows."""
        if "int" in keras.backend.standardize_dtype(inputs.dtype):
            inputs = ops.cast(inputs, self.compute_dtype)
        if backend.layer_normalization is not None and self._is_plain(inputs):
            weights = [ops.convert_to_tensor(w) for w in (self.gamma, self.beta)]
            out = backend.layer_normalization(
                ops.convert_to_tensor(inputs), *weights, self.epsilon
            )
            if out is not None:
                return ops.cast(out, self.compute_dtype)
        return super().call(inputs)

    def _is_plain(self, inputs):
        """Return whether the last axis is normalised, scaled and shifted."""
        last = list(self.axis) in ([-1], [len(inputs.shape) - 1])
        return last and self.scale and self.center and not self.rms_scaling
