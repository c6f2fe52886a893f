"""`GaussianBasis`: radial basis of Gaussian functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import optional, positive_int, positive_number
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor


@serializable
class GaussianBasis(keras_bases.Layer):
    """Values of K Gaussian functions at each distance.

        e_k(d) = exp(-gamma (d - mu_k)^2),  mu_k = k stop / (K - 1),  k = 0 .. K-1

    Distances keep their precision, even under mixed precision.

    Args:
        num_functions: K, at least 2.
        stop: The last centre, angstrom.
        gamma: Per square angstrom; by default 1 / (2 s^2) with s the spacing of the
            centres.

    Input shape:
        float [...], angstrom.

    Output shape:
        float [..., K].

    Raises:
        ValueError: For fewer than two functions, or a number that is not positive.

    Reference:
        Schuett et al. 2017; Speckhard et al. 2025: K = 150, centres 0.1 k, gamma 10
        (SchNet, MPEU); K = 20 up to the cutoff r_c, gamma (20 / r_c)^2 / 2 (PaiNN).

    Example:
    >>> import keras
    >>> float(GaussianBasis(3, stop=2.0, gamma=1.0)(keras.ops.ones((1,)))[0, 1])
    1.0
    """

    splits_sequences = True

    def __init__(
        self,
        num_functions: int,
        stop: float,
        gamma: float | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(autocast=False, **kwargs)
        # === Config ===
        self.num_functions = positive_int("num_functions", num_functions, minimum=2)
        self.stop = positive_number("stop", stop)
        self.gamma = optional(positive_number, "gamma", gamma)

    def call(self, distances: Tensor) -> Tensor:
        """Return the values of the functions."""
        centres = np.linspace(0.0, self.stop, self.num_functions)
        gamma = self.gamma or 0.5 / (centres[1] ** 2)
        # Scaled first: one pass less over the values of all functions.
        root = gamma**0.5
        offsets = ops.expand_dims(distances * root, -1) - ops.convert_to_tensor(
            (centres * root).astype("float32")
        )
        return ops.cast(ops.exp(-ops.square(offsets)), self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """[..., K]."""
        return (*input_shape, self.num_functions)
