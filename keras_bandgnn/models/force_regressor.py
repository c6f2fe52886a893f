"""`ForceRegressor`: an energy per graph, trained on forces and stresses too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn.checks import (
    boolean,
    non_negative_number,
    optional,
    positive_number,
    string,
)
from keras_bandgnn.layers.edge_geometry import (
    cell_volumes,
    forces_on_nodes,
    stresses_of_graphs,
)
from keras_bandgnn.models.forces import (
    RootMean,
    check_apart,
    check_displacements,
    check_energy,
    component_errors,
    energies_and_slopes,
)
from keras_bandgnn.models.graph_regressor import GraphRegressor

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Layer,
        RegressorOptions,
        Tensor,
        Values,
    )
    from keras_bandgnn.data.flat import FlatGraphs
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.loading.loader import Loader
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ForceRegressor(GraphRegressor):
    """Predicts an energy per graph; learns from energies, forces and stresses.

        loss = MSE(E / std) + force_weight * MSE(F / std) + stress_weight * MSE(S / std)

    with F_i = -dE/dr_i, S = dE/d(strain) / volume, and `std` the normaliser's. Forces
    and stresses come from the gradient of the energy, so they are conservative and turn
    with the structure. Each mean is over the components that are known: a graph without
    a stress counts in the other terms.

    Metrics are `mae` and `rmse` of energies, `force_mae` and `force_rmse`; with
    `stress_weight` `stress_mae` and `stress_rmse`; with `per_atom` `atom_mae` and
    `atom_rmse`, of energies divided by the number of atoms. They are in the units of
    the labels, such as eV, eV / Angstrom and eV / Angstrom^3, and ignore
    `sample_weight`, except `mae` and `rmse`.

    Args:
        backbone: A backbone over geometry, such as `PaiNNBackbone`.
        num_targets: 1, the energy.
        preprocessor: `GraphPreprocessor` for graphs, see `Task`.
        force_key: Node feature with the target forces, float [N, 3], energy units per
            angstrom; those named "force" may be NaN where they are not known.
        force_weight: Weight of the forces in the loss.
        readout: See `GraphRegressor`; energies are sums by default.
        stress_key: Context feature with the target stress, float [6], energy units per
            cubic angstrom: xx, yy, zz, yz, xz, xy, positive under tension, as in ASE;
            one named "stress" may be NaN where it is not known.
        stress_weight: Weight of the stresses in the loss; None if they are not trained.
        per_atom: Whether the loss of energies is that of E / N, with N the number of
            atoms, so that large structures do not outweigh small ones.
        **kwargs: See `GraphRegressor`.

    Input shape:
        A batch with `batch["edge"]["displacement"]` and `batch["node"][force_key]`;
        for stresses `batch["graph"]["cell"]` and `batch["graph"][stress_key]`.

    Output shape:
        float32 [G, B, 1]. `predict` gives energies, `predict_forces` forces,
        `predict_stress` stresses.

    Raises:
        ValueError: For more than one target, graphs without forces, or training graphs
            without a stress.

    Reference:
        Schuett et al. 2017, Eq. 5; Schuett et al. 2021. The stress is that of Knuth et
        al. 2015 for pairs of atoms.

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
    ...         context={
    ...             "cell": np.diag([4.0, 2.0, 2.0]),
    ...             "stress": [d * 2 * (d - 1) / 16, 0, 0, 0, 0, 0],
    ...         },
    ...     )
    ...     for d in (0.8, 1.0, 1.2)
    ... ]
    >>> backbone = kb.models.SchNetBackbone((1,), hidden_dim=8, num_gaussians=20)
    >>> task = kb.models.ForceRegressor(backbone, stress_weight=100.0)
    >>> history = task.fit(graphs, epochs=1, verbose=0)
    >>> task.predict_forces(graphs)[0].shape, task.predict_stress(graphs)[0].shape
    ((2, 3), (6,))
    """

    splits_sequences = False
    weightless = (
        *GraphRegressor.weightless,
        "force_key",
        "force_weight",
        "stress_key",
        "stress_weight",
    )

    def __init__(
        self,
        backbone: Backbone,
        num_targets: int = 1,
        preprocessor: GraphPreprocessor | None = None,
        *,
        force_key: str = "force",
        force_weight: float = 10.0,
        readout: str | Layer = "sum",
        stress_key: str = "stress",
        stress_weight: float | None = None,
        per_atom: bool = False,
        **kwargs: Unpack[RegressorOptions],
    ):
        self.force_key = string("force_key", force_key)
        self.force_weight = positive_number("force_weight", force_weight)
        self.stress_key = string("stress_key", stress_key)
        self.stress_weight = optional(positive_number, "stress_weight", stress_weight)
        self.per_atom = boolean("per_atom", per_atom)
        self.loss_parts = 2 if stress_weight is None else 3
        super().__init__(backbone, num_targets, preprocessor, readout=readout, **kwargs)
        check_energy(self)

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build the metrics of forces and stresses, and the weights of the head."""
        self.force_mae = keras.metrics.Mean(name="force_mae")
        self.force_rmse = RootMean(name="force_rmse")
        weights = [1.0, self.force_weight]
        if self.stress_weight is not None:
            self.stress_mae = keras.metrics.Mean(name="stress_mae")
            self.stress_rmse = RootMean(name="stress_rmse")
            weights.append(self.stress_weight)
        if self.per_atom:
            self.atom_mae = keras.metrics.Mean(name="atom_mae")
            self.atom_rmse = RootMean(name="atom_rmse")
        # A variable, which callbacks can change without another compilation.
        self.term_weights = self.add_weight(
            (len(weights),), "ones", dtype="float32", trainable=False, name="terms"
        )
        self.term_weights.assign(weights)
        super().build(input_shape)

    def save_own_variables(self, store: Values) -> None:
        """Omit the weights of the loss, which are arguments of the constructor."""

    def load_own_variables(self, store: Values) -> None:
        """See `save_own_variables`."""
        self._check_weights_once()

    def set_loss_weights(
        self,
        energy: float | None = None,
        force: float | None = None,
        stress: float | None = None,
    ) -> None:
        """Change the weights of the loss, without another compilation.

        They are not saved; see `training.LossWeightScheduler`.

        Args:
            energy: Weight of the energies, 1 at first; None to leave it.
            force: Weight of the forces, `force_weight` at first; None to leave it.
            stress: Weight of the stresses, `stress_weight` at first; None to leave it.

        Raises:
            ValueError: For negative weights, or a weight of stresses for a task without
                `stress_weight`.
        """
        weights = ops.convert_to_numpy(self.term_weights).copy()
        names = {"energy": energy, "force": force, "stress": stress}
        for place, (name, weight) in enumerate(names.items()):
            if weight is None:
                continue
            if place == len(weights):
                raise ValueError(
                    "Expected `stress` for a task that trains on stresses. Received: "
                    f"stress={weight!r}. Set ForceRegressor(..., stress_weight=...)."
                )
            weights[place] = non_negative_number(name, weight)
        self.term_weights.assign(weights)

    def loss_terms(
        self,
        batch: Batch,
        y: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor | None,
        training: bool,
    ) -> list:
        """Return the losses of energies, forces and stresses, on the normal scale."""
        y_pred, slopes = energies_and_slopes(self, batch, training)
        weights = ops.convert_to_tensor(self.term_weights)
        if self.per_atom:
            y, y_pred = self._per_atom(batch, y, y_pred)
        ((loss, count),) = super().loss_terms(batch, y, y_pred, sample_weight, training)
        scale = 1.0
        if self.normalizer is not None:
            scale = ops.convert_to_tensor(self.normalizer.std)[0]
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, slopes.dtype)
        forces = self._force_errors(batch, slopes, sample_weight)
        terms = [
            (weights[0] * loss, count),
            (weights[1] * forces.loss / scale**2, forces.count),
        ]
        if self.stress_weight is not None:
            stresses = self._stress_errors(batch, slopes, sample_weight)
            terms.append((weights[2] * stresses.loss / scale**2, stresses.count))
        return terms

    def _per_atom(self, batch, y, y_pred):
        """Return labels and energies divided by the number of atoms."""
        atoms = ops.cast(batch["graph"]["n_node"], y_pred.dtype)
        atoms = ops.expand_dims(ops.maximum(atoms, 1.0), -1)
        y = ops.reshape(ops.cast(y, y_pred.dtype), ops.shape(y_pred)) / atoms
        y_pred = y_pred / atoms
        errors = component_errors(y_pred, y, batch["graph"]["mask"])
        self.atom_mae.update_state(errors.absolute, sample_weight=errors.count)
        self.atom_rmse.update_state(errors.squares, sample_weight=errors.count)
        return y, y_pred

    def _force_errors(self, batch, slopes, weight):
        node = batch["node"]
        forces = forces_on_nodes(slopes, batch["edge"], ops.shape(node["mask"])[1])
        if weight is not None:
            # The weight of a graph applies to its forces, too.
            weight = ops.take_along_axis(weight, node["graph_id"], axis=1)
        errors = component_errors(forces, node[self.force_key], node["mask"], weight)
        self.force_mae.update_state(errors.absolute, sample_weight=errors.count)
        self.force_rmse.update_state(errors.squares, sample_weight=errors.count)
        return errors

    def _stress_errors(self, batch, slopes, weight):
        graph = batch["graph"]
        mask = ops.convert_to_tensor(graph["mask"])
        if self.stress_key in graph and "cell" in graph:
            stress, volume = stresses_of_graphs(slopes, batch)
            target = graph[self.stress_key]
            mask = ops.logical_and(mask, volume > 0)
        else:
            # Validation graphs may have no stress at all.
            target = stress = ops.zeros((*ops.shape(mask), 6), slopes.dtype)
            mask = ops.zeros_like(mask)
        errors = component_errors(stress, target, mask, weight)
        self.stress_mae.update_state(errors.absolute, sample_weight=errors.count)
        self.stress_rmse.update_state(errors.squares, sample_weight=errors.count)
        return errors

    def adapt(self, loader: Loader) -> None:
        """Adapt to the training graphs; see `RegressionTask.adapt`.

        Raises:
            ValueError: If none has a stress, and `stress_weight` is set.
        """
        if self.stress_weight is not None:
            stresses = [part.context.get(self.stress_key) for part in loader.parts]
            if all(stress is None or np.isnan(stress).all() for stress in stresses):
                names = sorted({name for part in loader.parts for name in part.context})
                raise ValueError(
                    "Expected training graphs with the context feature "
                    f"{self.stress_key!r}, for stress_weight={self.stress_weight:g}. "
                    f"Received: no stress in {int(loader.starts[-1])} graphs; context "
                    f"features {names}. Set ForceRegressor(..., stress_key=...), or "
                    "stress_weight=None. To read stresses of files, pass "
                    "read_structures(..., stress=True)."
                )
        super().adapt(loader)

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if, for example, two atoms coincide."""
        super().check(loader)
        for part in loader.parts:
            if "displacement" in part.edge:
                check_apart(part)

    def check_labels(self, loader: Loader) -> None:
        """Raise a ValueError if labels are missing or have another shape."""
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
            if self.stress_weight is not None and self.stress_key in part.context:
                self._check_stress(part)

    def known_slopes(self, part: FlatGraphs) -> int:
        """Return the number of known components of forces and stresses."""
        labels = [part.node.get(self.force_key)]
        if self.stress_weight is not None:
            labels.append(part.context.get(self.stress_key))
        return sum(np.isfinite(label).sum() for label in labels if label is not None)

    def _check_stress(self, part) -> None:
        stress = part.context[self.stress_key]
        if stress.shape[1:] != (6,):
            raise ValueError(
                f"Expected the context feature {self.stress_key!r} with 6 numbers per "
                "graph: xx, yy, zz, yz, xz, xy. Received: shape "
                f"{stress.shape[1:]} per graph. Take these entries of a matrix."
            )
        has_stress = ~np.isnan(stress).all(axis=1)
        cell = part.context.get("cell", np.zeros((len(part), 3, 3), np.float32))
        flat = ops.convert_to_numpy(cell_volumes(np.float32(cell))) == 0
        if (has_stress & flat).any():
            at = int(np.flatnonzero(has_stress & flat)[0])
            raise ValueError(
                "Expected graphs with a stress to have three independent cell vectors "
                f"in context['cell']. Received: {cell[at].tolist()} in graph {at}. "
                "Set its stress to NaN."
            )

    def head_config(self) -> dict:
        """Return the arguments beyond backbone and preprocessor."""
        names = "force_key force_weight stress_key stress_weight per_atom".split()
        return {
            **super().head_config(),
            **{name: getattr(self, name) for name in names},
        }
