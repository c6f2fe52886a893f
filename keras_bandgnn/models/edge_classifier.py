"""`EdgeClassifier`: a class per edge, or several yes-or-no targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.models.classification_task import ClassificationTask
from keras_bandgnn.models.edge_task import EdgeTask

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, TaskOptions, Tensor
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class EdgeClassifier(EdgeTask, ClassificationTask):
    """Predicts the class of each edge from the states of its nodes.

    The head is an `EdgeReadout`, a small network over the states of sender and receiver
    and features of the edge. The outputs are logits; `predict_proba` gives
    probabilities, `predict_labels` the classes. `mask` names an edge feature that
    selects the labels of a split: `fit(graph, mask="train_mask")`. All edges carry
    messages regardless of masks.

    Args:
        backbone: The model from a batch to node states; one that keeps the edges of the
            graphs, or a graph transformer with `target_type=0`.
        num_classes: C; with `multi_label` the number of targets.
        preprocessor: `GraphPreprocessor` of graphs, see `NodeClassifier`. Its plan has
            no schedule.
        edge_inputs: Edge features that the head reads, see `inputs` of `EdgeReadout`.
        hidden: Width of the hidden layer of the head; by default the states'.
        activation: Activation of that layer.
        use_bias: Whether the head has biases.
        symmetric: Whether an edge and its reverse get the same output, as edges of
            undirected graphs should; features of both are then the same, too.
        multi_label: Whether each edge has C independent binary targets, instead of one
            of C classes.
        class_names: Names of the classes (or targets), for `predict_labels`, `errors`
            and metrics per target; they are saved with the task.
        ordinal: Whether the classes are ordered, such as grades: the head then gives
            one score, which `CumulativeLink` turns into the logits of the classes.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`). Labels are classes, -1 or NaN where
        missing; with `multi_label` [E, C], 0, 1, or NaN where missing. Missing labels
        are masked.

    Output shape:
        float32 logits [G, E, C]. `predict(graphs)` returns one array [E, C] per graph,
        in the caller's order of the edges; a `FlatGraphs` has them sorted by receiver.

    Raises:
        ValueError: For arguments that do not fit; from `fit` and `evaluate` for missing
            labels, labels of something else, labels out of range or a wrong mask; for
            graphs whose edges the preprocessor replaces.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     3, [0, 1, 2], [1, 2, 0], node={"kind": [0, 1, 1]},
    ...     edge={"length": [1.0, 1.5, 2.0]}, label=[0, 1, 1], label_level="edge",
    ... )
    >>> task = EdgeClassifier(
    ...     kb.models.GCNBackbone({"kind": 2}, hidden_dim=8), 2,
    ...     edge_inputs={"length": {"features": 1}},
    ... )
    >>> history = task.fit(graph, epochs=1, verbose=0)
    >>> task.predict(graph)[0].shape
    (3, 2)
    """

    output_level = "edge"
    # Devices that share a supergraph renumber the edges.
    splits_sequences = False

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        preprocessor: GraphPreprocessor | None = None,
        *,
        edge_inputs: Mapping | None = None,
        hidden: int | None = None,
        activation: Activation = "silu",
        use_bias: bool = True,
        symmetric: bool = False,
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
        self.head = self.make_head(
            self.head_units, edge_inputs, hidden, activation, use_bias, symmetric
        )
        self.build_and_compile()

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return logits [G, E, C]."""
        states = self.backbone(batch, training=training)
        return self.logits(self.head(states, batch))

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        return {**super().head_config(), "multi_label": self.multi_label}
