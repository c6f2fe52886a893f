"""`HarmonicEncoding`: differences of time as waves of learned frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import positive_int
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor

# The frequencies begin at 1 and go down by so many powers of 10.
_DECADES = 9.0


@serializable
class HarmonicEncoding(keras_bases.Layer):
    """Maps a number, such as the age of an edge, to H by D learned waves.

        e(t) = W z(t) + b,  z_k(t) = cos(w_k t + p_k),  k = 1 .. D

    Frequencies w begin as a geometric series from 1 to 1e-9 per unit of t, and phases p
    at 0, so that nearby and distant times are told apart: choose a unit in which
    differences that matter are between 1 and 1e6, since in float32 a wave is exact to
    about 1e-7 w t. The layer learns log w, so that a step changes low and high
    frequencies by like shares. Numbers keep their precision, even under mixed
    precision.

    Args:
        units: H.
        num_frequencies: D.

    Input shape:
        float [..., 1].

    Output shape:
        float [..., H].

    Raises:
        ValueError: For sizes that are not positive.

    Reference:
        Xu et al. 2020, https://arxiv.org/abs/2002.07962, equation 3 with learned phases
        as in the authors' code.

    Example:
    >>> layer = HarmonicEncoding(4, num_frequencies=8)
    >>> layer(keras.ops.convert_to_tensor([[0.0], [3600.0]])).shape[-1]
    4
    """

    splits_sequences = True

    def __init__(
        self, units: int, num_frequencies: int = 32, **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(autocast=False, **kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.num_frequencies = positive_int("num_frequencies", num_frequencies)
        # === Layers ===
        self.dense = keras.layers.Dense(
            self.units, dtype=self.dtype_policy, name="dense"
        )

    def build(self, input_shape: Shape | None = None) -> None:
        """Build the frequencies and phases, and the map of the waves."""
        count = self.num_frequencies
        # Of one wave the middle of the series.
        share = np.linspace(0, 1, count) if count > 1 else np.array([0.5])
        logarithms = (-_DECADES * np.log(10.0) * share).astype("float32")
        self.log_frequency = self.add_weight(
            shape=(count,),
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(
                logarithms, dtype
            ),
            name="log_frequency",
        )
        self.phase = self.add_weight(shape=(count,), initializer="zeros", name="phase")
        self.dense.build((None, count))
        self.built = True

    def call(self, values: Tensor) -> Tensor:
        """Return the states of numbers."""
        values = ops.cast(values, "float32")
        frequency = ops.exp(ops.cast(self.log_frequency, "float32"))
        angle = values * frequency + ops.cast(self.phase, "float32")
        return self.dense(ops.cast(ops.cos(angle), self.compute_dtype))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """[..., H]."""
        return (*input_shape[:-1], self.units)
