"""`NodeClassifier`: a class per node."""

import keras
import numpy as np

from keras_bandgnn.checks import positive_int, refuse, string
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.graph_arguments import is_graphs, resolve_data
from keras_bandgnn.models.labels import (
    ClassLabels,
    check_classes,
    require_label_level,
    require_labels,
)
from keras_bandgnn.models.task import Task
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loading.node_order import (
    caller_rows,
    scatter_to_caller_order,
)
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class NodeClassifier(Task):
    """Predicts the class of each node from the node states of any backbone.

    The outputs are logits; apply `keras.ops.softmax` for probabilities. If one graph
    has nodes of several splits, `mask` names the node feature that selects the labels
    of a split: `fit(graph, mask="train_mask", validation_mask="valid_mask")`,
    `evaluate(graph, mask="test_mask")`. All nodes send messages regardless of masks.

    Args:
        backbone: The model from a batch to node states.
        num_classes: C.
        preprocessor: `GraphPreprocessor` of graphs, see `Task`. By default a single
            graph is padded to a multiple of 64 nodes, `StaticBatcher(2, "64")`.

    Input shape:
        A batch (see `keras_bandgnn.batch`). Labels are classes, -1 or NaN where
        missing; missing labels are masked.

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

    def __init__(self, backbone, num_classes: int, preprocessor=None, **kwargs):
        super().__init__(backbone, preprocessor, **kwargs)
        # === Config ===
        self.num_classes = positive_int("num_classes", num_classes, 2)
        self.labels = ClassLabels(self.num_classes)
        # === Layers ===
        self.head = keras.layers.Dense(self.num_classes, dtype="float32", name="head")
        self.build_and_compile()

    def build(self, input_shape=None):
        """Build the weights of the head."""
        self.head.build((None, None, self.backbone.hidden_dim))
        self.built = True

    def call(self, batch, training=False):
        """Return logits [G, N, C]."""
        return self.head(self.backbone(batch, training=training))

    def default_optimizer(self):
        """Return Adam with rate 1e-2, as Kipf and Welling 2017."""
        return keras.optimizers.Adam(1e-2)

    def default_loss(self):
        """Return the cross-entropy over known labels."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        """Return the accuracy over known labels."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def fit(
        self,
        x=None,
        y=None,
        *args,
        mask: str | None = None,
        validation_data=None,
        validation_mask: str | None = None,
        **kwargs,
    ):
        """Train on graphs, as `keras.Model.fit` does on arrays.

        Args:
            x: Graphs with labels of nodes, or what Keras takes.
            y: What Keras takes; None for graphs.
            *args: Passed on.
            mask: Node feature that is true for the nodes to train on; all if None.
            validation_data: Graphs, or what Keras takes; `x` if omitted and
                `validation_mask` is given.
            validation_mask: Node feature that is true for the nodes to validate on.
            **kwargs: Passed on, such as `epochs`, `seed` and `callbacks`.

        Returns:
            Keras' `History`.
        """
        x = resolve_data("x", x)
        if is_graphs(x):
            self._complete(x, training=True)
        if validation_mask is not None:
            validation_data = x if validation_data is None else validation_data
            validation_data = self._masked(
                validation_data, validation_mask, "validation_mask"
            )
        if mask is not None:
            x = self._masked(x, mask)
        return super().fit(x, y, *args, validation_data=validation_data, **kwargs)

    def evaluate(self, x=None, y=None, *args, mask: str | None = None, **kwargs):
        """Evaluate on graphs, as `keras.Model.evaluate` does on arrays.

        Args:
            x: Graphs with labels of nodes, or what Keras takes.
            y: What Keras takes; None for graphs.
            *args: Passed on.
            mask: Node feature that is true for the nodes to evaluate on; all if None.
            **kwargs: Passed on.
        """
        x = resolve_data("x", x)
        if mask is not None:
            x = self._masked(x, mask)
        return super().evaluate(x, y, *args, **kwargs)

    def loader(self, graphs, *args, **kwargs) -> GraphLoader:
        """Return a loader of the task's batches, see `Task.loader`."""
        self._complete(graphs, training=bool(kwargs.get("adapt", False)))
        return super().loader(graphs, *args, **kwargs)

    def in_given_order(self, graphs, loader: GraphLoader):
        """Return a function that restores the caller's order of the nodes.

        Row n belongs to node n of the caller's graph, NaN for nodes that the
        preprocessor drops. For graphs that are compiled already (a loader, a compiled
        store) row n belongs to the n-th node before compilation.
        """
        places = list(caller_rows(graphs, loader))
        return lambda graph, rows: scatter_to_caller_order(rows, *places[graph])

    def _masked(self, graphs, name: str, argument: str = "mask") -> FlatGraphs:
        """Return the preprocessed graphs, with labels of -1 outside the mask."""
        string(argument, name)
        if not is_graphs(graphs) or isinstance(graphs, GraphLoader):
            raise ValueError(
                "Expected graphs to choose nodes of with a mask. Received: "
                f"{type(graphs).__name__}, mask={name!r}. Pass the graphs themselves, "
                "or weights of the nodes as sample_weight."
            )
        self._complete(graphs)
        parts = parts_of(self.preprocessor.transform(graphs))
        flat = FlatGraphs.concatenate([_with_mask(part, name) for part in parts])
        # The layers are applied already.
        flat.metadata = {"layers": self.preprocessor.layers_config()}
        return flat

    def default_preprocessor(self, graphs) -> GraphPreprocessor:
        """Return the preprocessor of a task that was created without one."""
        if not isinstance(graphs, Graph) and not hasattr(graphs, "__len__"):
            refuse("graphs", "a list of graphs, a FlatGraphs or a store", graphs)
        preprocessor = super().default_preprocessor(graphs)
        if isinstance(graphs, Graph) or len(graphs) == 1:
            # A batch size above 1 would be nearly all padding.
            preprocessor.batcher = StaticBatcher(2, padding="64")
        return preprocessor

    def _complete(self, graphs, training: bool = False) -> None:
        if isinstance(graphs, GraphLoader):
            return
        # Training graphs determine the batcher, even after earlier predictions.
        temporary = self.__dict__.get("_for_predictions")
        again = training and temporary is not None and self.preprocessor is temporary
        if self.preprocessor is not None and not again:
            return
        self.preprocessor = self.default_preprocessor(graphs)
        # Bypass Keras' attribute tracking.
        self.__dict__["_for_predictions"] = None if training else self.preprocessor

    def check_labels(self, loader: GraphLoader) -> None:
        """Raise a ValueError if the labels are not classes of nodes."""
        count = 0
        for part in loader.parts:
            require_label_level(part, "node", "NodeClassifier")
            count += check_classes(part, self.num_classes)
        require_labels(count, "node")

    def compute_output_shape(self, input_shape):
        """[G, N, C]."""
        return (*input_shape["node"]["mask"], self.num_classes)

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        return {"num_classes": self.num_classes}


def _with_mask(part: FlatGraphs, name: str) -> FlatGraphs:
    if part.label is None or part.label_level != "node":
        return part  # `check_labels` rejects it.
    if name not in part.node:
        raise ValueError(
            f"Expected a node feature {name!r} as the mask. Received: node features "
            f"{sorted(part.node)}."
        )
    mask = part.node[name]
    if mask.ndim != 1 or not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"Expected node[{name!r}] to be 0 or 1 for each node. Received: "
            f"{mask.dtype} of shape {mask.shape} in [{mask.min()}, {mask.max()}]. "
            "Choose one column of a feature with several splits."
        )
    rows = mask.astype(bool).reshape(-1, *[1] * (part.label.ndim - 1))
    label = np.where(rows, part.label, np.array(-1, part.label.dtype))
    return FlatGraphs.from_columns({**part.columns(), "label/node": label}, part.info)
