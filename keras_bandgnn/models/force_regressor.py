"""`ForceRegressor`: an energy per graph, trained on forces too."""

import keras
from keras import ops

from keras_bandgnn.checks import positive_number, string
from keras_bandgnn.models.forces import (
    check_displacements,
    check_energy,
    energies_and_forces,
    force_loss,
)
from keras_bandgnn.models.graph_regressor import GraphRegressor, preprocessor_second


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ForceRegressor(GraphRegressor):
    """Predicts an energy per graph; learns from energies and forces.

        loss = MSE(E / std) + force_weight * MSE(F / std)

    with F_i = -dE/dr_i and `std` the normaliser's. Forces come from the gradient of the
    energy, so they are conservative and turn with the structure.

    Args:
        backbone: A backbone over geometry, such as `PaiNNBackbone`.
        num_targets: 1 or None, the energy.
        preprocessor: What turns graphs into batches, see `Task`.
        force_key: Node feature with the target forces, float [N, 3], energy units per
            angstrom; NaN where they are not known.
        force_weight: Weight of the forces in the loss.
        readout: See `GraphRegressor`; energies are sums by default.
        **kwargs: See `GraphRegressor`.

    Input shape:
        A batch with `batch["edge"]["displacement"]` and `batch["node"][force_key]`.

    Output shape:
        float32 [G, B, 1]. `predict` gives energies, `predict_forces` forces.

    Raises:
        ValueError: For more than one target, or graphs without forces.

    Reference:
        Schuett et al. 2017, Eq. 5; Schuett et al. 2021.

    Example:
    >>> import numpy as np
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(
    ...         2, [1, 0], [0, 1], label=(d - 1) ** 2,
    ...         node={
    ...             "atomic_number": [1, 1],
    ...             "force": [[2 * (d - 1), 0, 0], [-2 * (d - 1), 0, 0]],
    ...         },
    ...         edge={"displacement": [[d, 0, 0], [-d, 0, 0]]},
    ...     )
    ...     for d in (0.8, 1.0, 1.2)
    ... ]
    >>> backbone = kb.models.SchNetBackbone((1,), hidden_dim=8, num_gaussians=20)
    >>> task = kb.models.ForceRegressor(backbone)
    >>> history = task.fit(graphs, epochs=1, verbose=0)
    >>> task.predict_forces(graphs)[0].shape
    (2, 3)
    """

    splits_sequences = False
    loss_parts = 2

    @preprocessor_second
    def __init__(
        self,
        backbone,
        num_targets: int | None = 1,
        preprocessor=None,
        force_key: str = "force",
        force_weight: float = 10.0,
        readout="sum",
        **kwargs,
    ):
        self.force_key = string("force_key", force_key)
        self.force_weight = positive_number("force_weight", force_weight)
        super().__init__(backbone, num_targets, preprocessor, readout=readout, **kwargs)
        check_energy(self)

    def build(self, input_shape=None):
        """Build the metric of the forces, and the weights of the head."""
        self.force_mae = keras.metrics.Mean(name="force_mae")
        super().build(input_shape)

    def loss_terms(self, batch, y, y_pred, sample_weight, training) -> list:
        """Return the losses of energies and of forces, on the normalised scale."""
        y_pred, forces = energies_and_forces(self, batch, training)
        terms = super().loss_terms(batch, y, y_pred, sample_weight, training)
        target, mask = batch["node"][self.force_key], batch["node"]["mask"]
        weight = None
        if sample_weight is not None:
            # The weight of a graph is that of its forces, too.
            weight = ops.cast(sample_weight, forces.dtype)
            weight = ops.take_along_axis(weight, batch["node"]["graph_id"], axis=1)
        squares, absolute, known = force_loss(forces, target, mask, weight)
        self.force_mae.update_state(absolute, sample_weight=known)
        scale = 1.0
        if self.normalizer is not None:
            scale = ops.convert_to_tensor(self.normalizer.std)[0]
        return [*terms, (self.force_weight * squares / scale**2, known)]

    def check_labels(self, loader) -> None:
        """Raise a ValueError if energies or forces are missing."""
        super().check_labels(loader)
        check_displacements(loader)
        for part in loader.parts:
            forces = part.node.get(self.force_key)
            if forces is None or forces.shape[1:] != (3,):
                shape = None if forces is None else forces.shape
                raise ValueError(
                    f"Expected the node feature {self.force_key!r} with 3 numbers per "
                    f"node. Received: shape {shape}; features {sorted(part.node)}. "
                    f"Set ForceRegressor(..., force_key=...).{self.encoder_advice()}"
                )

    def head_config(self) -> dict:
        """Return the arguments beyond backbone and preprocessor."""
        own = {"force_key": self.force_key, "force_weight": self.force_weight}
        return {**super().head_config(), **own}
