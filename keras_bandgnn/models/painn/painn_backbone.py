"""`PaiNNBackbone`: scalar and vector states that update each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import one_of, positive_int
from keras_bandgnn.layers.cosine_cutoff import CosineCutoff
from keras_bandgnn.layers.edge_geometry import (
    edge_directions,
    edge_distances,
    message_factors,
)
from keras_bandgnn.layers.gaussian_basis import GaussianBasis
from keras_bandgnn.layers.painn_message import PaiNNMessage
from keras_bandgnn.layers.painn_update import PaiNNUpdate
from keras_bandgnn.layers.sine_basis import SineBasis
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Config,
        ModuleOptions,
        Shape,
        Tensor,
    )


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class PaiNNBackbone(AtomisticBackbone):
    """T times `PaiNNMessage` and `PaiNNUpdate`.

    The scalar states do not change when a structure is rotated or moved, and the
    vectors turn with it. First states are rows of a table of elements, first vectors
    are 0. The defaults are the model that Speckhard et al. profiled.

    Args:
        elements: The atomic numbers that occur, or an integer V for all below V.
        hidden_dim: C.
        num_steps: T.
        cutoff: Distance r_c in angstrom at which messages reach 0 (`CosineCutoff`).
        num_functions: K, number of radial functions.
        basis: `"gaussian"`: K Gaussian functions with centres from 0 to r_c and the
            deviation r_c / K; `"sine"`: `SineBasis`, as in the paper of PaiNN.
        epsilon: Keeps the gradient of norms finite, see `PaiNNUpdate`.
        element_cutoffs: Atomic number -> angstrom, at most `cutoff`, which other
            elements have: messages between two atoms reach 0 at the mean of their two
            cutoffs. Give the same to `RadiusGraph`, which then makes fewer edges.

    Input shape:
        A batch with `batch["node"]["atomic_number"]` int32 [G, N] and
        `batch["edge"]["displacement"]` float [G, E, 3], in angstrom.

    Output shape:
        States, float [G, N, C]. With `call(batch, return_vectors=True)` a pair: states
        and vectors, float [G, N, 3, C], whose axis 2 are the components x, y and z.

    Raises:
        ValueError: For arguments that do not fit, or a batch without displacements.

    Reference:
        Schuett et al. 2021; Speckhard et al. 2025, Eqs. 6 and 7: C = 256, T = 3,
        K = 20, r_c = 6.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     2, [1, 0], [0, 1],
    ...     node={"atomic_number": [8, 1]},
    ...     edge={"displacement": [[0.0, 0.0, 0.97], [0.0, 0.0, -0.97]]},
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone = PaiNNBackbone((1, 8), hidden_dim=16)
    >>> states, vectors = backbone(batch, return_vectors=True)
    >>> states.shape[-1], tuple(vectors.shape[-2:])
    (16, (3, 16))
    """

    splits_sequences = False
    weighs_edges = True

    needs_directions = True

    def __init__(
        self,
        elements: int | Iterable[int],
        hidden_dim: int = 256,
        num_steps: int = 3,
        *,
        cutoff: float = 6.0,
        num_functions: int = 20,
        basis: str = "gaussian",
        epsilon: float = 1e-8,
        element_cutoffs: Mapping[int, float] | None = None,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(elements, hidden_dim, num_steps, **kwargs)
        # === Config ===
        self.basis_name = one_of("basis", basis, ("gaussian", "sine"))
        positive_int("num_functions", num_functions)
        # === Layers ===
        policy = self.dtype_policy
        self.cutoff = CosineCutoff(cutoff, element_cutoffs, dtype=policy, name="cutoff")
        options = {"dtype": policy, "name": "basis"}
        if basis == "sine":
            self.basis = SineBasis(num_functions, cutoff, **options)
        else:
            gamma = 0.5 * (num_functions / cutoff) ** 2
            self.basis = GaussianBasis(num_functions, cutoff, gamma, **options)
        self.messages, self.updates = [], []
        for step in range(self.num_steps):
            self.messages.append(
                PaiNNMessage(self.hidden_dim, dtype=policy, name=f"message_{step}")
            )
            self.updates.append(
                PaiNNUpdate(
                    self.hidden_dim, epsilon, dtype=policy, name=f"update_{step}"
                )
            )
        self.build()

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        states = (None, None, self.hidden_dim)
        vectors = (None, None, 3, self.hidden_dim)
        self.embedding.build()
        self.cutoff.build((None, None))
        for message, update in zip(self.messages, self.updates, strict=True):
            message.build(states, vectors, (None, None, self.basis.num_functions))
            update.build(states, vectors)
        self.built = True

    def _steps(self, batch):
        """Yield states and vectors: the embedded elements, then after each step."""
        edge = batch["edge"]
        states, vectors = self.first_states(batch), None
        yield states, vectors
        distances = edge_distances(edge)
        directions = edge_directions(edge, distances)
        factor = self.cutoff(distances, self.cutoff.limits(batch))
        geometry = (
            self.basis(distances),
            message_factors(batch, factor),
            ops.cast(directions, states.dtype),
        )
        for message, update in zip(self.messages, self.updates, strict=True):
            states, vectors = message(states, batch, vectors, *geometry)
            states, vectors = update(states, vectors)
            yield states, vectors

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield the embedded elements and the node states after each step."""
        for states, _ in self._steps(batch):
            yield states

    def call(
        self, batch: Batch, return_vectors: bool = False, training: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the node states after T steps; optionally also the vectors."""
        for step in self._steps(batch):
            states, vectors = step
        return (states, vectors) if return_vectors else states

    def compute_output_shape(
        self, input_shape: BatchShape, return_vectors: bool = False
    ) -> Shape | tuple[Shape, Shape]:
        """Return [G, N, C], and [G, N, 3, C] with vectors."""
        states = super().compute_output_shape(input_shape)
        vectors = (*states[:-1], 3, states[-1])
        return (states, vectors) if return_vectors else states

    def compute_output_spec(
        self, batch: Batch, return_vectors: bool = False, training: bool = False
    ) -> Tensor:
        """Return symbolic outputs; Keras' default does not pass `return_vectors` on."""
        shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape), batch)
        output = self.compute_output_shape(shapes, return_vectors)
        output = output if return_vectors else (output,)
        specs = [keras.KerasTensor(shape, self.compute_dtype) for shape in output]
        return tuple(specs) if return_vectors else specs[0]

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            **self.cutoff_config(),
            "num_functions": self.basis.num_functions,
            "basis": self.basis_name,
            "epsilon": self.updates[0].epsilon,
        }
