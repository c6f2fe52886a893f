"""`GraphClassifier`: a class per graph, or several yes-or-no targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.layers.readout_head import head_arguments, make_head
from keras_bandgnn.models.classification_task import ClassificationTask

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, Layer, TaskOptions, Tensor
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphClassifier(ClassificationTask):
    """Predicts the class of each graph from the node states of any backbone.

    The outputs are logits; `predict_proba` gives probabilities, `predict_labels` the
    classes.

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
        class_names: Names of the classes (or targets), for `predict_labels`, `errors`
            and metrics per target; they are saved with the task.
        ordinal: Whether the classes are ordered, such as grades: the head then gives
            one score, which `CumulativeLink` turns into the logits of the classes.
        **kwargs: Passed to `Task`.

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
        backbone: Backbone,
        num_classes: int,
        preprocessor: GraphPreprocessor | None = None,
        *,
        readout: str | Layer = "mean",
        hidden: int | None = None,
        activation: Activation = "silu",
        use_bias: bool = True,
        multi_label: bool = False,
        class_names: Iterable[str] | None = None,
        ordinal: bool = False,
        **kwargs: Unpack[TaskOptions],
    ):
        super().__init__(
            backbone,
            num_classes,
            preprocessor,
            multi_label,
            class_names,
            ordinal,
            **kwargs,
        )
        # === Layers ===
        self.head = make_head(self.head_units, readout, hidden, activation, use_bias)
        self.build_and_compile()

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return logits [G, B, C]."""
        return self.logits(self.head(*self.backbone.readout_inputs(batch, training)))

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        return {
            **super().head_config(),
            **head_arguments(self.head),
            "multi_label": self.multi_label,
        }
