"""`SchNetBackbone`: continuous-filter convolutions over distances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import boolean, one_of, positive_int
from keras_bandgnn.layers.continuous_filter import ContinuousFilter
from keras_bandgnn.layers.cosine_cutoff import CosineCutoff
from keras_bandgnn.layers.edge_geometry import (
    edge_distances,
    message_counts,
    message_factors,
)
from keras_bandgnn.layers.gaussian_basis import GaussianBasis
from keras_bandgnn.layers.schnet_interaction import SchNetInteraction
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone
from keras_bandgnn.ops.sparse import equal_values

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, Config, ModuleOptions, Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class SchNetBackbone(AtomisticBackbone):
    """T steps of messages through filters that depend on the distance.

        h(0) = row of the atom's element
        m(t)[i] = mean over the edges e (j -> i) of (W_1 h(t)[j]) * w(t)[e]
        h(t+1) = h(t) + W_5 s(W_4 m(t))

    with filters w from Gaussian functions of the distance (`GaussianBasis`,
    `ContinuousFilter`) and s the shifted softplus. The defaults are the model that
    Speckhard et al. profiled. That of SchNetPack and torch_geometric is
    `SchNetBackbone(100, 128, 6, num_gaussians=50, cutoff=10.0, reduce="sum",
    use_bias=True, activate_filters=False)`.

    Args:
        elements: The atomic numbers that occur, or an integer V for all below V.
        hidden_dim: C, also the width of the filters.
        num_steps: T.
        num_gaussians: Number of Gaussian functions.
        cutoff: Distance in angstrom at which filters reach 0 (`CosineCutoff`). The
            functions then have their centres from 0 to the cutoff, and the spacing is
            their deviation. Without a cutoff the centres are 0.1 k angstrom and
            gamma is 10 per square angstrom.
        reduce: `"mean"` or `"sum"` of messages.
        use_bias: Whether filters and updates have biases.
        activate_filters: Whether the last layer of the filters has an activation.
        share_weights: Whether all steps have the same weights.
        element_cutoffs: Atomic number -> angstrom, at most `cutoff`, which other
            elements have: filters between two atoms reach 0 at the mean of their two
            cutoffs. Give the same to `RadiusGraph`, which then makes fewer edges.

    Input shape:
        A batch with `batch["node"]["atomic_number"]` int32 [G, N] and
        `batch["edge"]["displacement"]` float [G, E, 3], or `["distance"]` float [G, E],
        in angstrom.

    Output shape:
        float [G, N, C].

    Raises:
        ValueError: For arguments that do not fit, or a batch without geometry.

    Reference:
        Schuett et al. 2017; Speckhard et al. 2025, Eqs. 1, 4 and 5.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     2, [1, 0], [0, 1],
    ...     node={"atomic_number": [8, 1]},
    ...     edge={"displacement": [[0.0, 0.0, 0.97], [0.0, 0.0, -0.97]]},
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> SchNetBackbone(elements=(1, 8), hidden_dim=16)(batch).shape[-1]
    16
    """

    splits_sequences = False
    weighs_edges = True

    def __init__(
        self,
        elements: int | Iterable[int],
        hidden_dim: int = 64,
        num_steps: int = 3,
        *,
        num_gaussians: int = 150,
        cutoff: float | None = None,
        reduce: str = "mean",
        use_bias: bool = False,
        activate_filters: bool = True,
        share_weights: bool = False,
        element_cutoffs: Mapping[int, float] | None = None,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(elements, hidden_dim, num_steps, **kwargs)
        # === Config ===
        self.reduce = one_of("reduce", reduce, ("mean", "sum"))
        self.use_bias = boolean("use_bias", use_bias)
        self.activate_filters = boolean("activate_filters", activate_filters)
        self.share_weights = boolean("share_weights", share_weights)
        # === Layers ===
        policy = self.dtype_policy
        self.cutoff = None
        num_gaussians = positive_int("num_gaussians", num_gaussians, 2)
        if cutoff is None:
            if element_cutoffs is not None:
                raise ValueError(
                    "Expected `element_cutoffs` with `cutoff`, the largest of them. "
                    "Received: cutoff=None. Set SchNetBackbone(..., cutoff=...)."
                )
            self.basis = distance_basis(num_gaussians, dtype=policy)
        else:
            self.cutoff = CosineCutoff(
                cutoff, element_cutoffs, dtype=policy, name="cutoff"
            )
            self.basis = GaussianBasis(
                num_gaussians, self.cutoff.cutoff, dtype=policy, name="basis"
            )
        options = {"use_bias": self.use_bias, "dtype": policy}
        self.filters, self.interactions = [], []
        for step in range(1 if self.share_weights else self.num_steps):
            self.filters.append(
                ContinuousFilter(
                    self.hidden_dim,
                    activate_output=self.activate_filters,
                    name=f"filter_{step}",
                    **options,
                )
            )
            self.interactions.append(
                SchNetInteraction(
                    self.hidden_dim, name=f"interaction_{step}", **options
                )
            )
        self.build()

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        rows = (None, None, self.hidden_dim)
        self.embedding.build()
        if self.cutoff is not None:
            self.cutoff.build((None, None))
        for network, interaction in zip(self.filters, self.interactions, strict=True):
            network.build((None, None, self.basis.num_functions))
            interaction.build(rows, rows)
        self.built = True

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield the embedded elements and the node states after each step."""
        edge = batch["edge"]
        states = self.first_states(batch)
        yield states
        distances = edge_distances(edge)
        basis = self.basis(distances)
        factor = None
        if self.cutoff is not None:
            factor = self.cutoff(distances, self.cutoff.limits(batch))
        factor = message_factors(batch, factor)
        degree = None
        if self.reduce == "mean":
            degree = message_counts(batch, ops.shape(states)[1])
            degree = ops.cast(degree, states.dtype)
        if self.share_weights:
            filters = self.filters[0](basis, factor)
            for _ in range(self.num_steps):
                states = self.interactions[0](states, batch, filters, degree)
                yield states
            return
        # Both directions of a pair have one filter.
        equal = equal_values(distances)
        for network, interaction in zip(self.filters, self.interactions, strict=True):
            sent = interaction.send_dense(states)
            messages = network.convolve(sent, basis, edge, factor, equal)
            states = interaction.update(states, messages, degree)
            yield states

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_gaussians": self.basis.num_functions,
            **self.cutoff_config(),
            "reduce": self.reduce,
            "use_bias": self.use_bias,
            "activate_filters": self.activate_filters,
            "share_weights": self.share_weights,
        }


def distance_basis(num_gaussians: int, **options) -> GaussianBasis:
    """Return the Gaussian functions of Speckhard et al.: exp(-(d - 0.1 k)^2 / 0.1)."""
    num_gaussians = positive_int("num_gaussians", num_gaussians, 2)
    return GaussianBasis(
        num_gaussians,
        stop=0.1 * (num_gaussians - 1),
        gamma=10.0,
        name="basis",
        **options,
    )
