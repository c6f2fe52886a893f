"""`FlatDense`: a dense layer over rows under several axes."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class FlatDense(keras.layers.Dense):
    """`keras.layers.Dense`, carried out as one product of matrices.

    See `ops.flat.flat_matmul`: on CPUs the gradient is faster.

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

    def call(self, inputs, training=None):
        """Returns the rows times the kernel, with bias and activation."""
        shape = ops.shape(inputs)
        rows = super().call(ops.reshape(inputs, (-1, shape[-1])), training)
        return ops.reshape(rows, (*shape[:-1], self.units))

    def quantize(self, mode=None, type_check=True, config=None):
        """See `keras.layers.Dense.quantize`, which refuses subclasses by default."""
        super().quantize(mode, type_check=False, config=config)
