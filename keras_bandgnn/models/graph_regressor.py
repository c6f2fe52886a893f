"""`GraphRegressor`: one or more numbers per graph."""

from collections.abc import Mapping

import keras
from keras import ops

from keras_bandgnn.checks import positive_int
from keras_bandgnn.layers.graph_readout import GraphReadout
from keras_bandgnn.models.readouts import head_arguments, make_head
from keras_bandgnn.models.task import Task
from keras_bandgnn.preprocessing.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.target_normalizer import TargetNormalizer
from keras_bandgnn.preprocessing.target_statistics import graph_labels


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphRegressor(Task):
    """Predicts D numbers per graph from the node states of any backbone.

    The output is `normalizer.denormalize(GraphReadout(states))`, in the units of the
    labels; so are the metrics. The loss sees labels and outputs divided by the
    normaliser's `std`. Labels that are NaN count nowhere.

    Args:
        backbone: The model from a batch to node states.
        preprocessor: What turns graphs into batches.
        num_targets: D.
        reduce: `"mean"`, `"sum"` or `"attention"` over the nodes, see `GraphReadout`.
            Take `"sum"` for labels that grow with the graph.
        hidden: Width of the readout's hidden layer; by default half the states'.
        activation: Activation of the readout's hidden layer.
        use_bias: Whether the readout has biases.
        normalizer: A `TargetNormalizer`; None for labels that are on a scale near 1
            already. `"auto"` has mode "graph" for means and "atom" for sums. One that
            is not adapted is adapted by `fit`, to the training graphs.
        readout: A layer such as `GRUReadout(64)` in the place of `reduce`, `hidden` and
            `activation`, see `ReadoutHead`; or the same names as for `reduce`.

    Input shape:
        `x`, a batch (see `keras_bandgnn.batch`).

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
    >>> task = GraphRegressor(backbone, reduce="sum")
    >>> history = task.fit(graphs, epochs=1, verbose=0)
    >>> task.predict(graphs)[0].shape
    (1,)
    """

    output_level = "graph"

    splits_sequences = True

    def __init__(
        self,
        backbone,
        preprocessor=None,
        num_targets: int = 1,
        reduce: str = "mean",
        hidden: int | None = None,
        activation="silu",
        use_bias: bool = True,
        normalizer: TargetNormalizer | Mapping | str | None = "auto",
        readout=None,
        **kwargs,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        # === Config ===
        self.num_targets = positive_int("num_targets", num_targets)
        # === Layers ===
        self.head = make_head(
            self.num_targets,
            reduce if readout is None else readout,
            hidden,
            activation,
            use_bias,
        )
        self.normalizer = self._normalizer(normalizer)
        self.build()
        self.compile()

    def _normalizer(self, given) -> TargetNormalizer | None:
        if isinstance(given, str) and given == "auto":
            sums = isinstance(self.head, GraphReadout) and self.head.reduce == "sum"
            mode = "atom" if sums else "graph"
            return TargetNormalizer(mode)
        if isinstance(given, Mapping):
            return TargetNormalizer.from_config(dict(given))
        if not isinstance(given, TargetNormalizer | None):
            raise ValueError(
                "Expected `normalizer` to be 'auto', a TargetNormalizer or None. "
                f"Received: normalizer={given!r}."
            )
        return given

    def build(self, input_shape=None):
        """Makes the weights of the head and the constants of the normaliser."""
        self.head.build((None, None, self.backbone.hidden_dim))
        targets = (None, None, self.num_targets)
        if self.normalizer is not None and not self.normalizer.built:
            self.normalizer.build(targets)
        elif self.normalizer is not None:
            self.normalizer.check_targets(self.num_targets)
        self.built = True

    def call(self, x, training=False):
        """Returns predictions [G, B, D] in the units of the labels."""
        values = self.head(self.backbone(x, training=training), x)
        if self.normalizer is None:
            return values
        return self.normalizer(values, x)

    def compile(self, optimizer="adam", loss="auto", weighted_metrics="auto", **kwargs):
        """Configures training; the defaults are those of Speckhard et al. 2025.

        Args:
            optimizer: `"adam"`: rate 1e-4, times 0.96 after each 100,000 steps; or
                what Keras takes.
            loss: Default: mean squared error over the labels that are there, on the
                normalised scale. A loss gets labels and outputs [n, 1], divided by
                the normaliser's `std`, and weights [n], 0 for padding and NaN; use
                `reduction="mean_with_sample_weight"`.
            weighted_metrics: Default: MAE and RMSE over the labels that are there, in
                their units. (Keras does not mask plain `metrics`.)
            **kwargs: Passed to `keras.Model.compile`.
        """
        if optimizer == "adam":
            rate = keras.optimizers.schedules.ExponentialDecay(
                1e-4, 100_000, 0.96, staircase=True
            )
            optimizer = keras.optimizers.Adam(rate)
        if loss == "auto":
            loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        if weighted_metrics == "auto":
            weighted_metrics = [
                keras.metrics.MeanAbsoluteError(name="mae"),
                keras.metrics.RootMeanSquaredError(name="rmse"),
            ]
        super().compile(
            optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs
        )

    def _entries(self, x, y, y_pred, sample_weight, scale=1.0):
        """Labels and outputs as [G * B * D, 1], with weights [G * B * D].

        Along axis 0 Keras weights each entry by itself, also where some targets of a
        graph are missing.
        """
        y = ops.reshape(ops.cast(y, y_pred.dtype), ops.shape(y_pred))
        weight = x["graph"]["mask"] if sample_weight is None else sample_weight
        weight = ops.expand_dims(ops.cast(weight, y_pred.dtype), -1)
        missing = ops.isnan(y)
        # 0 * NaN is NaN: a missing label must not reach the arithmetic at all.
        y = ops.where(missing, 0.0, y) / scale
        weight = ops.where(missing, 0.0, weight)
        y_pred = ops.reshape(y_pred / scale, (-1, 1))
        return ops.reshape(y, (-1, 1)), y_pred, ops.reshape(weight, (-1,))

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss on the normalised scale."""
        scale = 1.0
        if self.normalizer is not None:
            scale = ops.convert_to_tensor(self.normalizer.std)
        y, y_pred, weight = self._entries(x, y, y_pred, sample_weight, scale)
        return super().compute_loss(x, y, y_pred, weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The metrics in the units of the labels."""
        y, y_pred, weight = self._entries(x, y, y_pred, sample_weight)
        return super().compute_metrics(x, y, y_pred, weight)

    def check(self, loader: GraphLoader) -> None:
        """Raises a ValueError if graphs lack what the normaliser reads."""
        if self.normalizer is not None:
            for part in loader.parts:
                self.normalizer.check(part)

    def check_labels(self, loader: GraphLoader) -> None:
        """Raises a ValueError if the labels are not D numbers per graph."""
        for part in loader.parts:
            found = graph_labels(part).shape[1]
            if found != self.num_targets:
                raise ValueError(
                    f"Expected labels with {self.num_targets} numbers per graph, as "
                    f"num_targets={self.num_targets}. Received: {found}. Set "
                    "GraphRegressor(..., num_targets=...)."
                )

    def adapt(self, loader: GraphLoader) -> None:
        """Adapts the normaliser to the training graphs, once."""
        if self.normalizer is not None and not self.normalizer.is_adapted:
            self.normalizer.adapt(loader)

    def predict_forces(self, x) -> list:
        """Forces on the nodes: the negative gradient of the predicted energy.

        Args:
            x: Graphs whose edges have displacements, in any form that `fit` takes.

        Returns:
            For each graph, in the order of the graphs, float32 [N, 3]: the label's
            unit per angstrom, in the order of the graph's nodes.

        Raises:
            ValueError: For several targets, or edges without displacements.
        """
        from keras_bandgnn.models.forces import Forces, check_energy

        check_energy(self)
        if "_forces" not in self.__dict__:
            # Its weights are those of the task: Keras must not track them twice.
            self.__dict__["_forces"] = Forces(self)
        self._forces.preprocessor = self.preprocessor
        return self._forces.predict(x)

    def compute_output_shape(self, input_shape):
        """[G, B, D]."""
        return (*input_shape["graph"]["mask"], self.num_targets)

    @classmethod
    def head_overrides(cls, config: dict, overrides: dict) -> dict:
        """Arguments of a preset's task with some of them replaced."""
        made = super().head_overrides(config, overrides)
        scales = {"num_targets", "reduce"} & set(overrides)
        if scales and "normalizer" not in overrides and made["normalizer"]:
            # The constants are those of other targets.
            made["normalizer"] = "auto"
        return made

    def head_config(self) -> dict:
        """Returns the arguments of the head, with the normaliser's constants."""
        head = head_arguments(self.head)
        if isinstance(self.head, GraphReadout):
            # Files of version 0.1.0 have this name.
            head["reduce"] = head.pop("readout")
        normalizer = self.normalizer and self.normalizer.get_config()
        return {"num_targets": self.num_targets, **head, "normalizer": normalizer}
