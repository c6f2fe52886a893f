"""`BugLocalizer`: whether a function has a wrong variable, where, and the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import (
    fraction,
    mapping,
    number,
    optional,
    positive_int,
    positive_number,
    refuse,
    sequence,
)
from keras_bandgnn.layers.batch_layer import target_edges
from keras_bandgnn.layers.edge_readout import EdgeReadout
from keras_bandgnn.models.label_checks import require_label_level
from keras_bandgnn.models.labels import Labels
from keras_bandgnn.models.masked_task import MaskedTask
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.training.edge_choice import ChoiceAccuracy, ChoiceCrossentropy

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Data,
        Loss,
        Optimizer,
        PredictOptions,
        Shape,
        TaskOptions,
        Tensor,
    )
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor

_LEAST = -1e9


def _calibration(name: str, value: Sequence[float]) -> list[float]:
    pair = sequence(name, value, "a temperature and a number")
    if len(pair) != 2:
        refuse(name, "a temperature and a number", value)
    return [positive_number(f"{name}[0]", pair[0]), number(f"{name}[1]", pair[1])]


class ChoiceLabels(Labels):
    """One edge of each graph is right; outputs are its log-probability and the best."""

    crossentropy = "choice_crossentropy"
    description = "labels of edges, 1 for the right one of each graph and 0 for others"
    loss_line = '"auto"'
    metric_line = '"auto"'
    metric_names = {"acc": "choice_accuracy", "accuracy": "choice_accuracy"}

    def entries(self, y, y_pred, weight):
        """See `Labels`; other edges than the right ones have no weight."""
        y = ops.reshape(ops.cast(y, y_pred.dtype), (-1, 1))
        weight = ops.reshape(ops.cast(weight, y_pred.dtype), (-1,))
        weight = ops.where(y[:, 0] == 1, weight, 0.0)
        return y, ops.reshape(y_pred, (-1, 2)), weight

    def adapter(self, item, name):
        """See `Labels`; nothing of Keras fits."""
        del item
        return (lambda y, p: (y, p)) if name is None else None


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class BugLocalizer(MaskedTask):
    """Chooses one of the rewrites of each function, or none.

    No change is an edge of type `first_type`, from a function to itself. A rewrite is
    an edge of the next type, from a variable to the usage where it would stand. See
    `programs.encode_function`, which makes such graphs. With f an `EdgeReadout`:

        log p(v, u) = log_softmax over the rewrites of a graph of f(h_v, h_u, type)

    The wrong usage and its repair are chosen together, in one pass for all usages.

    Args:
        backbone: The model from a batch to node states; one that keeps the edges of the
            graphs, or a graph transformer with `target_type`.
        preprocessor: `GraphPreprocessor`, whose first layer may be a `FunctionEncoder`.
        first_type: First type, from 0, of the edges to choose from, which are those of
            this type and of later ones; by default the backbone's `target_type`, or the
            last but one of its types. They are the types of the encoder, also where
            `AttentionEdges` counts them from 1.
        hidden: Width of the hidden layer of the head; by default the states'.
        edge_inputs: Features of edges that the head reads beside the type, as `inputs`
            of `EdgeReadout`, such as `FunctionEncoder.edge_inputs()`.
        calibration: Temperature T, and b, which is added to the score of no change,
            for `rewrite_probabilities`: see `calibrated`. None for those of `predict`.
            With it, probabilities are small: choose `min_confidence`, too.
        min_confidence: Probability of a rewrite from which `bandgnn check` reports it,
            if not told otherwise.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`). Labels of edges are 1 for the right one of
        each graph and 0 for all others.

    Output shape:
        float32 [G, E, 2]: log p of the edge, -1e9 for edges that are no rewrites, and
        the largest log p of its graph. `predict(graphs)` returns one array [E, 2] per
        graph, in the caller's order of the edges; over a graph transformer edges below
        `target_type` are NaN. Functions have no order of their edges, and their rows
        are sorted by receiver, those of target edges alone over a graph transformer.

    Raises:
        ValueError: For arguments that do not fit; from `fit` and `evaluate` for graphs
            without labels or with several right edges.

    Reference:
        Vasic et al., "Neural Program Repair by Jointly Learning to Localize and
        Repair", ICLR 2019, Eq. 3 to 5, with one distribution over pairs instead of two
        over tokens.

    Example:
    >>> import keras_bandgnn as kb
    >>> from keras_bandgnn.programs import function_graph
    >>> encoder = kb.preprocessing.FunctionEncoder(num_subtoken_buckets=64)
    >>> backbone = kb.models.GGNNBackbone(
    ...     encoder.inputs(), hidden_dim=8, num_steps=2,
    ...     num_edge_types=encoder.num_edge_types,
    ... )
    >>> task = BugLocalizer(backbone, kb.preprocessing.GraphPreprocessor([encoder]))
    >>> function = function_graph("def f(a, b): return a - b").repaired_by(-1)
    >>> history = task.fit([function] * 4, epochs=1, verbose=0)
    >>> len(task.rewrite_probabilities([function])[0])
    3
    """

    output_level = "edge"
    labels = ChoiceLabels()
    # Devices that share a supergraph number the edges anew.
    splits_sequences = False
    weightless = ("calibration", "min_confidence")

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: GraphPreprocessor | None = None,
        *,
        first_type: int | None = None,
        hidden: int | None = None,
        edge_inputs: Mapping | None = None,
        calibration: Sequence[float] | None = None,
        min_confidence: float = 0.9,
        **kwargs: Unpack[TaskOptions],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        # === Config ===
        types = getattr(backbone, "num_edge_types", None)
        if first_type is None:
            first_type = backbone.target_type
        if first_type is None:
            if types is None:
                raise ValueError(
                    "Expected `first_type` for a backbone without types of edges. "
                    f"Received: {type(backbone).__name__}, first_type=None."
                )
            first_type = types - 2
        self.first_type = positive_int("first_type", first_type, 0)
        self.hidden = optional(positive_int, "hidden", hidden)
        self.edge_inputs = dict(optional(mapping, "edge_inputs", edge_inputs) or {})
        self.calibration = calibration
        self.min_confidence = fraction("min_confidence", min_confidence)
        # === Layers ===
        self.head = EdgeReadout(
            1,
            {"type": self.first_type + 2, **self.edge_inputs},
            hidden,
            dtype="float32",
            name="head",
        )
        self.build_and_compile()

    @property
    def calibration(self) -> list[float] | None:
        """(T, b) of `calibrated`, which may be set; None without."""
        return self._calibration

    @calibration.setter
    def calibration(self, value: Sequence[float] | None) -> None:
        self._calibration = optional(_calibration, "calibration", value)

    @classmethod
    def head_overrides(cls, config: dict, overrides: dict) -> dict:
        """See `Task.head_overrides`; older presets lack some of the arguments."""
        missing = {"edge_inputs": None, "calibration": None}
        return super().head_overrides({**missing, **config}, overrides)

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build the weights of the head."""
        self.head.build((None, None, self.backbone.hidden_dim))
        self.built = True

    def call(self, batch: Batch, training: bool = False) -> dict[str, Tensor]:
        """Return log-probabilities, and the largest of the graph."""
        states = self.backbone(batch, training=training)
        scores = ops.squeeze(self.head(states, batch), -1)
        edge = target_edges(batch["edge"])
        real = ops.convert_to_tensor(edge["mask"])
        is_rewrite = ops.logical_and(edge["type"] >= self.first_type, real)
        graphs = GraphSegments(batch)
        last = ops.shape(states)[1] - 1
        ids = graph_ops.batched_gather(graphs.slot, ops.minimum(edge["receiver"], last))
        count = graphs.num_graphs
        scores = ops.where(is_rewrite, scores, _LEAST)
        segments = ops.where(is_rewrite, ids, count)
        largest = graph_ops.batched_segment_max(
            ops.stop_gradient(scores), segments, count
        )
        # A graph of padding has no rewrites.
        largest = ops.maximum(largest, _LEAST)
        # At most 0, without a minimum: at a tie some backends halve its gradient.
        shifted = scores - graph_ops.batched_gather(largest, ids)
        shares = ops.where(is_rewrite, ops.exp(shifted), 0.0)
        total = graph_ops.batched_segment_sum(shares, segments, count)
        total = graph_ops.batched_gather(ops.log(ops.maximum(total, 1e-30)), ids)
        log_shares = ops.where(is_rewrite, shifted - total, _LEAST)
        return ops.stack([log_shares, -total], axis=-1)

    def default_optimizer(self) -> Optimizer:
        """Return Adam with rate 1e-3."""
        return keras.optimizers.Adam(1e-3)

    def default_loss(self) -> Loss:
        """Return the cross-entropy of the right edge."""
        return ChoiceCrossentropy()

    def default_metrics(self) -> list:
        """Return how often the right edge is the most probable one."""
        return [ChoiceAccuracy()]

    def rewrite_probabilities(
        self, functions: Data, **kwargs: Unpack[PredictOptions]
    ) -> list:
        """Return the probability of each rewrite and of no change, `calibrated`.

        Args:
            functions: Functions or graphs, in any form that `fit` takes.
            **kwargs: Passed to `predict`.

        Returns:
            For each function an array [1 + R], of no change and of its rewrites in
            their order, which adds up to 1; None for graphs that the batcher drops
            and functions that the encoder skips.
        """
        probabilities = []
        for rows in self.predict(functions, **kwargs):
            if rows is not None:
                rows = np.asarray(rows[:, 0], np.float64)
                rows = self.calibrated(rows[rows > 0.5 * _LEAST])
            probabilities.append(rows)
        return probabilities

    def calibrated(self, log_shares: np.ndarray) -> np.ndarray:
        """Return probabilities where bugs are as rare as in the code to check.

        Training shows a bug in every second function or so. With the temperature T and
        b of `calibration`, fitted where bugs are rare:

            p(none) ~ exp(log_share(none) / T + b), p(v, u) ~ exp(log_share(v, u) / T)

        Reference: Saerens et al., "Adjusting the Outputs of a Classifier to New a
        Priori Probabilities", Neural Computation 2002, with a temperature.

        Args:
            log_shares: [1 + R], log p of no change and of each rewrite of a function.

        Returns:
            float64 [1 + R], which add up to 1.
        """
        scores = np.array(log_shares, np.float64)
        if self.calibration is not None:
            temperature, bias = self.calibration
            scores /= temperature
            scores[:1] += bias
            scores -= np.logaddexp.reduce(scores)
        return np.exp(scores)

    def check_labels(self, loader: Loader) -> None:
        """Raise a ValueError unless each graph has one right edge."""
        for part in loader.parts:
            if part.label is None:
                continue
            require_label_level(part, "edge", type(self).__name__)
            right = np.append(0, np.cumsum(part.label.reshape(-1) == 1))
            counts = right[part.edge_ptr[1:]] - right[part.edge_ptr[:-1]]
            if (counts != 1).any():
                graph = int(np.flatnonzero(counts != 1)[0])
                raise ValueError(
                    "Expected one edge with label 1 in each graph, a rewrite or the "
                    f"edge for no change. Received: {counts[graph]} in graph {graph}. "
                    "Leave out functions without labels, or set `correct`."
                )

    def compute_output_shape(self, input_shape: BatchShape) -> dict[str, Shape]:
        """[G, E, 2]."""
        return (*input_shape["edge"]["sender"], 2)

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        return {
            **super().head_config(),
            "first_type": self.first_type,
            "hidden": self.hidden,
            "edge_inputs": self.edge_inputs or None,
            "calibration": self.calibration,
            "min_confidence": self.min_confidence,
        }
