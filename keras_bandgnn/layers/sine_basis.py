"""`SineBasis`: radial basis of sine functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Unpack

import numpy as np
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import positive_int, positive_number
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor


@serializable
class SineBasis(keras_bases.Layer):
    """Values of K sine functions, divided by the distance.

        e_n(d) = sin(n pi d / r_c) / d,  n = 1 .. K

    Distances keep their precision, even under mixed precision.

    Args:
        num_functions: K.
        cutoff: r_c, angstrom; all functions are 0 there.

    Input shape:
        float [...], angstrom. At distance 0 the value is the limit n pi / r_c.

    Output shape:
        float [..., K].

    Raises:
        ValueError: For fewer than one function, or a cutoff that is not positive.

    Reference:
        Gasteiger et al. 2020 (DimeNet); Schuett et al. 2021 (PaiNN): K = 20.

    Example:
    >>> import keras
    >>> values = SineBasis(2, cutoff=4.0)(keras.ops.convert_to_tensor([2.0]))
    >>> round(float(values[0, 0]), 4)
    0.5
    """

    splits_sequences = True

    def __init__(
        self, num_functions: int, cutoff: float, **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(autocast=False, **kwargs)
        # === Config ===
        self.num_functions = positive_int("num_functions", num_functions)
        self.cutoff = positive_number("cutoff", cutoff)

    def call(self, distances: Tensor) -> Tensor:
        """Return the values of the functions."""
        frequencies = np.arange(1, self.num_functions + 1) * (math.pi / self.cutoff)
        frequencies = ops.convert_to_tensor(frequencies.astype("float32"))
        # Below it sine and argument are the same number in float32.
        length = ops.expand_dims(ops.maximum(distances, 1e-5), -1)
        values = ops.sin(length * frequencies) / length
        return ops.cast(values, self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """[..., K]."""
        return (*input_shape, self.num_functions)
