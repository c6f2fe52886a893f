"""`CosineCutoff`: a factor that decays smoothly to 0 at the cutoff."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import checks, keras_bases
from keras_bandgnn.arrays import cutoff_table

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, Config, LayerOptions, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class CosineCutoff(keras_bases.Layer):
    """Edge factor that decays from 1 at distance 0 to 0 at the cutoff.

        f(d) = (cos(pi d / r_c) + 1) / 2  for d < r_c, else 0

    With `element_cutoffs`, r_c of an edge is the mean of those of its two atoms.

    Distances keep their precision, even under mixed precision.

    Args:
        cutoff: r_c, angstrom.
        element_cutoffs: Atomic number -> angstrom, at most `cutoff`, which other
            elements have.

    Input shape:
        distances: float [...], angstrom.
        limits: r_c of each edge, float [...], from `limits(batch)`; None for `cutoff`.

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

    def __init__(
        self,
        cutoff: float,
        element_cutoffs: Mapping[int, float] | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(autocast=False, **kwargs)
        # === Config ===
        self.cutoff = checks.positive_number("cutoff", cutoff)
        self.element_cutoffs = checks.element_cutoffs(element_cutoffs, self.cutoff)

    def limits(self, batch: Batch) -> Tensor | None:
        """Return r_c of each edge of a batch, float [G, E]; None without elements.

        Args:
            batch: A batch; it reads `batch["node"]["atomic_number"]` int32 [G, N].
        """
        if self.element_cutoffs is None:
            return None
        table = cutoff_table(self.element_cutoffs, self.cutoff).astype("float32")
        numbers = ops.convert_to_tensor(batch["node"]["atomic_number"])
        numbers = ops.clip(numbers, 0, len(table) - 1)
        radius = ops.take(ops.convert_to_tensor(table), numbers, axis=0)
        edge, last = batch["edge"], ops.shape(numbers)[1] - 1
        # Receivers of padded edges are beyond the nodes.
        ends = (edge["sender"], ops.minimum(edge["receiver"], last))
        first, second = (ops.take_along_axis(radius, end, axis=1) for end in ends)
        return (first + second) / 2

    def build(self, distances_shape: Shape, limits_shape: Shape | None = None) -> None:
        """There are no weights."""
        self.built = True

    def call(self, distances: Tensor, limits: Tensor | None = None) -> Tensor:
        """Return the factors."""
        limits = self.cutoff if limits is None else limits
        factors = 0.5 * (ops.cos(distances * (math.pi / limits)) + 1.0)
        # A distance of NaN is not beyond the cutoff, and stays NaN.
        factors = ops.where(distances >= limits, 0.0, factors)
        return ops.cast(factors, self.compute_dtype)

    def compute_output_shape(
        self, distances_shape: Shape, limits_shape: Shape | None = None
    ) -> Shape:
        """[...]."""
        return tuple(distances_shape)

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        config = {**super().get_config(), "cutoff": self.cutoff}
        if self.element_cutoffs is not None:
            # JSON has text as keys.
            config["element_cutoffs"] = {
                str(element): radius for element, radius in self.element_cutoffs.items()
            }
        return config
