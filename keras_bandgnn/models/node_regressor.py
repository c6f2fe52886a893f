"""`NodeRegressor`: one or more numbers per node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import optional, string
from keras_bandgnn.layers.target_normalizer import TargetNormalizer
from keras_bandgnn.models.masked_task import MaskedTask
from keras_bandgnn.models.regression_task import RegressionTask, as_normalizer

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, TaskOptions, Tensor
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class NodeRegressor(MaskedTask, RegressionTask):
    """Predicts D numbers per node from the node states of any backbone.

    The output is `normalizer.denormalize(W h_n + b)`, in the units of the labels; so
    are the metrics. The loss sees labels and outputs divided by the normaliser's `std`.
    Labels that are NaN are ignored, each target by itself. Masks are those of
    `NodeClassifier`.

    Args:
        backbone: The model from a batch to node states.
        num_targets: D.
        preprocessor: `GraphPreprocessor` of graphs, see `NodeClassifier`.
        normalizer: A `TargetNormalizer`; None for labels that are on a scale near 1
            already. `"auto"` has mode "node". One that is not adapted is adapted by
            `fit`, to the nodes that are trained on.
        target_names: Names of the targets, by which `compile` takes losses, weights and
            metrics of their own; they are saved with the task.
        node_set: See `NodeClassifier`.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`). Labels are [N] or [N, D].

    Output shape:
        float32 [G, N, D]. `predict(graphs)` gives one array [N, D] per graph, in the
        caller's order of the nodes.

    Raises:
        ValueError: For arguments that do not fit; from `fit` and `evaluate` for
            missing labels, labels of graphs, another number of targets or a wrong mask.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     4, [0, 1, 2], [1, 2, 3], node={"kind": [0, 0, 1, 1]},
    ...     label=[0.5, float("nan"), 1.5, 2.0], label_level="node",
    ... )
    >>> task = NodeRegressor(kb.models.GCNBackbone({"kind": 2}, hidden_dim=8))
    >>> history = task.fit(graph, epochs=1, verbose=0)
    >>> task.predict(graph)[0].shape
    (4, 1)
    """

    output_level = "node"
    splits_sequences = True

    def __init__(
        self,
        backbone: Backbone,
        num_targets: int = 1,
        preprocessor: GraphPreprocessor | None = None,
        *,
        normalizer: TargetNormalizer | Mapping | str | None = "auto",
        target_names: Iterable[str] | None = None,
        node_set: str | None = None,
        **kwargs: Unpack[TaskOptions],
    ):
        super().__init__(backbone, num_targets, preprocessor, target_names, **kwargs)
        self.node_set = optional(string, "node_set", node_set)
        # === Layers ===
        self.head = keras.layers.Dense(self.num_targets, dtype="float32", name="head")
        self.normalizer = as_normalizer(normalizer, "node")
        self.build_and_compile()

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return predictions [G, N, D] in the units of the labels."""
        values = self.head(self.backbone(batch, training=training))
        return self.denormalized(values, batch)
