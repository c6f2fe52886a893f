"""Dense maps over rows under several axes, and shifted softplus."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.ops.backend import current as backend

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Tensor

# Activations that Keras lacks.


@keras.saving.register_keras_serializable(package="keras_bandgnn")
def shifted_softplus(x: Tensor) -> Tensor:
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


# Kernels of dense layers whose products other layers carry out themselves.


def dense_kernel(layer):
    """Return the kernel of a `Dense` as floating-point numbers, also after `quantize`.

    Args:
        layer: The layer; float32, or int8 with a scale per column.

    Returns:
        [K, U].
    """
    kernel = ops.convert_to_tensor(layer.kernel)
    if layer.quantization_mode is None:
        return kernel
    if layer.quantization_mode != "int8":
        raise ValueError(
            f"Expected {layer.path!r} in float32 or int8. "
            f"Received: {layer.quantization_mode!r}. Use quantize('int8')."
        )
    scale = ops.convert_to_tensor(layer.kernel_scale)
    return ops.cast(kernel, scale.dtype) / scale


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class FlatDense(keras_bases.Dense):
    """`keras.layers.Dense`, carried out as one product of matrices.

    See `flat_matmul` in `ops.batched`: on CPUs the gradient is faster.

    Args:
        units: U.
        activation: As for `Dense`.
        **kwargs: As for `Dense`.

    Input shape:
        float [..., K].

    Output shape:
        float [..., U].
    """

    splits_sequences = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the rows times the kernel, with bias and activation."""
        shape = ops.shape(inputs)
        rows, out = ops.reshape(inputs, (-1, shape[-1])), None
        if backend.affine is not None and self.bias is not None:
            weights = map(ops.convert_to_tensor, (self.kernel, self.bias))
            out = backend.affine(rows, *weights)
        if out is None:
            rows = super().call(rows, training)
        else:
            rows = out if self.activation is None else self.activation(out)
        return ops.reshape(rows, (*shape[:-1], self.units))

    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: Config | None = None,
    ) -> None:
        """Quantize the layer; `Dense.quantize` rejects subclasses by default."""
        super().quantize(mode, type_check=False, config=config)
