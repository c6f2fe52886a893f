"""What the labels of a task are, and what losses and metrics of Keras read of them."""

import re
from collections.abc import Callable

import keras
from keras import losses, metrics, ops

from keras_bandgnn.training.roc_auc import ROCAUC
from keras_bandgnn.training.selection_crossentropy import SelectionCrossentropy

# === What losses and metrics read, by their names in Keras ===

# Labels of 0 or 1 with a probability or logit.
_YES_OR_NO = re.compile(
    "AUC|^Binary(?!IoU)|Negatives|Positives|Precision|Recall|Sensitivity|Specificity"
)
# Labels of 0 or 1 with a score.
_HINGE = re.compile("^(Squared)?Hinge$")
# A row per entry, with a column for each class.
_PER_CLASS = re.compile("^(TopK)?Categorical|^F1Score$|^FBetaScore$")
# Classes by number, with such a row.
_BY_NUMBER = re.compile("^Sparse|^SelectionCrossentropy$")
# Classes, or several rows or columns at once: nothing that single numbers have.
_OF_CLASSES = re.compile(
    "Accuracy|Categorical|Circle|Correlation|Crossentropy|CTC|Dice|Divergence|F1|FBeta|"
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
    """Return the name of the class of Keras that a loss or metric is of.

    Custom classes are known by the one that they are derived from; None for those that
    stand on their own.
    """
    for cls in type(item).__mro__:
        name = cls.__name__
        if cls in _GENERIC:
            return None
        if cls in (ROCAUC, SelectionCrossentropy):
            return name
        if cls in (vars(losses).get(name), vars(metrics).get(name)):
            return name
    return None


class Labels:
    """Labels of one kind: their entries, and what may be computed of them."""

    # Of messages: what the labels are, and lines that fit.
    description: str
    loss_line: str
    metric_line: str
    crossentropy: str
    # What short names of metrics stand for.
    metric_names: dict[str, str]
    # Targets per graph, node or edge that are entries of their own, and their names.
    num_targets: int = 1
    names: tuple[str, ...] | None = None
    # Classes that `class_weight` may name; None for labels that are no classes.
    num_classes: int | None = None

    def entries(self, y, y_pred, weight):
        """Labels [n, 1], outputs [n, C] and weights [n], 0 where a label is missing.

        Args:
            y: Labels as a batch has them; NaN, and of classes -1, where not known.
            y_pred: Outputs of the task.
            weight: Weights of nodes or graphs, 0 for padding.
        """
        raise NotImplementedError

    def adapter(self, item, name: str | None) -> Callable | None:
        """Return the function from (labels, outputs) of entries to inputs of Keras.

        Args:
            item: A loss or metric.
            name: Its `keras_name`. Custom ones, of which it is None, take entries as
                they are.

        Returns:
            None for a loss or metric that does not fit the labels.
        """
        raise NotImplementedError


class ClassLabels(Labels):
    """One class per entry; outputs are logits of the classes.

    Args:
        num_classes: C; None where it differs from entry to entry.
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
        # NaN and -1, of labels of either type.
        y = ops.reshape(ops.cast(y, "float32"), (-1, 1))
        # Not the opposite of y >= 0, which TensorFlow rewrites to y < 0.
        missing = ops.logical_or(ops.isnan(y), y < 0)
        weight = ops.reshape(ops.cast(weight, y_pred.dtype), (-1,))
        weight = ops.where(missing[:, 0], 0.0, weight)
        y = ops.cast(ops.where(missing, 0.0, y), "int32")
        return y, ops.reshape(y_pred, (-1, num_classes)), weight

    def adapter(self, item, name: str | None) -> Callable | None:
        """See `Labels`; what has a column for each class gets labels one-hot."""
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
        """See `Labels`; metrics of probabilities get them."""
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
        """See `Labels`; all but what is about classes takes numbers."""
        if name is None:
            return _same
        # With regressors it counts entries, and padding among them.
        alone = self.num_targets == 1 and not item.get_config().get("num_regressors")
        fits = alone if name == "R2Score" else not _OF_CLASSES.search(name)
        return _same if fits else None


def single_numbers(y, y_pred, weight):
    """Return labels and outputs [G, B, D] as entries [G B D, 1], with weights [G B D].

    Along axis 0 Keras weights each entry by itself, also where some targets of a graph
    are missing.
    """
    y = ops.reshape(ops.cast(y, y_pred.dtype), ops.shape(y_pred))
    missing = ops.isnan(y)
    weight = ops.expand_dims(ops.cast(weight, y_pred.dtype), -1)
    # 0 * NaN is NaN: a missing label must not reach the arithmetic at all.
    y, weight = ops.where(missing, 0.0, y), ops.where(missing, 0.0, weight)
    columns = (-1, 1)
    return (
        ops.reshape(y, columns),
        ops.reshape(y_pred, columns),
        ops.reshape(weight, (-1,)),
    )


def _pools(config: dict) -> bool:
    """Return whether a metric of yes or no looks at all entries alike."""
    names = ("class_id", "label_weights", "multi_label", "top_k")
    return all(config.get(n) in (None, False) for n in names)


def _reads_logits(item, config: dict) -> bool:
    """Return whether a metric of yes or no was made for logits, as Keras documents."""
    if isinstance(item, losses.Loss | ROCAUC) or config.get("from_logits"):
        return True
    thresholds = [config.get("threshold"), config.get("thresholds")]
    values = [v for v in keras.tree.flatten(thresholds) if v is not None]
    outside = any(not 0 <= v <= 1 for v in values)
    # Of probabilities all would be positive.
    return outside or bool(values) and all(v == 0 for v in values)


def _same(y_true, y_pred):
    return y_true, y_pred


def _softmax(y_true, y_pred):
    return y_true, ops.softmax(y_pred)


def _sigmoid(y_true, y_pred):
    return y_true, ops.sigmoid(y_pred)


def _difference(y_true, y_pred):
    """Of two classes the logit of the second."""
    return y_true, y_pred[:, 1:] - y_pred[:, :1]


def _second(y_true, y_pred):
    """Of two classes the probability of the second."""
    return y_true, ops.softmax(y_pred)[:, 1:]
