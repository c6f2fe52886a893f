"""`CosineCutoff`: a factor that decays smoothly to 0 at the cutoff."""

import math

import keras
from keras import ops

from keras_bandgnn.checks import positive_number


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class CosineCutoff(keras.layers.Layer):
    """Edge factor that decays from 1 at distance 0 to 0 at the cutoff.

        f(d) = (cos(pi d / r_c) + 1) / 2  for d < r_c, else 0

    Distances keep their precision, even under mixed precision.

    Args:
        cutoff: r_c, angstrom.

    Input shape:
        float [...], angstrom.

    Output shape:
        float [...].

    Raises:
        ValueError: For a cutoff that is not positive.

    Reference:
        Behler 2011; Schuett et al. 2021 (PaiNN), Eq. 10.

    Example:
    >>> factors = CosineCutoff(6.0)(keras.ops.convert_to_tensor([0.0, 3.0, 6.5]))
    >>> [round(float(f), 4) for f in factors]
    [1.0, 0.5, 0.0]
    """

    splits_sequences = True

    def __init__(self, cutoff: float, **kwargs):
        super().__init__(autocast=False, **kwargs)
        # === Config ===
        self.cutoff = positive_number("cutoff", cutoff)

    def call(self, distances):
        """Return the factors."""
        factors = 0.5 * (ops.cos(distances * (math.pi / self.cutoff)) + 1.0)
        factors = ops.where(distances < self.cutoff, factors, 0.0)
        return ops.cast(factors, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        """[...]."""
        return tuple(input_shape)

    def get_config(self):
        """Return the arguments of the constructor."""
        return {**super().get_config(), "cutoff": self.cutoff}
