"""What the labels of a task are, and which of Keras' losses and metrics fit them."""

from collections.abc import Callable, Iterable

import keras
import numpy as np
from keras import losses, metrics, ops

from keras_bandgnn.checks import strings
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.flat_columns import weight_column
from keras_bandgnn.training.roc_auc import ROCAUC
from keras_bandgnn.training.selection_crossentropy import SelectionCrossentropy

# Labels that are classes: what is missing, and what is wrong.


def require_label_level(part: FlatGraphs, level: str, task: str) -> None:
    """Raise a ValueError if labels belong to something else.

    Args:
        part: Graphs with labels.
        level: "node", "edge" or "graph".
        task: Name of the task in the message.
    """
    received = None
    if part.candidates is not None:
        received = "graphs with candidates, whose label is the position of one of them"
    elif part.label_level != level:
        received = f"labels of {part.label_level}s (label_level={part.label_level!r})"
    if received:
        raise ValueError(
            f"Expected labels of {level}s for {task}. Received: {received}. "
            f"Set Graph(..., label=..., label_level={level!r})."
        )


def check_classes(part: FlatGraphs, num_classes: int) -> int:
    """Raise a ValueError if a label is no class; returns how many are there.

    Args:
        part: Graphs with labels. -1 and NaN are missing.
        num_classes: C.
    """
    if part.label.ndim > 2 or part.label.shape[1:] not in ((), (1,)):
        one_hot = np.isin(part.label, (0, 1)).all() and (part.label.sum(-1) == 1).all()
        advice = f"For several targets per {part.label_level} set multi_label=True."
        if one_hot:
            advice = f"Write np.argmax(label, axis=-1) for one-hot labels. {advice}"
        raise ValueError(
            "Expected one class per label. "
            f"Received: labels of shape {part.label.shape[1:]}. {advice}"
        )
    label = np.asarray(part.label, np.float64).reshape(-1)
    known = label[~(np.isnan(label) | (label == -1))]
    wrong = known[(known < 0) | (known >= num_classes) | (known != np.floor(known))]
    if wrong.size:
        advice = "Count classes from 0, or raise num_classes."
        if wrong[0] != np.floor(wrong[0]):
            advice = "Classes are whole numbers; a regressor predicts others."
        raise ValueError(
            f"Expected classes in [0, {num_classes}), as num_classes={num_classes}, or "
            f"-1 where the class is not known. Received: {wrong[0]:g}. {advice}"
        )
    return known.size


def refuse_signs(label: np.ndarray, num_classes: int) -> None:
    """Raise a ValueError for labels of two classes that are -1 and 1, and nothing else.

    They are one class and unknown labels here, from which nothing could be learnt.

    Args:
        label: Labels to train on.
        num_classes: C.
    """
    label = np.asarray(label, np.float64)
    values = np.unique(label[~np.isnan(label)]).tolist()
    if num_classes == 2 and values == [-1.0, 1.0]:
        raise ValueError(
            "Expected the classes 0 and 1. Received: labels of -1 and 1 alone, where "
            "-1 stands for an unknown class. Write (label + 1) // 2."
        )


def check_targets(part: FlatGraphs, num_targets: int, task: str) -> int:
    """Raise a ValueError if a label is not 0 or 1; returns how many are there.

    Args:
        part: Graphs with labels. NaN is missing.
        num_targets: Targets per graph, node or edge.
        task: Name of the task in the message.
    """
    label = part.label
    width = 1 if label.ndim == 1 else label.shape[-1]
    if label.ndim > 2 or width != num_targets:
        raise ValueError(
            f"Expected labels with {num_targets} targets per {part.label_level}, as "
            f"num_classes={num_targets}. Received: shape {label.shape[1:]}. "
            f"Set {task}(..., num_classes=...)."
        )
    known = label[~np.isnan(label)]
    wrong = known[(known != 0) & (known != 1)]
    if wrong.size:
        raise ValueError(
            "Expected targets that are 0 or 1, or NaN where not known. "
            f"Received: {wrong[0]:g}. Write NaN for unknown targets; for classes leave "
            "multi_label=False."
        )
    return known.size


def distinct_names(
    argument: str, names: Iterable[str] | None, count: int, counted: str
) -> tuple[str, ...] | None:
    """Return the names of classes or targets, or None where they have none.

    Args:
        argument: The argument that has the names.
        names: The names, distinct and as many as there are classes or targets.
        count: How many there are.
        counted: The argument that says so.
    """
    if names is None:
        return None
    names = tuple(strings(argument, names))
    if len(names) != count or len(set(names)) != count:
        raise ValueError(
            f"Expected `{argument}` to be {count} distinct names, as "
            f"{counted}={count}. Received: {argument}={list(names)!r}."
        )
    return names


def require_labels(count: int, what: str, unknown: str = "-1 or NaN") -> None:
    """Raise a ValueError if nothing has a label.

    Args:
        count: The number of labels.
        what: What has them, such as "graph".
        unknown: Labels that are not known.
    """
    if not count:
        raise ValueError(
            f"Expected at least one {what} with a label. Received: none. Labels of "
            f"{unknown} are ignored, as are nodes and edges outside the mask."
        )


def require_weights(task, parts: Iterable[FlatGraphs]) -> None:
    """Raise a ValueError if all labels have a `sample_weight` of 0.

    Losses and metrics would be 0 whatever the predictions.

    Args:
        task: The task, whose `known_slopes` count as labels.
        parts: Graphs with labels.
    """
    numbers, number = isinstance(task.labels, NumberLabels), 0
    for part in parts:
        weight = part.columns().get(weight_column(part.label_level))
        if weight is None:
            return
        label = np.asarray(part.label, np.float64).reshape(len(part.label), -1)
        known = ~np.isnan(label) if numbers else label >= 0
        known = known.any(axis=1)
        if task.known_slopes(part):
            known[:] = True
        if (np.asarray(weight)[known] > 0).any():
            return
        number += int(known.sum())
    raise ValueError(
        "Expected at least one label whose sample_weight is above 0. Received: "
        f"{number} labels, all of weight 0. Losses and metrics would be 0 whatever the "
        "predictions. Pass other weights, or none."
    )


_LOGITS = {"from_logits": True}
# Yes or no: labels 0 or 1, and a probability.
_BINARY = (
    metrics.AUC,
    metrics.BinaryAccuracy,
    metrics.BinaryCrossentropy,
    metrics.FalseNegatives,
    metrics.FalsePositives,
    metrics.Precision,
    metrics.PrecisionAtRecall,
    metrics.Recall,
    metrics.RecallAtPrecision,
    metrics.SensitivityAtSpecificity,
    metrics.SpecificityAtSensitivity,
    metrics.TrueNegatives,
    metrics.TruePositives,
)


def _same(y_true, y_pred):
    return y_true, y_pred


class Labels:
    """Labels of one kind: their entries, and what may be computed of them."""

    # Of messages: what the labels are, and lines that fit.
    description: str
    loss_line: str
    metric_line: str
    crossentropy: str
    # Classes of losses, with the arguments that the outputs ask for.
    losses: dict[type, dict]
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

    def feed(self, metric, cls: type) -> Callable | None:
        """From entries to what a metric takes; None for a metric that does not fit.

        Args:
            metric: The metric.
            cls: The class that it is known by.
        """
        raise NotImplementedError

    def loss_feed(self, cls: type) -> Callable | None:
        """From entries to what a loss takes; None for one that takes them as they are.

        Args:
            cls: The class in `losses` that the loss is known by.
        """
        del cls


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
    losses = {
        losses.SparseCategoricalCrossentropy: _LOGITS,
        SelectionCrossentropy: {},
    }

    def __init__(self, num_classes: int | None = None):
        self.num_classes = num_classes
        if num_classes is not None:
            focal = {losses.CategoricalFocalCrossentropy: _LOGITS}
            if num_classes == 2:
                focal[losses.BinaryFocalCrossentropy] = _LOGITS
            self.losses = {**self.losses, **focal}
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

    def feed(self, metric, cls: type) -> Callable | None:
        """See `Labels`."""
        config = metric.get_config()
        if cls in (
            metrics.SparseCategoricalAccuracy,
            metrics.SparseTopKCategoricalAccuracy,
        ):
            return _same
        if cls is metrics.SparseCategoricalCrossentropy:
            return _same if config["from_logits"] else _softmax
        if self.num_classes and cls in (metrics.F1Score, metrics.FBetaScore):
            return self._one_hot
        if self.num_classes == 2 and cls is ROCAUC:
            metric.count_targets(1)
            return _difference
        if self.num_classes == 2 and cls in _BINARY and _of_one_target(config):
            return _difference if _reads_logits(config) else _second
        return None

    def loss_feed(self, cls: type) -> Callable | None:
        """See `Labels`."""
        if cls is losses.CategoricalFocalCrossentropy:
            return self._one_hot_logits
        return _difference if cls is losses.BinaryFocalCrossentropy else None

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
    losses = {
        losses.BinaryCrossentropy: _LOGITS,
        losses.BinaryFocalCrossentropy: _LOGITS,
        losses.Hinge: {},
        losses.SquaredHinge: {},
    }

    def __init__(self, num_targets: int, names: tuple[str, ...] | None = None):
        self.num_targets = num_targets
        self.names = names
        self.num_classes = 2 if num_targets == 1 else None

    def entries(self, y, y_pred, weight):
        """See `Labels`; C = 1 and n = G B times the number of targets."""
        return single_numbers(y, y_pred, weight)

    def feed(self, metric, cls: type) -> Callable | None:
        """See `Labels`."""
        config = metric.get_config()
        if cls is ROCAUC:
            metric.count_targets(self.num_targets)
        if cls in (ROCAUC, metrics.Hinge, metrics.SquaredHinge):
            return _same
        if cls in _BINARY and _of_one_target(config):
            return _same if _reads_logits(config) else _sigmoid
        single = self.num_targets == 1 and config.get("threshold") is not None
        if single and cls in (metrics.F1Score, metrics.FBetaScore):
            return _sigmoid
        return None


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
    losses = {
        cls: {}
        for cls in (
            losses.Huber,
            losses.LogCosh,
            losses.MeanAbsoluteError,
            losses.MeanAbsolutePercentageError,
            losses.MeanSquaredError,
            losses.MeanSquaredLogarithmicError,
            losses.Poisson,
        )
    }
    _metrics = (
        metrics.LogCoshError,
        metrics.MeanAbsoluteError,
        metrics.MeanAbsolutePercentageError,
        metrics.MeanSquaredError,
        metrics.MeanSquaredLogarithmicError,
        metrics.Poisson,
        metrics.RootMeanSquaredError,
    )

    def __init__(self, num_targets: int, names: tuple[str, ...] | None = None):
        self.num_targets = num_targets
        self.names = names

    def entries(self, y, y_pred, weight):
        """See `Labels`; C = 1 and n = G B D."""
        return single_numbers(y, y_pred, weight)

    def feed(self, metric, cls: type) -> Callable | None:
        """See `Labels`."""
        if cls in self._metrics:
            return _same
        # With regressors it counts entries, and padding among them.
        alone = self.num_targets == 1 and not metric.get_config().get("num_regressors")
        return _same if alone and cls is metrics.R2Score else None


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


def _of_one_target(config: dict) -> bool:
    """Return whether a metric of yes or no looks at all entries alike."""
    names = ("class_id", "label_weights", "multi_label", "top_k")
    return all(config.get(n) in (None, False) for n in names)


def _reads_logits(config: dict) -> bool:
    """Whether a metric of yes or no was made for logits, as Keras documents it."""
    if config.get("from_logits"):
        return True
    given = [config.get("threshold"), config.get("thresholds")]
    values = [v for v in keras.tree.flatten(given) if v is not None]
    outside = any(not 0 <= v <= 1 for v in values)
    # Of probabilities all would be positive.
    return outside or bool(values) and all(v == 0 for v in values)


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
