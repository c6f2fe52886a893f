"""`MPEUBackbone`: message passing with edge updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import one_of
from keras_bandgnn.layers.edge_geometry import edge_distances, message_counts
from keras_bandgnn.layers.mpeu_interaction import MPEUInteraction
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone
from keras_bandgnn.models.schnet.schnet_backbone import distance_basis

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, Config, ModuleOptions, Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class MPEUBackbone(AtomisticBackbone):
    """T steps of `MPEUInteraction`: SchNet with states on the edges.

    The first states of edges are Gaussian functions of the distance, with centres at
    0.1 k angstrom and gamma 10 per square angstrom. No layer has a bias. The defaults
    are the smaller model that Speckhard et al. profiled; the larger one has
    hidden_dim=256.

    Args:
        elements: The atomic numbers that occur, or an integer V for all below V.
        hidden_dim: C.
        num_steps: T.
        num_gaussians: Number of Gaussian functions.
        reduce: `"mean"` or `"sum"` of messages.

    Input shape:
        A batch with `batch["node"]["atomic_number"]` int32 [G, N] and
        `batch["edge"]["displacement"]` float [G, E, 3], or `["distance"]` float [G, E],
        in angstrom.

    Output shape:
        float [G, N, C].

    Raises:
        ValueError: For arguments that do not fit, or a batch without geometry.

    Reference:
        Jorgensen et al. 2018; Speckhard et al. 2025, Eqs. 2 to 5.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     2, [1, 0], [0, 1],
    ...     node={"atomic_number": [8, 1]}, edge={"distance": [0.97, 0.97]},
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> MPEUBackbone(elements=(1, 8), hidden_dim=16)(batch).shape[-1]
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
        reduce: str = "mean",
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(elements, hidden_dim, num_steps, **kwargs)
        # === Config ===
        self.reduce = one_of("reduce", reduce, ("mean", "sum"))
        # === Layers ===
        policy = self.dtype_policy
        self.basis = distance_basis(num_gaussians, dtype=policy)
        self.interactions = [
            MPEUInteraction(self.hidden_dim, dtype=policy, name=f"interaction_{step}")
            for step in range(self.num_steps)
        ]
        self.build()

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        rows = (None, None, self.hidden_dim)
        edges = (None, None, self.basis.num_functions)
        self.embedding.build()
        for interaction in self.interactions:
            interaction.build(rows, edges)
            edges = rows
        self.built = True

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield the embedded elements and the node states after each step."""
        edge = batch["edge"]
        states = self.first_states(batch)
        yield states
        edges = self.basis(edge_distances(edge))
        degree = None
        if self.reduce == "mean":
            degree = message_counts(batch, ops.shape(states)[1])
            degree = ops.cast(degree, states.dtype)
        for interaction in self.interactions:
            states, edges = interaction(states, batch, edges, degree)
            yield states

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_gaussians": self.basis.num_functions,
            "reduce": self.reduce,
        }
