"""`GraphClassifier`: a class per graph, or several yes-or-no targets."""

import keras
import numpy as np

from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.layers.readout_head import head_arguments, make_head
from keras_bandgnn.models.labels import (
    ClassLabels,
    TargetLabels,
    check_classes,
    require_label_level,
    require_labels,
)
from keras_bandgnn.models.task import Task
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.training.roc_auc import ROCAUC


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphClassifier(Task):
    """Predicts the class of each graph from the node states of any backbone.

    The outputs are logits: apply `keras.ops.softmax` for probabilities, or
    `keras.ops.sigmoid` with `multi_label=True`.

    Args:
        backbone: The model from a batch to node states.
        num_classes: C; with `multi_label` the number of targets.
        preprocessor: `GraphPreprocessor` of graphs, see `Task`.
        readout: `"mean"`, `"sum"` or `"attention"` over the nodes, see `GraphReadout`;
            or a layer such as `GRUReadout(64)`, see `ReadoutHead`.
        hidden: Width of the hidden layer of a readout by name; by default half the
            states'.
        activation: Activation of that layer.
        use_bias: Whether the head has biases.
        multi_label: Whether each graph has C independent binary targets, instead of one
            of C classes.

    Input shape:
        A batch (see `keras_bandgnn.batch`). Labels are classes, -1 or NaN where
        missing; with `multi_label` 0, 1, or NaN where missing. Missing labels are
        masked.

    Output shape:
        float32 logits [G, B, C]. `predict(graphs)` returns one array [C] per graph.

    Raises:
        ValueError: For arguments that do not fit; from `fit` and `evaluate` for
            missing labels, labels of nodes, or labels out of range.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=n % 2)
    ...     for n in (1, 2, 3, 4)
    ... ]
    >>> task = GraphClassifier(kb.models.GCNBackbone({"kind": 2}, hidden_dim=8), 2)
    >>> history = task.fit(graphs, epochs=1, verbose=0)
    >>> task.predict(graphs)[0].shape
    (2,)
    """

    output_level = "graph"

    splits_sequences = True

    def __init__(
        self,
        backbone,
        num_classes: int,
        preprocessor=None,
        readout="mean",
        hidden: int | None = None,
        activation="silu",
        use_bias: bool = True,
        multi_label: bool = False,
        **kwargs,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        # === Config ===
        self.multi_label = boolean("multi_label", multi_label)
        self.num_classes = positive_int(
            "num_classes", num_classes, 1 if self.multi_label else 2
        )
        kind = TargetLabels if self.multi_label else ClassLabels
        self.labels = kind(self.num_classes)
        # === Layers ===
        self.head = make_head(self.num_classes, readout, hidden, activation, use_bias)
        self.build_and_compile()

    def build(self, input_shape=None):
        """Build the weights of the head."""
        self.head.build((None, None, self.backbone.hidden_dim))
        self.built = True

    def call(self, batch, training=False):
        """Return logits [G, B, C]."""
        return self.head(self.backbone(batch, training=training), batch)

    def default_optimizer(self):
        """Return Adam with rate 1e-3."""
        return keras.optimizers.Adam(1e-3)

    def default_loss(self):
        """Return the cross-entropy over known labels."""
        if self.multi_label:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        """Return accuracy; with `multi_label` also `roc_auc`, the mean over targets."""
        if not self.multi_label:
            return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        # Logits: a probability of one half.
        accuracy = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
        return [accuracy, ROCAUC(self.num_classes)]

    def check_labels(self, loader: GraphLoader) -> None:
        """Raise a ValueError if the labels are not classes or targets of graphs."""
        count = 0
        for part in loader.parts:
            require_label_level(part, "graph", "GraphClassifier")
            if self.multi_label:
                count += self._check_targets(part.label)
            else:
                count += check_classes(part, self.num_classes)
        require_labels(count, "graph")

    def _check_targets(self, label) -> int:
        width = 1 if label.ndim == 1 else label.shape[-1]
        if label.ndim > 2 or width != self.num_classes:
            raise ValueError(
                f"Expected labels with {self.num_classes} targets per graph, as "
                f"num_classes={self.num_classes}. Received: shape {label.shape[1:]}. "
                "Set GraphClassifier(..., num_classes=...)."
            )
        known = label[~np.isnan(label)]
        wrong = known[(known != 0) & (known != 1)]
        if wrong.size:
            raise ValueError(
                "Expected targets that are 0 or 1, or NaN where not known. "
                f"Received: {wrong[0]:g}. For classes leave multi_label=False."
            )
        return known.size

    def compute_output_shape(self, input_shape):
        """[G, B, C]."""
        return (*input_shape["graph"]["mask"], self.num_classes)

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        return {
            "num_classes": self.num_classes,
            **head_arguments(self.head),
            "multi_label": self.multi_label,
        }
