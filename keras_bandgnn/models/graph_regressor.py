"""`GraphRegressor`: one or more numbers per graph."""

import functools
from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_bandgnn import compat
from keras_bandgnn.checks import one_of, positive_int
from keras_bandgnn.layers.graph_readout import REDUCTIONS, GraphReadout
from keras_bandgnn.layers.readout_head import head_arguments, make_head
from keras_bandgnn.layers.target_normalizer import TargetNormalizer, graph_labels
from keras_bandgnn.models.labels import NumberLabels
from keras_bandgnn.models.task import Task
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor

# With room for errors twice as large as the labels.
_MOST_SQUARES = float(np.finfo(np.float32).max) / 4


def preprocessor_second(init):
    """Let a constructor take `(backbone, preprocessor, num_targets=...)`, too.

    Version 0.1.0 had this order. Here, the second argument is `num_targets`.
    """

    @functools.wraps(init)
    def wrapper(self, backbone, *args, **kwargs):
        if len(args) == 1 and "num_targets" in kwargs:
            (second,) = args
            if second is None or isinstance(second, GraphPreprocessor):
                args = ()
                kwargs.setdefault("preprocessor", second)
        init(self, backbone, *args, **kwargs)

    return wrapper


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphRegressor(Task):
    """Predicts D numbers per graph from the node states of any backbone.

    The output is `normalizer.denormalize(GraphReadout(states))`, in the units of the
    labels; so are the metrics. The loss sees labels and outputs divided by the
    normaliser's `std`. Labels that are NaN are ignored.

    Args:
        backbone: The model from a batch to node states.
        num_targets: D; None is 1.
        preprocessor: What turns graphs into batches, see `Task`.
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
        reduce: Another name of `readout`, as in version 0.1.0.
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

    @preprocessor_second
    def __init__(
        self,
        backbone,
        num_targets: int | None = 1,
        preprocessor=None,
        readout="mean",
        hidden: int | None = None,
        activation="silu",
        use_bias: bool = True,
        normalizer: TargetNormalizer | Mapping | str | None = "auto",
        reduce: str | None = None,
        **kwargs,
    ):
        if num_targets is None or isinstance(num_targets, GraphPreprocessor):
            # The order of version 0.1.0: (backbone, preprocessor, num_targets).
            swapped = 1 if preprocessor is None else preprocessor
            num_targets, preprocessor = swapped, num_targets
        super().__init__(backbone, preprocessor, **kwargs)
        # === Config ===
        self.num_targets = positive_int("num_targets", num_targets)
        self.labels = NumberLabels(self.num_targets)
        if reduce is not None:
            readout = one_of("reduce", reduce, REDUCTIONS)
        # === Layers ===
        self.head = make_head(self.num_targets, readout, hidden, activation, use_bias)
        self.normalizer = self._normalizer(normalizer)
        self.build_and_compile()

    def _normalizer(self, normalizer) -> TargetNormalizer | None:
        if isinstance(normalizer, str) and normalizer == "auto":
            sums = isinstance(self.head, GraphReadout) and self.head.reduce == "sum"
            mode = "atom" if sums else "graph"
            return TargetNormalizer(mode)
        if isinstance(normalizer, Mapping):
            return TargetNormalizer.from_config(dict(normalizer))
        if not isinstance(normalizer, TargetNormalizer | None):
            raise ValueError(
                "Expected `normalizer` to be 'auto', a TargetNormalizer or None. "
                f"Received: normalizer={normalizer!r}."
            )
        return normalizer

    def build(self, input_shape=None):
        """Build the weights of the head and the constants of the normaliser."""
        self.head.build((None, None, self.backbone.hidden_dim))
        targets = (None, None, self.num_targets)
        if self.normalizer is not None and not self.normalizer.built:
            self.normalizer.build(targets)
        elif self.normalizer is not None:
            self.normalizer.check_targets(self.num_targets)
        self.built = True

    def call(self, batch, training=False):
        """Return predictions [G, B, D] in the units of the labels."""
        values = self.head(self.backbone(batch, training=training), batch)
        if self.normalizer is None:
            return values
        return self.normalizer(values, batch)

    def default_optimizer(self):
        """That of Speckhard et al. 2025: Adam, 1e-4 times 0.96 each 100,000 steps."""
        rate = keras.optimizers.schedules.ExponentialDecay(
            1e-4, 100_000, 0.96, staircase=True
        )
        return keras.optimizers.Adam(rate)

    def default_loss(self):
        """Mean squared error over the labels that are there, on the normal scale."""
        return keras.losses.MeanSquaredError()

    def default_metrics(self) -> list:
        """MAE and RMSE over the labels that are there, in their units."""
        return [
            keras.metrics.MeanAbsoluteError(name="mae"),
            keras.metrics.RootMeanSquaredError(name="rmse"),
        ]

    def loss_scale(self, y, y_pred):
        """Divide by the normaliser's `std`; metrics are in the units of the labels."""
        if self.normalizer is None:
            return y, y_pred
        scale = ops.convert_to_tensor(self.normalizer.std)
        y = ops.reshape(ops.cast(y, y_pred.dtype), ops.shape(y_pred))
        return y / scale, y_pred / scale

    def check(self, loader: GraphLoader) -> None:
        """Raise a ValueError if graphs lack what the normaliser reads."""
        if self.normalizer is not None:
            for part in loader.parts:
                self.normalizer.check(part)

    def check_labels(self, loader: GraphLoader) -> None:
        """Raise a ValueError if the labels are not D numbers per graph."""
        for part in loader.parts:
            labels = graph_labels(part)
            width = labels.shape[1]
            if width != self.num_targets:
                raise ValueError(
                    f"Expected labels with {self.num_targets} numbers per graph, as "
                    f"num_targets={self.num_targets}. Received: {width}. Set "
                    "GraphRegressor(..., num_targets=...)."
                )
            if np.nansum(np.square(labels)) > _MOST_SQUARES:
                raise ValueError(
                    "Expected labels whose squares add up to a float32, as losses and "
                    "metrics need them. Received: a label of size "
                    f"{np.nanmax(np.abs(labels)):g}. Give them in a larger unit."
                )

    def adapt(self, loader: GraphLoader) -> None:
        """Adapt the backbone and the normaliser to the training graphs, once."""
        super().adapt(loader)
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
        from keras_bandgnn.models.forces import ForceModel, check_energy

        check_energy(self)
        derived = compat.derived(self)
        if "forces" not in derived:
            derived["forces"] = ForceModel(self)
        derived["forces"].preprocessor = self.preprocessor
        return derived["forces"].predict(x)

    def compute_output_shape(self, input_shape):
        """[G, B, D]."""
        return (*input_shape["graph"]["mask"], self.num_targets)

    @classmethod
    def head_overrides(cls, config: dict, overrides: dict) -> dict:
        """Return arguments of a preset's task with some of them replaced."""
        # Version 0.1.0 wrote "reduce".
        config, overrides = (
            {"readout" if name == "reduce" else name: args[name] for name in args}
            for args in (config, overrides)
        )
        head = super().head_overrides(config, overrides)
        scales = {"num_targets", "readout"} & set(overrides)
        if scales and "normalizer" not in overrides and head["normalizer"]:
            # The constants are those of other targets.
            head["normalizer"] = "auto"
        return head

    def head_config(self) -> dict:
        """Return the arguments of the head, with the normaliser's constants."""
        normalizer = self.normalizer and self.normalizer.get_config()
        return {
            "num_targets": self.num_targets,
            **head_arguments(self.head),
            "normalizer": normalizer,
        }
