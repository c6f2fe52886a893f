"""`ClassificationTask`: a task over classes, or over several yes-or-no targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np

from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.layers.cumulative_link import CumulativeLink
from keras_bandgnn.models.error_table import (
    as_table,
    labelled_outputs,
    log_softmax,
    map_outputs,
)
from keras_bandgnn.models.label_checks import (
    check_classes,
    check_targets,
    distinct_names,
    refuse_signs,
    require_label_level,
    require_labels,
)
from keras_bandgnn.models.labels import ClassLabels, TargetLabels
from keras_bandgnn.models.task import Task, refuse_preprocessor
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.training.roc_auc import ROCAUC

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
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


class ClassificationTask(Task):
    """Predicts a class, or several yes-or-no targets, per graph, node or edge.

    Base of `GraphClassifier`, `NodeClassifier` and `EdgeClassifier`, which set
    `output_level`. The outputs are logits.

    Args:
        backbone: The model from a batch to node states.
        num_classes: C; with `multi_label` the number of targets.
        preprocessor: `GraphPreprocessor` of graphs, see `Task`.
        multi_label: Whether there are C independent binary targets, instead of one of
            C classes.
        class_names: Names of the classes, or of the targets.
        ordinal: Whether the classes are ordered.
        **kwargs: Passed to `Task`.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        preprocessor: GraphPreprocessor | None = None,
        multi_label: bool = False,
        class_names: Iterable[str] | None = None,
        ordinal: bool = False,
        **kwargs: Unpack[TaskOptions],
    ):
        refuse_preprocessor("num_classes", num_classes)
        super().__init__(backbone, preprocessor, **kwargs)
        self.multi_label = boolean("multi_label", multi_label)
        self.num_classes = positive_int(
            "num_classes", num_classes, 1 if self.multi_label else 2
        )
        self.class_names = distinct_names(
            "class_names", class_names, self.num_classes, "num_classes"
        )
        if self.multi_label:
            self.labels = TargetLabels(self.num_classes, self.class_names)
        else:
            self.labels = ClassLabels(self.num_classes)
        self.ordinal = boolean("ordinal", ordinal)
        if self.ordinal and self.multi_label:
            raise ValueError(
                "Expected classes, one for each label, with ordinal=True. Received: "
                "multi_label=True. Leave one of them out."
            )
        # === Layers ===
        self.link = None
        if self.ordinal:
            self.link = CumulativeLink(self.num_classes, dtype="float32", name="link")

    @property
    def head_units(self) -> int:
        """Width of the head: a logit per class, or one score for ordered classes."""
        return 1 if self.ordinal else self.num_classes

    @property
    def head_layers(self) -> list[keras.layers.Layer]:
        """The head and, with ordered classes, their thresholds."""
        return [self.head] if self.link is None else [self.head, self.link]

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits [..., C] from the outputs of the head."""
        return outputs if self.link is None else self.link(outputs)

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build the weights of the head."""
        self.head.build((None, None, self.backbone.hidden_dim))
        if self.link is not None:
            self.link.build((None, None, 1))
        self.built = True

    def compute_output_shape(self, input_shape: BatchShape) -> Shape:
        """Return [G, M, C], of M graphs, nodes or edges."""
        return (*self.rows_shape(input_shape), self.num_classes)

    def default_optimizer(self) -> Optimizer:
        """Return Adam with rate 1e-3."""
        return keras.optimizers.Adam(1e-3)

    def default_loss(self) -> Loss:
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

    def labelled(
        self,
        name: str,
        x: Data,
        y: Labels = None,
        *args: Labels,
        adapt: bool = False,
        **kwargs: bool,
    ) -> tuple:
        """Return graphs with labels and weights; see `GraphModel.labelled`."""
        parts = super().labelled(name, x, y, *args, adapt=adapt, **kwargs)
        if adapt and y is not None and not self.multi_label:
            labels = [part.label.ravel() for part in parts if part is not None]
            refuse_signs(np.concatenate(labels), self.num_classes)
        return parts

    def adapt(self, loader: Loader) -> None:
        """Adapt the backbone to the training graphs, once their labels are classes."""
        if self.output_level == "graph" and not self.multi_label:
            # Labels of nodes and edges may already be masked.
            labels = [part.label.ravel() for part in loader.parts]
            refuse_signs(np.concatenate(labels), self.num_classes)
        super().adapt(loader)

    def check_labels(self, loader: Loader) -> None:
        """Raise a ValueError if the labels are not classes or targets of the level."""
        level, name, count = self.output_level, type(self).__name__, 0
        for part in loader.parts:
            require_label_level(part, level, name)
            if self.multi_label:
                count += check_targets(part, self.num_classes, name)
            else:
                count += check_classes(part, self.num_classes)
        require_labels(count, level)

    def predict_proba(
        self, x: Data, **kwargs: Unpack[PredictOptions]
    ) -> list | Results:
        """Return the probabilities of the classes, or of the targets.

        Args:
            x: Graphs or batches, as for `predict`.
            **kwargs: Passed to `predict`.

        Returns:
            For graphs a list of arrays as from `predict`, [C] per graph, [N, C] for
            nodes and [E, C] for edges. They add up to 1, or with `multi_label` each is
            that of one target. None for graphs that the batcher drops and items that
            the encoder skips, NaN for nodes and edges that the preprocessor drops.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
        >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
        >>> round(float(task.predict_proba([graph])[0].sum()), 5)
        1.0
        """
        return map_outputs(self.ensemble_outputs, self.predict(x, **kwargs))

    def predict_labels(
        self, x: Data, **kwargs: Unpack[PredictOptions]
    ) -> list | Results:
        """Return the classes with the largest probability, by name if they have names.

        Args:
            x: Graphs or batches, as for `predict`.
            **kwargs: Passed to `predict`.

        Returns:
            For graphs a list with, for each graph, its class: a number, or one of
            `class_names`; for nodes and edges an array of them. With `multi_label` 0 or
            1 per target, int32 [..., C]. None for graphs that the batcher drops and
            items that the encoder skips; of nodes and edges that the preprocessor drops
            -1, or None by name.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
        >>> backbone = kb.models.GCNBackbone({"kind": 2}, 8)
        >>> task = kb.models.GraphClassifier(backbone, 2, class_names=["no", "yes"])
        >>> task.predict_labels([graph])[0] in ("no", "yes")
        True
        """
        return map_outputs(self._classes, self.predict(x, **kwargs))

    def ensemble_outputs(self, outputs: np.ndarray) -> np.ndarray:
        """Return the probabilities of logits; see `Task.ensemble_outputs`."""
        return np.exp(self._log_probabilities(outputs)).astype(outputs.dtype)

    def _log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        if self.multi_label:
            return -np.logaddexp(0.0, -np.asarray(logits, np.float64))
        return log_softmax(logits)

    def _classes(self, logits: np.ndarray):
        logits = np.asarray(logits)
        missing = np.isnan(logits[..., 0])
        if self.multi_label:
            classes = np.where(missing[..., None], -1, logits > 0)
            return classes.astype(np.int32)
        classes = np.where(missing, -1, logits.argmax(axis=-1)).astype(np.int32)
        if classes.ndim == 0:
            index = int(classes)
            return index if self.class_names is None else self.class_names[index]
        if self.class_names is None:
            return classes
        # Index -1, a missing prediction, is the last entry, None.
        return np.array([*self.class_names, None], object)[classes]

    def errors(
        self, graphs: Data, y: Labels = None, as_frame: bool = False
    ) -> dict[str, np.ndarray] | Frame:
        """Return the predictions and losses of labelled graphs as a table.

        Args:
            graphs: Graphs or raw data, in any form that `fit` takes.
            y: Labels, as for `fit`; None if graphs hold them.
            as_frame: Whether to return a `pandas.DataFrame`.

        Returns:
            Columns by name, one row per graph with a label: `graph`, the number of the
            item that was passed, also where the encoder skips others; for classes of
            graphs `label`, `prediction`, `probability` (of the label) and `loss`, the
            cross-entropy; otherwise `labels`, how many are known, `accuracy`, and
            `loss`, the mean over them.

        Raises:
            ValueError: For graphs without labels, or labels that do not fit.
            ImportError: If pandas is not installed, with `as_frame=True`.

        Example:
        >>> import keras_bandgnn as kb
        >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]}, label=1)
        >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
        >>> list(task.errors([graph]))
        ['graph', 'label', 'prediction', 'probability', 'loss']
        """
        boolean("as_frame", as_frame)
        single = self.output_level == "graph" and not self.multi_label
        rows = []
        for number, logits, label, _ in labelled_outputs(self, graphs, y):
            label = label.reshape(logits.shape if self.multi_label else -1)
            has_label = ~np.isnan(label) & (label >= 0)
            if not has_label.any():
                continue
            index = np.where(has_label, label, 0).astype(int)
            losses, right = self._label_losses(logits, index)
            if single:
                classes = np.array([index[0], logits.argmax()])
                if self.class_names is not None:
                    classes = np.array(self.class_names, object)[classes]
                row = (*classes.tolist(), float(np.exp(-losses[0])), float(losses[0]))
            else:
                mean = float(losses[has_label].mean())
                row = (int(has_label.sum()), float(right[has_label].mean()), mean)
            rows.append((number, *row))
        names = ("labels", "accuracy", "loss")
        if single:
            names = ("label", "prediction", "probability", "loss")
        return as_table(("graph", *names), rows, as_frame)

    def _label_losses(self, logits: np.ndarray, label: np.ndarray) -> tuple:
        """Return the cross-entropy of each label, and whether it is predicted."""
        if self.multi_label:
            sign = 2 * label - 1
            return -self._log_probabilities(sign * logits), (logits > 0) == (label > 0)
        logits = logits.reshape(-1, self.num_classes)
        places = np.arange(len(label))
        losses = -self._log_probabilities(logits)[places, label]
        return losses, logits.argmax(axis=-1) == label

    @classmethod
    def head_overrides(cls, config: dict, overrides: dict) -> dict:
        """Return arguments of a preset's task with some of them replaced."""
        # Presets omit these if they are the defaults.
        optional = {"multi_label": False, "class_names": None, "ordinal": False}
        head = super().head_overrides({**optional, **config}, overrides)
        if {"num_classes", "multi_label"} & set(overrides):
            if "class_names" not in overrides:
                # These belong to the classes of the preset.
                head["class_names"] = None
        return {
            name: value
            for name, value in head.items()
            if name in config or name not in optional or value != optional[name]
        }

    def head_config(self) -> dict:
        """Return the arguments of the head; some only if they are not the defaults."""
        config = {"num_classes": self.num_classes}
        if self.class_names is not None:
            config["class_names"] = list(self.class_names)
        return {**config, "ordinal": True} if self.ordinal else config
