"""`NodeSelector`: one of the candidates of each graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn.checks import boolean, one_of
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.models.error_table import (
    as_table,
    labelled_outputs,
    log_softmax,
    map_outputs,
)
from keras_bandgnn.models.label_checks import require_labels
from keras_bandgnn.models.labels import ClassLabels
from keras_bandgnn.models.task import Task
from keras_bandgnn.ops.sequence import rows_at
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.training.learning_rates import make_optimizer
from keras_bandgnn.training.selection_crossentropy import (
    MASKED_LOGIT,
    SelectionCrossentropy,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Data,
        Frame,
        Labels,
        Loss,
        Optimizer,
        PredictOptions,
        Results,
        Shape,
        TaskOptions,
        Tensor,
    )
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class NodeSelector(Task):
    """Selects one node among the candidates of each graph.

    `readout="candidate"` is a linear map of the candidate's state (Balog et al. 2019,
    Section 2): logit(c) = w . h_c + b. `readout="slot"` also looks at the slot,
    logit(c) = w . [h_c, h_slot, h_c * h_slot] + b, as in the public implementation of
    the data set's authors.

    Args:
        backbone: The model from a batch to node states.
        preprocessor: `GraphPreprocessor` for graphs, see `Task`.
        readout: `"candidate"` or `"slot"`.
        label_smoothing: Smoothing of the default loss, over real candidates only.

    Input shape:
        A batch with `batch["candidate"]` (see `keras_bandgnn.batch`).

    Output shape:
        float32 logits [G, B, C], -1e9 where there is no candidate. `predict(graphs)`
        gives one array [C] per graph, in the order of `graph.candidates`.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(3, [0, 1], [1, 2], node={"type": [1, 2, 3]}, candidates=[1, 2],
    ...              label=1)
    ... ] * 8
    >>> backbone = kb.models.GGNNBackbone(
    ...     {"type": 4}, hidden_dim=8, num_steps=1, num_edge_types=1
    ... )
    >>> task = NodeSelector(backbone)
    >>> history = task.fit(graphs, epochs=1, verbose=0)
    >>> task.predict(graphs)[0].shape
    (2,)
    """

    output_level = "candidate"
    labels = ClassLabels()
    reads_few = True
    splits_sequences = True

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: GraphPreprocessor | None = None,
        *,
        readout: str = "candidate",
        label_smoothing: float = 0.0,
        **kwargs: Unpack[TaskOptions],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        # === Config ===
        self.readout = one_of("readout", readout, ("candidate", "slot"))
        self.label_smoothing = label_smoothing
        # === Layers ===
        self.head = keras.layers.Dense(1, dtype="float32", name="head")
        self.build_and_compile()

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build the weights of the head."""
        parts = 3 if self.readout == "slot" else 1
        self.head.build((None, None, None, parts * self.backbone.hidden_dim))
        self.built = True

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return the logits [G, B, C]."""
        states = self.backbone(batch, training=training)
        candidate = batch["candidate"]
        rows = rows_at(states, candidate["node"])
        if self.readout == "slot":
            slot = ops.expand_dims(rows_at(states, candidate["slot"]), axis=2)
            slot = ops.broadcast_to(slot, ops.shape(rows))
            rows = ops.concatenate([rows, slot, rows * slot], axis=-1)
        logits = ops.squeeze(self.head(rows), axis=-1)
        return ops.where(candidate["mask"], logits, MASKED_LOGIT)

    def default_optimizer(self) -> Optimizer:
        """Return the paper's momentum SGD, see `training.make_optimizer`."""
        return make_optimizer("sgd")

    def default_loss(self) -> Loss:
        """Return cross-entropy over real candidates, with the task's smoothing."""
        return SelectionCrossentropy(self.label_smoothing)

    def default_metrics(self) -> list:
        """Return accuracy over real graphs."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict_proba(
        self, x: Data, **kwargs: Unpack[PredictOptions]
    ) -> list | Results:
        """Return the probabilities of the candidates.

        Args:
            x: Graphs or batches, as for `predict`.
            **kwargs: Passed to `predict`.

        Returns:
            For graphs a list of arrays as from `predict`, [C] per graph, which add up
            to 1. None for graphs that the batcher drops and items that the encoder
            skips.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"type": [1, 2, 3]},
        ...                  candidates=[1, 2])
        >>> task = NodeSelector(kb.models.GGNNBackbone({"type": 4}, hidden_dim=8))
        >>> round(float(task.predict_proba([graph])[0].sum()), 5)
        1.0
        """
        return map_outputs(self.ensemble_outputs, self.predict(x, **kwargs))

    def ensemble_outputs(self, outputs: np.ndarray) -> np.ndarray:
        """Return the probabilities of logits; see `Task.ensemble_outputs`."""
        return np.exp(log_softmax(outputs)).astype(outputs.dtype)

    def errors(
        self, graphs: Data, y: Labels = None, as_frame: bool = False
    ) -> dict[str, np.ndarray] | Frame:
        """Return the selections and losses of labelled graphs as a table.

        Args:
            graphs: Graphs, in any form that `fit` takes.
            y: Labels, as for `fit`; None if graphs hold them.
            as_frame: Whether to return a `pandas.DataFrame`.

        Returns:
            Columns by name, one row per graph with a label: `graph`, its number,
            `label` and `prediction`, positions among its candidates, `probability` (of
            the label) and `loss`, the cross-entropy without smoothing.

        Raises:
            ValueError: For graphs without labels, or labels that do not fit.
            ImportError: If pandas is not installed, with `as_frame=True`.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"type": [1, 2, 3]},
        ...                  candidates=[1, 2], label=1)
        >>> task = NodeSelector(kb.models.GGNNBackbone({"type": 4}, hidden_dim=8))
        >>> list(task.errors([graph]))
        ['graph', 'label', 'prediction', 'probability', 'loss']
        """
        boolean("as_frame", as_frame)
        rows = []
        for number, logits, label, _ in labelled_outputs(self, graphs, y):
            index = int(label.reshape(-1)[0])
            if index < 0:
                continue
            loss = -float(log_softmax(logits)[index])
            row = number, index, int(logits.argmax()), float(np.exp(-loss)), loss
            rows.append(row)
        names = ("graph", "label", "prediction", "probability", "loss")
        return as_table(names, rows, as_frame)

    def check(self, loader: Loader) -> None:
        """Raise a ValueError if graphs lack candidates or the slot."""
        for part in loader.parts:
            self.check_part(part)

    def check_labels(self, loader: Loader) -> None:
        """Raise a ValueError if no graph has a label."""
        require_labels(sum((part.label >= 0).sum() for part in loader.parts), "graph")

    def check_part(self, part: FlatGraphs) -> None:
        """Raise a ValueError if graphs lack candidates or the slot."""
        if part.candidates is None:
            raise ValueError(
                "Expected graphs with candidates for NodeSelector. Received: "
                "graphs with candidates=None. Set Graph(..., candidates=[...])."
            )
        if self.readout == "slot" and part.slot.min() < 0:
            raise ValueError(
                "Expected graphs with a slot for readout='slot'. Received: graphs "
                "with slot=None. Set Graph(..., slot=...) or use "
                "readout='candidate'."
            )

    def compute_output_shape(self, input_shape: BatchShape) -> Shape:
        """Return [G, B, C]."""
        return tuple(input_shape["candidate"]["node"])

    def head_config(self) -> dict:
        """Return the arguments of the head."""
        return {"readout": self.readout, "label_smoothing": self.label_smoothing}
