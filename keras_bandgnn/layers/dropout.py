"""Dropout that costs little on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import number, refuse
from keras_bandgnn.compat import add_seed_generator

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class Dropout(keras_bases.Dropout):
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

    @property
    def rate(self) -> float:
        """Share of the entries to set to 0. It may be changed."""
        return self._rate

    @rate.setter
    def rate(self, value: float):
        if not 0 <= number("rate", value) <= 1:
            refuse("rate", "a share in [0, 1]", value)
        self._rate = value
        # Keras makes none for a rate of 0.
        if self.built and self._rate and not hasattr(self, "seed_generator"):
            add_seed_generator(self, self.seed)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Return the inputs, some of them 0 in training."""
        if not training or not self.rate:
            return inputs
        if self.noise_shape is not None or self.rate == 1:
            return super().call(inputs, training)
        return graph_ops.dropout(inputs, self.rate, self.seed_generator)
