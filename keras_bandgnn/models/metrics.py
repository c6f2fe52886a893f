"""Metrics over the real entries of a batch; see `losses` for entries."""

import inspect
from collections.abc import Callable, Iterator

import keras
from keras import ops

from keras_bandgnn import compat, keras_bases
from keras_bandgnn.models.labels import Labels, keras_name
from keras_bandgnn.models.losses import (
    function_name,
    is_of_keras,
    of_target,
    per_entry,
    refuse_class,
    resolve_loss,
)
from keras_bandgnn.training.roc_auc import ROCAUC


def only_real(y_true, y_pred, weight):
    """Replace entries of weight 0 by an entry with a weight above 0.

    0 * NaN is NaN: the values of a metric must be finite for padding, too.
    """
    real = weight != 0
    places = ops.arange(ops.shape(weight)[0], dtype="int32")
    first = places == ops.min(ops.where(real, places, ops.shape(weight)[0]))

    def filled(values):
        # A sum, not a gather, so that devices exchange only one row.
        row = ops.where(ops.expand_dims(first, -1), values, ops.zeros_like(values))
        row = ops.sum(row, axis=0, keepdims=True)
        return ops.where(ops.expand_dims(real, -1), values, row)

    return filled(y_true), filled(y_pred)


class EntryMetric(keras_bases.Metric):
    """A metric over known real entries, with or without weights.

    Args:
        metric: The metric.
        adapter: See `Labels.adapter`.
        weighted: Whether to use weights; otherwise all entries of the mask count alike.
        target: Name and index of a target; None for the entries of all.
        num_targets: Number of targets.
    """

    def __init__(
        self,
        metric: keras.metrics.Metric,
        adapter: Callable,
        weighted: bool,
        target: tuple[str, int] | None = None,
        num_targets: int = 1,
    ):
        name = metric.name if target is None else f"{target[0]}_{metric.name}"
        super().__init__(name=name, dtype=metric.dtype)
        self.metric = metric
        compat.copy_direction(metric, self)
        self.adapter = adapter
        self.weighted = weighted
        self.index = None if target is None else target[1]
        self.num_targets = num_targets

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Add labels [n, 1] and outputs [n, C], with mask and weights [n, 2]."""
        if sample_weight is None:
            raise ValueError(
                f"Expected weights for the metric {self.name!r}. Received: "
                "sample_weight=None. In a step of your own call "
                "self.compute_metrics(x, y, y_pred, sample_weight), which knows what "
                "is padding."
            )
        weight = sample_weight[:, 1 if self.weighted else 0]
        y_true, y_pred = only_real(y_true, y_pred, weight)
        if self.index is not None:
            y_true, y_pred, weight = (
                of_target(values, self.index, self.num_targets)
                for values in (y_true, y_pred, weight)
            )
        y_true, y_pred = self.adapter(y_true, y_pred)
        self.metric.update_state(y_true, y_pred, sample_weight=weight)

    def reset_state(self):
        """Discard all entries."""
        self.metric.reset_state()

    def result(self):
        """Return the value of the metric."""
        return self.metric.result()


class FunctionMetric(keras_bases.MeanMetricWrapper):
    """The mean of a function's values."""

    def __init__(self, function: Callable, name: str):
        def values(y_true, y_pred):
            return per_entry(function(y_true, y_pred), y_pred, name, "metric")

        super().__init__(values, name=name)


def entry_metrics(identifiers, labels: Labels, weighted: bool) -> list[EntryMetric]:
    """Convert metrics of any form that Keras takes to metrics over real entries.

    Args:
        identifiers: A name, function or object, or lists and dicts of them. The keys of
            a dict are names of targets.
        labels: The task's `Labels`.
        weighted: Whether to use weights.

    Raises:
        ValueError: If a metric is incompatible with the labels.
    """
    metrics = [
        _entry_metric(identifier, labels, weighted, target)
        for target, identifier in _with_targets(identifiers, labels)
    ]
    names = [metric.name for metric in metrics]
    for name in names:
        if name == "loss" or names.count(name) > 1:
            raise ValueError(
                "Expected metrics of distinct names other than 'loss', as the logs "
                f"have a number for each. Received: {names}. Name them: write a "
                "function with def, pass name=... to an object."
            )
    return metrics


def _with_targets(identifiers, labels: Labels) -> Iterator[tuple]:
    """Yield each metric with the name and index of its target, None for all."""
    if isinstance(identifiers, list | tuple):
        for identifier in identifiers:
            yield from _with_targets(identifier, labels)
    elif isinstance(identifiers, dict) and labels.names is not None:
        unknown = set(identifiers) - set(labels.names)
        if unknown:
            raise ValueError(
                f"Expected `metrics` by name of a target, {list(labels.names)}. "
                f"Received: {sorted(map(str, unknown))}. Pass a list for metrics over "
                "all targets."
            )
        for index, name in enumerate(labels.names):
            for identifier in keras.tree.flatten(identifiers.get(name)):
                if identifier is not None:
                    yield (name, index), identifier
    else:
        for identifier in keras.tree.flatten(identifiers):
            if identifier is not None:
                yield None, identifier


def _entry_metric(identifier, labels: Labels, weighted: bool, target) -> EntryMetric:
    count = labels.num_targets
    if target is not None and count > 1:
        # Each metric gets the labels of a single target.
        labels = type(labels)(1)
    if isinstance(identifier, EntryMetric):
        identifier = identifier.metric
    refuse_class("metric", identifier)
    metric = _resolved(identifier, labels)
    if isinstance(metric, ROCAUC):
        metric.count_targets(labels.num_targets)
    name = keras_name(metric)
    adapter = labels.adapter(metric, name)
    if adapter is None:
        raise ValueError(
            f"Expected a metric for {labels.description}. Received: "
            f"{_described(metric, name)}. Write metrics={labels.metric_line}, or "
            "compute it from predict()."
        )
    try:
        inspect.signature(metric.update_state).bind(0, 0, sample_weight=0)
    except TypeError:
        raise ValueError(
            "Expected a metric with update_state(y_true, y_pred, sample_weight=None), "
            f"so that padding can be left out. Received: {type(metric).__name__} "
            f"with update_state{inspect.signature(metric.update_state)}."
        ) from None
    return EntryMetric(metric, adapter, weighted, target, count)


def _described(metric, name: str) -> str:
    config = metric.get_config()
    names = ("class_id", "top_k", "multi_label", "num_regressors", "threshold")
    said = [f"{n}={config[n]}" for n in names if config.get(n)]
    return f"{name}({', '.join(said)})"


def _resolved(identifier, labels: Labels) -> keras.metrics.Metric:
    """Convert an identifier to a metric with its name in the logs."""
    if isinstance(identifier, keras.metrics.Metric):
        return identifier
    if isinstance(identifier, dict):
        return keras.metrics.get(identifier)
    if isinstance(identifier, str):
        return _by_name(identifier, labels)
    if not callable(identifier):
        raise ValueError(
            "Expected metrics that are names, functions or keras.metrics objects. "
            f"Received: {identifier!r}."
        )
    name = function_name(identifier)
    if is_of_keras(identifier):
        return _by_name(name, labels)
    return FunctionMetric(identifier, name)


def _by_name(identifier: str, labels: Labels) -> keras.metrics.Metric:
    """Return the metric of a name, for outputs that are logits."""
    name = labels.metric_names.get(identifier.lower(), identifier)
    try:
        metric = keras.metrics.get(name)
    except ValueError:
        metric = None
    if metric is None:
        try:
            # Losses without a metric in Keras, such as "huber".
            loss, adapter = resolve_loss(name, labels)
        except ValueError as error:
            raise ValueError(
                "Expected metrics that are names that Keras knows, functions or "
                f"keras.metrics objects. Received: {identifier!r}. Write "
                f"metrics={labels.metric_line}, or pass a function."
            ) from error
        return FunctionMetric(lambda y, p: loss.call(*adapter(y, p)), identifier)
    config = metric.get_config()
    options = {"from_logits": True} if "from_logits" in config else {}
    return type(metric).from_config({**config, **options, "name": identifier})
