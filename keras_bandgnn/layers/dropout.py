"""Dropout that costs little on CPUs."""

import keras

from keras_bandgnn import ops as graph_ops


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` with random numbers that cost little.

    See `keras_bandgnn.ops.dropout`.

    Args:
        rate: Share of the entries to set to 0, in [0, 1].
        **kwargs: As for `keras.layers.Dropout`.

    Input shape:
        float, any shape.

    Output shape:
        float, the shape of the input.
    """

    splits_sequences = True

    def call(self, inputs, training=False):
        """Return the inputs, some of them 0 in training."""
        if not training or not self.rate:
            return inputs
        if self.noise_shape is not None or self.rate == 1:
            return super().call(inputs, training)
        return graph_ops.dropout(inputs, self.rate, self.seed_generator)
