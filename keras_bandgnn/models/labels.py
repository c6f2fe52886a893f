"""Kinds of labels of a task, and adapters for losses and metrics of Keras."""

import re
from collections.abc import Callable

import keras
from keras import losses, metrics, ops

from keras_bandgnn.training.bpr_loss import BPRLoss
from keras_bandgnn.training.roc_auc import ROCAUC
from keras_bandgnn.training.selection_crossentropy import SelectionCrossentropy

# === Inputs of losses and metrics, by their names in Keras ===

# Labels of 0 or 1 with a probability or logit.
_YES_OR_NO = re.compile(
    "AUC|^Binary(?!IoU)|Negatives|Positives|Precision|Recall|Sensitivity|Specificity"
)
# Labels of 0 or 1 with a score.
_HINGE = re.compile("^(Squared)?Hinge$")
# One-hot labels, or probabilities, with a column for each class.
_PER_CLASS = re.compile("^(TopK)?Categorical|^F1Score$|^FBetaScore$")
# Labels that are indices of classes, with a column for each class.
_BY_NUMBER = re.compile("^Sparse|^(SelectionCrossentropy|BPRLoss)$")
# Classes, or several rows or columns at once: unsuitable for single numbers.
_OF_CLASSES = re.compile(
    "Accuracy|BPR|Categorical|Circle|Correlation|Crossentropy|CTC|Dice|Divergence|F1|FBeta|"
    "Hinge|IoU|Similarity|Tversky|" + _YES_OR_NO.pattern
)
# Bases of custom classes.
_GENERIC = (
    losses.Loss,
    metrics.Mean,
    metrics.MeanMetricWrapper,
    metrics.Metric,
    metrics.Sum,
)


def keras_name(item) -> str | None:
    """Return the name of the Keras class of a loss or metric.

    For custom classes it is that of the Keras class that they extend, or None.
    """
    for cls in type(item).__mro__:
        name = cls.__name__
        if cls in _GENERIC:
            return None
        if cls in (BPRLoss, ROCAUC, SelectionCrossentropy):
            return name
        if cls in (vars(losses).get(name), vars(metrics).get(name)):
            return name
    return None


class Labels:
    """Labels of one kind: their entries, and suitable losses and metrics."""

    # For messages: a description of the labels, and suitable arguments.
    description: str
    loss_line: str
    metric_line: str
    crossentropy: str
    # Short names of metrics and their meanings.
    metric_names: dict[str, str]
    # Number of targets per graph, node or edge, each a separate entry, and their names.
    num_targets: int = 1
    names: tuple[str, ...] | None = None
    # Number of classes for `class_weight`; None for labels that are not classes.
    num_classes: int | None = None

    def entries(self, y, y_pred, weight):
        """Return labels [n, 1], outputs [n, C] and weights [n], 0 for missing labels.

        Args:
            y: Labels of a batch; NaN, or -1 for classes, if missing.
            y_pred: Outputs of the task.
            weight: Weights of nodes or graphs, 0 for padding.
        """
        raise NotImplementedError

    def adapter(self, item, name: str | None) -> Callable | None:
        """Return the adapter from (labels, outputs) of entries to inputs of Keras.

        Args:
            item: A loss or metric.
            name: Its `keras_name`; None for custom ones, which take entries
                unchanged.

        Returns:
            A function, or None if the loss or metric is unsuitable for the labels.
        """
        raise NotImplementedError


class ClassLabels(Labels):
    """One class per entry; outputs are logits of the classes.

    Args:
        num_classes: C; None if it differs between entries.
    """

    crossentropy = "sparse_categorical_crossentropy"
    loss_line = '"sparse_categorical_crossentropy"'
    metric_line = '["accuracy"]'
    metric_names = {
        "acc": "sparse_categorical_accuracy",
        "accuracy": "sparse_categorical_accuracy",
        "ce": crossentropy,
        "crossentropy": crossentropy,
    }

    def __init__(self, num_classes: int | None = None):
        self.num_classes = num_classes
        number = "" if num_classes is None else f"{num_classes} "
        self.description = f"labels that are integers, one of {number}classes each"

    def entries(self, y, y_pred, weight):
        """See `Labels`."""
        num_classes = ops.shape(y_pred)[-1]
        # Labels may be floats or integers.
        y = ops.reshape(ops.cast(y, "float32"), (-1, 1))
        # Not the negation of y >= 0, which TensorFlow rewrites to y < 0.
        missing = ops.logical_or(ops.isnan(y), y < 0)
        weight = ops.reshape(ops.cast(weight, y_pred.dtype), (-1,))
        weight = ops.where(missing[:, 0], 0.0, weight)
        y = ops.cast(ops.where(missing, 0.0, y), "int32")
        return y, ops.reshape(y_pred, (-1, num_classes)), weight

    def adapter(self, item, name: str | None) -> Callable | None:
        """See `Labels`; losses with a column per class get one-hot labels."""
        if name is None:
            return _same
        config = item.get_config()
        if _BY_NUMBER.search(name):
            return _same if config.get("from_logits", True) else _softmax
        if self.num_classes == 2 and _YES_OR_NO.search(name) and _pools(config):
            return _difference if _reads_logits(item, config) else _second
        if self.num_classes and _PER_CLASS.search(name):
            return self._one_hot_logits if config.get("from_logits") else self._one_hot
        return None

    def _one_hot(self, y_true, y_pred):
        y_true, y_pred = self._one_hot_logits(y_true, y_pred)
        return y_true, ops.softmax(y_pred)

    def _one_hot_logits(self, y_true, y_pred):
        classes = ops.cast(y_true[:, 0], "int32")
        return ops.one_hot(classes, self.num_classes), y_pred


class TargetLabels(Labels):
    """Targets that are 0 or 1, each on its own; outputs are logits.

    Args:
        num_targets: Targets per graph, node or edge.
        names: Their names, or None.
    """

    crossentropy = "binary_crossentropy"
    loss_line = '"binary_crossentropy"'
    metric_line = '["accuracy", "AUC"]'
    metric_names = {
        "acc": "binary_accuracy",
        "accuracy": "binary_accuracy",
        "ce": crossentropy,
        "crossentropy": crossentropy,
    }
    description = "targets that are 0 or 1, each on its own"

    def __init__(self, num_targets: int, names: tuple[str, ...] | None = None):
        self.num_targets = num_targets
        self.names = names
        self.num_classes = 2 if num_targets == 1 else None

    def entries(self, y, y_pred, weight):
        """See `Labels`; C = 1 and n = G B times the number of targets."""
        return single_numbers(y, y_pred, weight)

    def adapter(self, item, name: str | None) -> Callable | None:
        """See `Labels`; metrics of probabilities get probabilities."""
        if name is None or _HINGE.search(name):
            return _same
        config = item.get_config()
        if _YES_OR_NO.search(name) and _pools(config):
            return _same if _reads_logits(item, config) else _sigmoid
        single = self.num_targets == 1 and config.get("threshold") is not None
        return _sigmoid if single and name in ("F1Score", "FBetaScore") else None


class NumberLabels(Labels):
    """Numbers; outputs are numbers in the same units.

    Args:
        num_targets: D, numbers per graph, node or edge.
        names: Their names, or None.
    """

    crossentropy = "crossentropy"
    description = "labels that are numbers"
    loss_line = '"mse"'
    metric_line = '["mae"]'
    metric_names = {"rmse": "RootMeanSquaredError"}

    def __init__(self, num_targets: int, names: tuple[str, ...] | None = None):
        self.num_targets = num_targets
        self.names = names

    def entries(self, y, y_pred, weight):
        """See `Labels`; C = 1 and n = G B D."""
        return single_numbers(y, y_pred, weight)

    def adapter(self, item, name: str | None) -> Callable | None:
        """See `Labels`; all losses and metrics are suitable except those of classes."""
        if name is None:
            return _same
        # With num_regressors the metric counts entries, including padding.
        alone = self.num_targets == 1 and not item.get_config().get("num_regressors")
        fits = alone if name == "R2Score" else not _OF_CLASSES.search(name)
        return _same if fits else None


def single_numbers(y, y_pred, weight):
    """Return labels and outputs [G, B, D] as entries [G B D, 1], with weights [G B D].

    Along axis 0 Keras weights each entry separately, also if some targets of a graph
    are missing.
    """
    y = ops.reshape(ops.cast(y, y_pred.dtype), ops.shape(y_pred))
    missing = ops.isnan(y)
    weight = ops.expand_dims(ops.cast(weight, y_pred.dtype), -1)
    # 0 * NaN is NaN, so missing labels are replaced before any arithmetic.
    y, weight = ops.where(missing, 0.0, y), ops.where(missing, 0.0, weight)
    columns = (-1, 1)
    return (
        ops.reshape(y, columns),
        ops.reshape(y_pred, columns),
        ops.reshape(weight, (-1,)),
    )


def _pools(config: dict) -> bool:
    """Return whether a binary metric treats all entries alike."""
    names = ("class_id", "label_weights", "multi_label", "top_k")
    return all(config.get(n) in (None, False) for n in names)


def _reads_logits(item, config: dict) -> bool:
    """Return whether a binary metric is configured for logits, as Keras documents."""
    if isinstance(item, losses.Loss | ROCAUC) or config.get("from_logits"):
        return True
    thresholds = [config.get("threshold"), config.get("thresholds")]
    values = [v for v in keras.tree.flatten(thresholds) if v is not None]
    outside = any(not 0 <= v <= 1 for v in values)
    # For probabilities a threshold of 0 would make all entries positive.
    return outside or bool(values) and all(v == 0 for v in values)


def _same(y_true, y_pred):
    return y_true, y_pred


def _softmax(y_true, y_pred):
    return y_true, ops.softmax(y_pred)


def _sigmoid(y_true, y_pred):
    return y_true, ops.sigmoid(y_pred)


def _difference(y_true, y_pred):
    """Return the logit of the second of two classes."""
    return y_true, y_pred[:, 1:] - y_pred[:, :1]


def _second(y_true, y_pred):
    """Return the probability of the second of two classes."""
    return y_true, ops.softmax(y_pred)[:, 1:]
