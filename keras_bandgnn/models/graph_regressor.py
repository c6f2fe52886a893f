"""`GraphRegressor`: one or more numbers per graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn.checks import boolean
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import EDGE_COLUMNS, level_of
from keras_bandgnn.layers.graph_readout import GraphReadout
from keras_bandgnn.layers.readout_head import head_arguments, make_head
from keras_bandgnn.layers.target_normalizer import TargetNormalizer, target_labels
from keras_bandgnn.layers.zbl_repulsion import COVALENT_RADII, ZBLRepulsion
from keras_bandgnn.models.atomistic_backbone import AtomisticBackbone
from keras_bandgnn.models.regression_task import RegressionTask, as_normalizer
from keras_bandgnn.preprocessing.geometry.geometry_layers import (
    KNearestGraph,
    RadiusGraph,
)
from keras_bandgnn.preprocessing.loading.loader import Loader

if TYPE_CHECKING:
    import ase.calculators.calculator

    from keras_bandgnn.aliases import (
        Activation,
        Batch,
        Data,
        Layer,
        Optimizer,
        TaskOptions,
        Tensor,
    )
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphRegressor(RegressionTask):
    """Predicts D numbers per graph from the node states of any backbone.

    The output is `normalizer.denormalize(GraphReadout(states))`, in the units of the
    labels; so are the metrics. The loss sees labels and outputs divided by the
    normaliser's `std`. Labels that are NaN are ignored.

    Args:
        backbone: The model from a batch to node states.
        num_targets: D.
        preprocessor: `GraphPreprocessor` for graphs, see `Task`.
        readout: `"mean"`, `"sum"` or `"attention"` over the nodes, see `GraphReadout`;
            or a layer such as `GRUReadout(64)`, see `ReadoutHead`. Take `"sum"` for
            labels that grow with the graph.
        hidden: Width of the hidden layer of a readout by name; by default half the
            states'.
        activation: Activation of that layer.
        use_bias: Whether the readout has biases.
        normalizer: A `TargetNormalizer`; None for labels that are on a scale near 1
            already. `"auto"` has mode "graph" for means and "atom" for sums. One that
            is not adapted is adapted by `fit`, to the training graphs.
        target_names: Names of the targets, by which `compile` takes losses, weights and
            metrics of their own; they are saved with the task.
        zbl: Whether to add the energy of `ZBLRepulsion`, so that atoms repel each other
            at distances that the training graphs do not have. For one target, an energy
            in eV, over an atomistic backbone with edges both ways. The rest is learnt,
            and the normaliser adapted to it.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`).

    Output shape:
        float32 [G, B, D]. `predict(graphs)` gives one array [D] per graph.

    Raises:
        ValueError: For arguments that do not fit; from `fit` and `evaluate` for
            missing labels, labels of nodes or another number of targets.

    Reference:
        Speckhard et al. 2025: readout, standardised labels and optimiser.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=2.0 * n)
    ...     for n in (1, 2, 3, 4)
    ... ]
    >>> backbone = kb.models.GGNNBackbone(
    ...     {"kind": 2}, hidden_dim=8, num_steps=1, num_edge_types=1
    ... )
    >>> task = GraphRegressor(backbone, readout="sum")
    >>> history = task.fit(graphs, epochs=1, verbose=0)
    >>> task.predict(graphs)[0].shape
    (1,)
    """

    output_level = "graph"

    splits_sequences = True

    def __init__(
        self,
        backbone: Backbone,
        num_targets: int = 1,
        preprocessor: GraphPreprocessor | None = None,
        *,
        readout: str | Layer = "mean",
        hidden: int | None = None,
        activation: Activation = "silu",
        use_bias: bool = True,
        normalizer: TargetNormalizer | Mapping | str | None = "auto",
        target_names: Iterable[str] | None = None,
        zbl: bool = False,
        **kwargs: Unpack[TaskOptions],
    ):
        super().__init__(backbone, num_targets, preprocessor, target_names, **kwargs)
        # === Config ===
        self.zbl = boolean("zbl", zbl)
        if self.zbl and not (
            self.num_targets == 1 and isinstance(backbone, AtomisticBackbone)
        ):
            raise ValueError(
                "Expected `zbl` with one target, an energy in eV, over a backbone of "
                f"atoms, such as PaiNNBackbone. Received: num_targets="
                f"{self.num_targets}, backbone={type(backbone).__name__}."
            )
        # === Layers ===
        self.repulsion = ZBLRepulsion(name="repulsion") if self.zbl else None
        self.head = make_head(self.num_targets, readout, hidden, activation, use_bias)
        sums = isinstance(self.head, GraphReadout) and self.head.reduce == "sum"
        self.normalizer = as_normalizer(normalizer, "atom" if sums else "graph")
        self.build_and_compile()

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return predictions [G, B, D] in the units of the labels."""
        values = self.head(*self.backbone.readout_inputs(batch, training))
        return self.denormalized(values, batch)

    def learnt(self, values: Tensor, batch: Batch) -> Tensor:
        """Return outputs of the head without the constants of the normaliser."""
        if self.normalizer is not None:
            values = values * ops.convert_to_tensor(self.normalizer.std)
        return values if self.repulsion is None else values + self.repulsion(batch)

    def denormalized(self, values: Tensor, batch: Batch) -> Tensor:
        """Return outputs of the head in the units of the labels, with repulsion."""
        values = super().denormalized(values, batch)
        return values if self.repulsion is None else values + self.repulsion(batch)

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if graphs lack inputs of the task."""
        super().check(loader)
        if self.repulsion is None:
            return
        elements = [np.unique(part.node["atomic_number"]) for part in loader.parts]
        elements = np.unique(np.concatenate(elements))
        last = len(COVALENT_RADII)
        if elements.size and not 1 <= elements[0] <= elements[-1] <= last:
            raise ValueError(
                f"Expected elements from 1 to {last} for zbl=True, as others have no "
                f"radius. Received: {elements.tolist()}."
            )
        reach = np.array([2 * COVALENT_RADII[z - 1] for z in elements])
        layers = self.preprocessor.graph_layers if self.preprocessor else ()
        for layer in layers:
            one_way = getattr(layer, "max_neighbours", None) is not None
            if one_way or isinstance(layer, KNearestGraph):
                raise ValueError(
                    "Expected edges both ways for zbl=True, as RadiusGraph(cutoff) "
                    f"makes them. Received: {type(layer).__name__}, which keeps some "
                    "neighbours. Leave max_neighbours out."
                )
            if not isinstance(layer, RadiusGraph):
                continue
            short = np.flatnonzero(layer.reach(elements) < reach)
            if len(short):
                at = short[np.argmax(reach[short])]
                raise ValueError(
                    f"Expected RadiusGraph with a cutoff of at least {reach[at]:.2f} "
                    f"Angstrom for zbl=True, twice the covalent radius of element "
                    f"{elements[at]}, so that energies are smooth. Received: "
                    f"cutoff={layer.reach(elements)[at]:g}."
                )

    def learnt_labels(self, loader: Loader) -> list[FlatGraphs]:
        """Return the graphs with the labels to which the normaliser is adapted."""
        if self.repulsion is None:
            return loader
        parts = []
        for part in loader.parts:
            columns = {k: v for k, v in part.columns().items() if level_of(k) != "edge"}
            columns |= dict.fromkeys(EDGE_COLUMNS, np.zeros(0, np.int32))
            columns["num_edges"] = np.zeros(len(part), np.int32)
            labels = target_labels(part, "graph")
            labels = labels - self.repulsion.energies_of(part)[:, None]
            columns["label/graph"] = labels.astype(np.float32)
            parts.append(FlatGraphs.from_columns(columns, part.info))
        return FlatGraphs.concatenate(parts)

    def default_optimizer(self) -> Optimizer:
        """Return Adam, 1e-4 times 0.96 per 100,000 steps, as Speckhard et al. 2025."""
        rate = keras.optimizers.schedules.ExponentialDecay(
            1e-4, 100_000, 0.96, staircase=True
        )
        return keras.optimizers.Adam(rate)

    def predict_forces(self, x: Data) -> list:
        """Predict forces on the nodes: the negative gradient of the predicted energy.

        Args:
            x: Graphs whose edges have displacements, in any form that `fit` takes.

        Returns:
            For each graph, in the order of the graphs, float32 [N, 3]: the label's
            unit per angstrom, in the order of the graph's nodes.

        Raises:
            ValueError: For several targets, or edges without displacements.
        """
        from keras_bandgnn.models.forces import check_energy, force_program

        check_energy(self)
        return force_program(self).predict(x)

    def predict_stress(self, x: Data) -> list:
        """Predict stresses: the strain derivative of the energy over the volume.

        Args:
            x: Graphs whose edges have displacements and which have
                `context["cell"]`, in any form that `fit` takes.

        Returns:
            For each graph, in their order, float32 [6]: xx, yy, zz, yz, xz, xy, the
            label's unit per cubic angstrom, positive under tension, as in ASE. NaN for
            cells without a volume.

        Raises:
            ValueError: For several targets, graphs without cells, or edges without
                displacements.
        """
        from keras_bandgnn.models.forces import check_energy, stress_program

        check_energy(self)
        return stress_program(self).predict(x)

    def as_calculator(self, skin: float = 0.5) -> ase.calculators.calculator.Calculator:
        """Return an ASE calculator, for molecular dynamics, relaxation and stresses.

        It has the properties "energy", "free_energy", "forces" and, for cells with a
        volume, "stress", in the units of ASE, if the labels are in eV; and "energies"
        of the atoms, which add up to "energy", for sums over atoms. Positions may be
        periodic along any of the cell vectors. All steps of a run share one compiled
        program; `stats` counts evaluations, neighbour_rebuilds and compilations, and
        has the edge_capacity of the program.

        Args:
            skin: Neighbours are found again when an atom has moved by more than half
                of it, Angstrom. It changes no result, only the time. Of use with
                `RadiusGraph`: other layers find neighbours at each step.

        Returns:
            An `ase.calculators.calculator.Calculator`.

        Raises:
            ValueError: For several targets, or a preprocessor with other layers than
                one that finds neighbours. From the calculator, before it computes: for
                elements that the task does not know, no atoms, positions that are not
                finite or coincide, and periodic directions without a cell vector.
            ImportError: Without ASE, `pip install "keras-bandgnn[chem]"`.

        Example:
        >>> import ase, keras_bandgnn as kb  # doctest: +SKIP
        >>> backbone = kb.models.PaiNNBackbone((1, 8), 16)  # doctest: +SKIP
        >>> pair = ase.Atoms("HH", [[0, 0, 0], [0.8, 0, 0]])  # doctest: +SKIP
        >>> pair.calc = GraphRegressor(backbone).as_calculator()  # doctest: +SKIP
        >>> pair.get_forces().shape  # doctest: +SKIP
        (2, 3)
        """
        from keras_bandgnn.models.calculator import make_calculator

        return make_calculator(self, skin)

    @classmethod
    def head_overrides(cls, config: dict, overrides: dict) -> dict:
        """Return arguments of a preset's task with some of them replaced."""
        # In some of the library's presets the readout is "reduce".
        config = {"readout" if k == "reduce" else k: v for k, v in config.items()}
        # Presets contain it only if it is set.
        head = super().head_overrides({"zbl": False, **config}, overrides)
        changed = "zbl" in overrides and head["zbl"] != config.get("zbl", False)
        if changed and "normalizer" not in overrides and head["normalizer"]:
            # The constants of the preset belong to other energies.
            head["normalizer"] = "auto"
        if not head["zbl"]:
            del head["zbl"]
        return head

    def head_config(self) -> dict:
        """Return the arguments of the head, with the normaliser's constants."""
        config = {**super().head_config(), **head_arguments(self.head)}
        return config | {"zbl": True} if self.zbl else config
