"""`EdgeRegressor`: one or more numbers per edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.layers.target_normalizer import TargetNormalizer
from keras_bandgnn.models.edge_task import EdgeTask
from keras_bandgnn.models.regression_task import RegressionTask, as_normalizer

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, TaskOptions, Tensor
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class EdgeRegressor(EdgeTask, RegressionTask):
    """Predicts D numbers per edge from the states of its nodes.

    The output is `normalizer.denormalize(EdgeReadout(states))`, in the units of the
    labels; so are the metrics. The loss sees labels and outputs divided by the
    normaliser's `std`. Labels that are NaN are ignored, each target by itself. Masks
    and head are those of `EdgeClassifier`.

    Args:
        backbone: The model from a batch to node states; one that keeps the edges of the
            graphs, or a graph transformer with `target_type=0`.
        num_targets: D.
        preprocessor: `GraphPreprocessor` of graphs, see `NodeClassifier`. Its plan has
            no schedule.
        edge_inputs: Edge features that the head reads, see `inputs` of `EdgeReadout`.
        hidden: Width of the hidden layer of the head; by default the states'.
        activation: Activation of that layer.
        use_bias: Whether the head has biases.
        symmetric: Whether an edge and its reverse get the same output, as edges of
            undirected graphs should; features of both are then the same, too.
        normalizer: A `TargetNormalizer`; None for labels that are on a scale near 1
            already. `"auto"` has mode "edge". One that is not adapted is adapted by
            `fit`, to the edges that are trained on.
        target_names: Names of the targets, by which `compile` takes losses, weights and
            metrics of their own; they are saved with the task.
        **kwargs: Passed to `Task`.

    Input shape:
        A batch (see `keras_bandgnn.batch`). Labels are [E] or [E, D].

    Output shape:
        float32 [G, E, D]. `predict(graphs)` gives one array [E, D] per graph, in the
        caller's order of the edges; a `FlatGraphs` has them sorted by receiver.

    Raises:
        ValueError: For arguments that do not fit; from `fit` and `evaluate` for missing
            labels, labels of something else, another number of targets or a wrong mask;
            for graphs whose edges the preprocessor replaces.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     3, [0, 1, 2], [1, 2, 0], node={"kind": [0, 1, 1]},
    ...     label=[0.5, float("nan"), 1.5], label_level="edge",
    ... )
    >>> backbone = kb.models.GCNBackbone({"kind": 2}, hidden_dim=8)
    >>> task = EdgeRegressor(backbone, symmetric=True)
    >>> history = task.fit(graph, epochs=1, verbose=0)
    >>> task.predict(graph)[0].shape
    (3, 1)
    """

    output_level = "edge"
    # Devices that share a supergraph renumber the edges.
    splits_sequences = False

    def __init__(
        self,
        backbone: Backbone,
        num_targets: int = 1,
        preprocessor: GraphPreprocessor | None = None,
        *,
        edge_inputs: Mapping | None = None,
        hidden: int | None = None,
        activation: Activation = "silu",
        use_bias: bool = True,
        symmetric: bool = False,
        normalizer: TargetNormalizer | Mapping | str | None = "auto",
        target_names: Iterable[str] | None = None,
        **kwargs: Unpack[TaskOptions],
    ):
        super().__init__(backbone, num_targets, preprocessor, target_names, **kwargs)
        # === Layers ===
        self.head = self.make_head(
            self.num_targets, edge_inputs, hidden, activation, use_bias, symmetric
        )
        self.normalizer = as_normalizer(normalizer, "edge")
        self.build_and_compile()

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return predictions [G, E, D] in the units of the labels."""
        values = self.head(self.backbone(batch, training=training), batch)
        return self.denormalized(values, batch)
