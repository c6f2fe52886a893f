"""`NodeClassifier`: a class per node, or several yes-or-no targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import optional, string
from keras_bandgnn.models.classification_task import ClassificationTask
from keras_bandgnn.models.masked_task import MaskedTask

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, Optimizer, TaskOptions, Tensor
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class NodeClassifier(MaskedTask, ClassificationTask):
    """Predicts the class of each node from the node states of any backbone.

    The outputs are logits; `predict_proba` gives probabilities, `predict_labels` the
    classes. If one graph has nodes of several splits, `mask` names the node feature
    that selects the labels of a split: `fit(graph, mask="train_mask",
    validation_mask="valid_mask")`, `evaluate(graph, mask="test_mask")`. All nodes send
    messages regardless of masks.

    Args:
        backbone: The model from a batch to node states.
        num_classes: C; with `multi_label` the number of targets.
        preprocessor: `GraphPreprocessor` of graphs, see `Task`. By default a single
            graph is padded to a multiple of 64 nodes, `StaticBatcher(1, "64")`.
        multi_label: Whether each node has C independent binary targets, instead of one
            of C classes.
        class_names: Names of the classes (or targets), for `predict_labels`, `errors`
            and metrics per target; they are saved with the task.
        ordinal: Whether the classes are ordered, such as grades: the head then gives
            one score, which `CumulativeLink` turns into the logits of the classes.
        node_set: Name of the node set whose nodes have classes, such as `"author"`; `y`
            and predictions then have a row for each row of that set's table. None for
            all nodes.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`). Labels are classes, -1 or NaN where
        missing; with `multi_label` [N, C], 0, 1, or NaN where missing. Missing labels
        are masked.

    Output shape:
        float32 logits [G, N, C]. `predict(graphs)` returns one array [N, C] per graph,
        in the caller's order of the nodes.

    Raises:
        ValueError: For arguments that do not fit; from `fit` and `evaluate` for
            missing labels, labels of graphs, labels out of range or a wrong mask.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     4, [0, 1, 2], [1, 2, 3],
    ...     node={"kind": [0, 0, 1, 1], "train_mask": [1, 0, 0, 1]},
    ...     label=[0, 0, 1, 1], label_level="node",
    ... )
    >>> task = NodeClassifier(kb.models.GCNBackbone({"kind": 2}, hidden_dim=8), 2)
    >>> history = task.fit(graph, mask="train_mask", epochs=1, verbose=0)
    >>> task.predict(graph)[0].shape
    (4, 2)
    """

    output_level = "node"
    splits_sequences = True

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        preprocessor: GraphPreprocessor | None = None,
        *,
        multi_label: bool = False,
        class_names: Iterable[str] | None = None,
        ordinal: bool = False,
        node_set: str | None = None,
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
        self.node_set = optional(string, "node_set", node_set)
        # === Layers ===
        self.head = keras.layers.Dense(self.head_units, dtype="float32", name="head")
        self.build_and_compile()

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return logits [G, N, C]."""
        states = self.backbone(batch, training=training)
        return self.logits(self.head(states))

    def default_optimizer(self) -> Optimizer:
        """Return Adam with rate 1e-2, as Kipf and Welling 2017."""
        return keras.optimizers.Adam(1e-2)

    def head_config(self) -> dict:
        """Return the arguments of the head; `multi_label` only where it is true."""
        config = super().head_config()
        return {**config, "multi_label": True} if self.multi_label else config
