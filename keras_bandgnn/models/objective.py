"""Losses and metrics over the entries of a batch that are real.

Batches are padded and labels may be missing, so no number of Keras' own `compile` would
be right: `metrics` ignore weights, most reductions divide by the padded size, and the
loss of an epoch is the mean over batches. What `Task.compile` is given is put into the
classes of this module, which see entries: labels [n, 1], outputs [n, C] and weights.

An entry has two weights. Its mask is 1 if it is real, not padding, and its label is
known: not NaN, of classes not -1, and not left out by the `mask` of a task. Losses
divide by it, and `metrics` count by it, as in Keras regardless of `sample_weight`. The
mask times `sample_weight` weighs losses and `weighted_metrics`.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
from keras import ops

from keras_bandgnn import compat
from keras_bandgnn.checks import number, shown

# Classes that say nothing about the labels they take.
_GENERIC = (
    keras.losses.Loss,
    keras.metrics.Mean,
    keras.metrics.MeanMetricWrapper,
    keras.metrics.Metric,
    keras.metrics.Sum,
)
_PACKAGES = ("keras", "keras_bandgnn")


def known_class(value) -> type | None:
    """Return the class of Keras or of this library that a loss or metric is of.

    Classes of the user are known by the one that they are derived from; None for
    those that stand on their own.
    """
    for cls in type(value).__mro__:
        if cls in _GENERIC or cls.__name__ == "LossFunctionWrapper":
            return None
        if cls.__module__.partition(".")[0] in _PACKAGES:
            return cls
    return None


def only_real(y_true, y_pred, weight):
    """Entries in which those without weight repeat one that has weight.

    0 * NaN is NaN: what a metric computes must be finite for padding, too.
    """
    real = weight != 0
    places = ops.arange(ops.shape(weight)[0], dtype="int32")
    first = places == ops.min(ops.where(real, places, ops.shape(weight)[0]))

    def filled(values):
        # A sum, not a gather: of entries split over devices only a row travels.
        row = ops.where(ops.expand_dims(first, -1), values, ops.zeros_like(values))
        row = ops.sum(row, axis=0, keepdims=True)
        return ops.where(ops.expand_dims(real, -1), values, row)

    return filled(y_true), filled(y_pred)


def _one_per_entry(values, y_pred, name: str, kind: str):
    """Return the values [n] that a function returned for n entries, or a ValueError."""
    values = ops.convert_to_tensor(values)
    shape, rows = tuple(values.shape), y_pred.shape[0]
    # Sizes that a program does not know are None.
    fits = bool(shape) and shape[0] in (rows, None) or rows is None
    if not shape or not fits or any(size != 1 for size in shape[1:]):
        received = f"shape {shape}" if shape else "a single number"
        raise ValueError(
            f"Expected the {kind} {name!r} to return one value per entry, [n], for "
            "labels [n, 1] and outputs [n, C], so that padding can be left out. "
            f"Received: {received} for outputs of shape {tuple(y_pred.shape)}. Reduce "
            "the last axis alone: return "
            "keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1), for example."
        )
    return ops.reshape(values, (-1,))


class EntryLoss(keras.losses.Loss):
    """The weighted mean of a loss over the entries that have weight.

    Args:
        loss: Any `keras.losses.Loss`, of which `call` gives a value per entry.
        feed: From labels and outputs of entries to what the loss takes; None for these
            as they are.
    """

    def __init__(self, loss: keras.losses.Loss, feed: Callable | None = None):
        super().__init__(loss.name, "mean_with_sample_weight", dtype=loss.dtype)
        self.loss = loss
        self.feed = feed

    @property
    def is_sum(self) -> bool:
        """Whether training is by the sum over the entries."""
        return self.loss.reduction == "sum"

    def values(self, y_true, y_pred):
        """Return the loss of each entry, of labels [n, 1] and outputs [n, C]."""
        if self.feed is not None:
            y_true, y_pred = self.feed(y_true, y_pred)
        return self.loss.call(y_true, y_pred)

    def term(self, mean, weight, known) -> tuple:
        """Return a mean over entries and their number, from a mean over weights.

        As for Keras, weights multiply the terms of the sum and not their number, unless
        the reduction is "mean_with_sample_weight".

        Args:
            mean: What the loss returned.
            weight: [n], weights of the entries.
            known: [n], 1 for entries with labels, whatever their weights.
        """
        total, count = ops.sum(weight), ops.sum(known)
        if self.loss.reduction == "mean_with_sample_weight":
            return mean, total
        return mean * ops.divide_no_nan(total, count), count

    def expected(self, count, total) -> list:
        """Return the number by which the mean of `term` divides, from expectations.

        Args:
            count: [C], expected number of labels of each target.
            total: [C], expected sum of their weights.
        """
        weighted = self.loss.reduction == "mean_with_sample_weight"
        return [ops.sum(total if weighted else count)]

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Return the mean over labels [n, 1], outputs [n, C] and weights [n]."""
        weight = ops.convert_to_tensor(sample_weight, dtype=self.dtype)
        y_true = ops.convert_to_tensor(y_true, dtype=self.dtype)
        y_pred = ops.convert_to_tensor(y_pred, dtype=self.dtype)
        real = weight != 0
        # Neither values nor gradients of padding pass a `where`; 0 * NaN is NaN.
        y_pred = ops.where(ops.expand_dims(real, -1), y_pred, 0.0)
        values = self.values(y_true, y_pred)
        values = _one_per_entry(values, y_pred, self.name, "loss")
        values = ops.where(real, values, 0.0)
        return ops.divide_no_nan(ops.sum(values * weight), ops.sum(weight))


class Target(NamedTuple):
    """One of several targets: entry n belongs to target n modulo their number."""

    name: str
    index: int
    count: int

    def entries(self, values):
        """Return the entries of this target, among those of all, [n, ...]."""
        shape = (-1, self.count, *values.shape[1:])
        return ops.reshape(values, shape)[:, self.index]


class TargetLosses(keras.losses.Loss):
    """The sum of a loss for each target, each the mean over its entries.

    Args:
        losses: The loss of each target.
        factors: Their weights in the sum.
    """

    # Training is by means.
    is_sum = False

    def __init__(self, losses: Sequence[EntryLoss], factors: Sequence[float]):
        super().__init__("loss", "mean_with_sample_weight")
        self.losses = list(losses)
        self.factors = list(factors)

    def terms(self, y_true, y_pred, weight, known) -> list:
        """Return (mean over entries, their number) of each target."""
        terms = []
        for index, (loss, factor) in enumerate(
            zip(self.losses, self.factors, strict=True)
        ):
            target = Target("", index, len(self.losses))
            y, outputs, own = map(target.entries, (y_true, y_pred, weight))
            mean = factor * loss(y, outputs, own)
            terms.append(loss.term(mean, own, target.entries(known)))
        return terms

    def expected(self, count, total) -> list:
        """Return the number of entries of each target; see `EntryLoss.expected`."""
        return [
            number
            for index, loss in enumerate(self.losses)
            for number in loss.expected(count[index], total[index])
        ]

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Return the sum over labels [n, 1], outputs [n, 1] and weights [n]."""
        terms = self.terms(y_true, y_pred, sample_weight, sample_weight)
        return sum(mean for mean, _ in terms)


class EntryMetric(keras.metrics.Metric):
    """A metric over the entries that are real and known, or weighted ones.

    Args:
        metric: The metric.
        feed: From labels and outputs of entries to what the metric takes; None for
            these as they are.
        weighted: Whether weights weigh, or all entries of the mask count alike.
        target: The target whose entries it sees; None for those of all.
    """

    def __init__(
        self,
        metric: keras.metrics.Metric,
        feed: Callable | None,
        weighted: bool,
        target: Target | None = None,
    ):
        name = metric.name if target is None else f"{target.name}_{metric.name}"
        super().__init__(name=name, dtype=metric.dtype)
        self.metric = metric
        # A tuple would be tracked as a container of variables.
        self.__dict__["target"] = target
        # By which callbacks know whether more is better; private in Keras 3.15.
        if hasattr(metric, "_direction"):
            self._direction = metric._direction
        self.feed = feed
        self.weighted = weighted

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Take in labels [n, 1], outputs [n, C], and mask and weights [n, 2]."""
        if sample_weight is None:
            raise ValueError(
                f"Expected weights for the metric {self.name!r}. Received: "
                "sample_weight=None. In a step of your own call "
                "self.compute_metrics(x, y, y_pred, sample_weight), which knows what "
                "is padding."
            )
        sample_weight = sample_weight[:, 1 if self.weighted else 0]
        y_true, y_pred = only_real(y_true, y_pred, sample_weight)
        if self.target is not None:
            y_true, y_pred, sample_weight = map(
                self.target.entries, (y_true, y_pred, sample_weight)
            )
        if self.feed is not None:
            y_true, y_pred = self.feed(y_true, y_pred)
        self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

    def reset_state(self):
        """Forget all entries."""
        self.metric.reset_state()

    def result(self):
        """Return the value of the metric."""
        return self.metric.result()


class LossTracker(keras.metrics.Metric):
    """The loss that Keras prints: the mean over all entries since the last reset.

    A loss is a sum of parts, each the mean over entries of its own (graphs, or known
    components of forces), and of what is added to it once per step (regularisation).
    Keras' tracker gives all batches the same weight here, as axis 0 is that of
    supergraphs; with this one the loss does not depend on the batches.

    Args:
        parts: Number of parts with entries of their own.
        overridden: Whether a class outside this library has its own `compute_loss`.
            What it adds counts once per step.
        factor: What makes a loss that is summed over the devices one that is averaged.
        weights: For parts that are losses of targets with names their weights in the
            loss, by name; those above 0 are logged without it, as `<target>_loss`.
    """

    def __init__(
        self,
        parts: int,
        overridden: bool = False,
        factor: int = 1,
        weights: Mapping[str, float] | None = None,
    ):
        super().__init__(name="loss")
        self.overridden = overridden
        self.target_weights = dict(weights or {})
        self.factor = factor
        # Threads, of which tf.distribute has one per device, whose step is recorded.
        self.__dict__["_recorded_by"] = set()
        self.total = self.add_variable((parts,), "zeros", name="total")
        self.count = self.add_variable((parts,), "zeros", name="count")
        self.added = self.add_variable((), "zeros", name="added")
        self.steps = self.add_variable((), "zeros", name="steps")
        if overridden:
            self.known = self.add_variable((), "zeros", name="known")

    def record(self, parts: list, added, loss) -> None:
        """Take in the loss of a step, from within `compute_loss`.

        Args:
            parts: For each part the mean and the sum of the weights.
            added: What is added once.
            loss: What `compute_loss` returns.
        """
        if keras.backend.backend() == "jax" and not compat.in_stateless_scope():
            # A step of one's own that differentiates this: `update_state` will do.
            return
        means, weights = (
            ops.stop_gradient(ops.stack([ops.cast(v, self.dtype) for v in values]))
            for values in zip(*parts, strict=True)
        )
        self.total.assign_add(means * weights)
        self.count.assign_add(weights)
        if added is not None:
            self.added.assign_add(ops.stop_gradient(ops.cast(added, self.dtype)))
        self.steps.assign_add(1.0)
        if self.overridden:
            self.known.assign(ops.stop_gradient(ops.cast(loss, self.dtype)))
        self._recorded_by.add(threading.get_ident())

    def update_state(self, values, sample_weight=None):
        """Take in the loss of a step; of a recorded one what is not yet known."""
        del sample_weight
        thread = threading.get_ident()
        recorded = thread in self._recorded_by
        self._recorded_by.discard(thread)
        if recorded and not self.overridden:
            return
        values = ops.stop_gradient(ops.cast(values, self.dtype))
        if recorded:
            values = values - ops.convert_to_tensor(self.known)
            # Metrics of several processes are added up.
            self.known.assign(0.0)
        else:
            self.steps.assign_add(1.0)
        self.added.assign_add(self.factor * values)

    def result(self):
        """Return the mean, or a dict of it and of those of targets with names."""
        count = ops.convert_to_tensor(self.count)
        means = ops.divide_no_nan(ops.convert_to_tensor(self.total), count)
        steps = ops.maximum(ops.convert_to_tensor(self.steps), 1.0)
        loss = ops.sum(means) + ops.convert_to_tensor(self.added) / steps
        if not self.target_weights:
            return loss
        targets = {
            f"{name}_loss": means[part] / weight
            for part, (name, weight) in enumerate(self.target_weights.items())
            if weight
        }
        return {"loss": loss, **targets}


class _Values(keras.losses.Loss):
    """A function as a loss."""

    def __init__(self, function: Callable, name: str):
        super().__init__(name)
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)


def _function_name(function: Callable) -> str:
    """Return the name of a function; "lambda" of one without."""
    name = getattr(function, "__name__", type(function).__name__)
    return "".join(c for c in name if c.isidentifier() or c.isdigit()) or "function"


def _is_collection(value) -> bool:
    """Return whether an argument of `compile` is a list or dict of several."""
    return isinstance(value, list | tuple | dict) and "class_name" not in value


def _per_target(value, labels) -> bool:
    """Return whether an argument of `compile` has a value for each target."""
    if labels.num_targets == 1 or not _is_collection(value):
        return False
    # Keras takes a list or dict of one for the single output.
    named = isinstance(value, dict) and set(value) & set(labels.names or ())
    return len(value) > 1 or bool(named)


def one_loss(loss, labels=None):
    """The loss in a list or dict of one, which Keras takes for the single output.

    Args:
        loss: As passed to `compile`.
        labels: The task's `Labels`; those of several targets take a loss for each,
            which are returned as they are.
    """
    if isinstance(loss, EntryLoss):
        # That of a task: `compile(loss=task.loss)`.
        return loss.loss
    if isinstance(loss, TargetLosses):
        return [each.loss for each in loss.losses]
    if not _is_collection(loss):
        return loss
    if labels is not None and _per_target(loss, labels):
        return loss
    losses = [each for each in keras.tree.flatten(loss) if each is not None]
    if len(losses) != 1:
        raise ValueError(
            f"Expected one loss, as a task has one output. Received: loss={loss!r}. "
            "Add several up in a function: def loss(y_true, y_pred): return "
            "keras.losses.mse(y_true, y_pred) + keras.losses.mae(y_true, y_pred)."
        )
    return losses[0]


def entry_losses(loss, loss_weights, labels) -> tuple:
    """Return the loss over real entries, and the weight that Keras applies to it.

    Args:
        loss: One loss in any form that Keras takes, or one for each target.
        loss_weights: One weight, or one for each target.
        labels: The task's `Labels`.

    Raises:
        ValueError: For what does not fit, with the line to write instead.
    """
    if not (_per_target(loss, labels) or _per_target(loss_weights, labels)):
        return entry_loss(loss, labels), _one_weight(loss_weights)
    losses = _of_targets("loss", loss, labels)
    factors = _of_targets("loss_weights", loss_weights, labels, 1.0)
    losses = [entry_loss(each, labels) for each in losses]
    if any(each.is_sum for each in losses):
        raise ValueError(
            "Expected losses of targets that are means over their labels. Received: "
            'reduction="sum". Leave `reduction` out, and set loss_weights.'
        )
    factors = [
        1.0 if each is None else number("loss_weights", each) for each in factors
    ]
    return TargetLosses(losses, factors), None


def _of_targets(argument: str, values, labels, missing=None) -> list:
    """Return an argument of `compile` for each target.

    Args:
        argument: Its name.
        values: A list, a dict by name of the target, or one value for all.
        labels: The task's `Labels`.
        missing: The value of targets that a dict leaves out; None if it must not.
    """
    count, names = labels.num_targets, labels.names
    if not _is_collection(values):
        return [values] * count
    if not isinstance(values, dict):
        if len(values) != count:
            raise ValueError(
                f"Expected `{argument}` to be one for all {count} targets, or a list "
                f"of {count}. Received: {argument}={values!r}."
            )
        return list(values)
    if names is None:
        raise ValueError(
            f"Expected targets with names, for a dict as `{argument}`. Received: "
            f"{argument}={values!r}. Pass target_names=[...] (class_names=[...] with "
            "multi_label) to the task, or a list in the order of the targets."
        )
    lacking = [name for name in names if missing is None and name not in values]
    if lacking or set(values) - set(names):
        raise ValueError(
            f"Expected `{argument}` to have the targets {list(names)} as its keys. "
            f"Received: {list(values)}."
        )
    return [values.get(name, missing) for name in names]


def _one_weight(loss_weights) -> float | None:
    """Return the number in what Keras takes as `loss_weights` of one output."""
    weights = keras.tree.flatten(loss_weights)
    if len(weights) > 1 or weights and isinstance(weights[0], str):
        raise ValueError(
            "Expected one number as loss_weights, as a task has one output. Received: "
            f"loss_weights={loss_weights!r}."
        )
    return weights[0] if weights else None


def entry_loss(identifier, labels) -> EntryLoss:
    """Return a loss of any form that Keras takes, over real entries.

    Args:
        identifier: Name, function or object.
        labels: The task's `Labels`, which say what fits.

    Raises:
        ValueError: For what does not fit, with the line to write instead.
    """
    if isinstance(identifier, type):
        raise ValueError(
            f"Expected a loss. Received: the class {identifier.__name__}. Write "
            f"loss={identifier.__name__}()."
        )
    if isinstance(identifier, EntryLoss):
        return identifier
    by_name = isinstance(identifier, str)
    if by_name and identifier.lower() in ("crossentropy", "ce"):
        identifier = labels.crossentropy
    try:
        loss = keras.losses.get(identifier)
    except ValueError as error:
        if isinstance(identifier, dict):
            raise
        raise ValueError(
            "Expected `loss` to be a name that Keras knows, a function or a "
            f"keras.losses object. Received: loss={shown(identifier)}. Write "
            f"loss={labels.loss_line}, or pass a function."
        ) from error
    if isinstance(loss, keras.losses.Loss):
        if type(loss).__call__ is not keras.losses.Loss.__call__:
            raise ValueError(
                "Expected a loss with a method `call(y_true, y_pred)` that returns one "
                f"value per entry. Received: {type(loss).__name__}, which overrides "
                "__call__. Override `call` instead."
            )
        cls = known_class(loss)
    else:
        name, cls = _function_name(loss), _class_of_function(loss)
        # A function of Keras is what its name is.
        by_name = by_name or cls is not None
        loss = _Values(loss, name) if cls is None else None
    if cls is None:
        return EntryLoss(loss)
    if cls not in labels.losses:
        raise ValueError(
            f"Expected a loss for {labels.description}. Received: loss={cls.__name__}."
            f" Write loss={labels.loss_line}."
        )
    options, feed = labels.losses[cls], labels.loss_feed(cls)
    if by_name:
        return EntryLoss(cls(**options), feed)
    config = loss.get_config()
    if config.get("ignore_class") is not None:
        raise ValueError(
            "Expected a loss without ignore_class. Received: "
            f"{cls.__name__}(ignore_class={config['ignore_class']}). Labels of -1 "
            "are ignored: give the class to ignore that label."
        )
    for name, value in options.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"Expected {name}={value} in the loss, as the outputs of the task are "
                f"logits. Received: {cls.__name__}({name}={config[name]}). Write "
                f"loss=keras.losses.{cls.__name__}({name}={value})."
            )
    return EntryLoss(loss, feed)


def _known_loss(name: str):
    """What Keras has as the loss of a name, or None."""
    try:
        return keras.losses.get(name)
    except ValueError:
        return None


def _class_of_function(function: Callable | None) -> type | None:
    """Return the class of a loss function of Keras; None for any other function."""
    if not getattr(function, "__module__", "").startswith("keras."):
        return None
    for cls in vars(keras.losses).values():
        generic = cls in _GENERIC or cls is keras.losses.CTC
        if isinstance(cls, type) and not generic and cls().fn is function:
            return cls
    return None


def entry_metrics(identifiers, labels, weighted: bool) -> list[EntryMetric]:
    """Metrics of any form that Keras takes, over real entries.

    Args:
        identifiers: A name, function or object, or lists and dicts of them. Of a dict
            whose keys are names of targets each sees one target.
        labels: The task's `Labels`, which say what fits.
        weighted: Whether weights weigh.

    Raises:
        ValueError: For what does not fit, with the line to write instead.
    """
    metrics = [
        _entry_metric(each, labels, weighted, target)
        for target, each in _with_targets(identifiers, labels)
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


def _with_targets(identifiers, labels) -> Iterator[tuple[Target | None, object]]:
    """Yield each metric with the target that it is of, None for all."""
    if isinstance(identifiers, dict) and labels.names is not None:
        unknown = set(identifiers) - set(labels.names)
        if unknown:
            raise ValueError(
                f"Expected `metrics` by name of a target, {list(labels.names)}. "
                f"Received: {sorted(map(str, unknown))}. Pass a list for metrics over "
                "all targets."
            )
        for index, name in enumerate(labels.names):
            target = Target(name, index, labels.num_targets)
            for each in keras.tree.flatten(identifiers.get(name)):
                if each is not None:
                    yield target, each
    elif isinstance(identifiers, list | tuple):
        for each in identifiers:
            yield from _with_targets(each, labels)
    else:
        for each in keras.tree.flatten(identifiers):
            if each is not None:
                yield None, each


def _entry_metric(
    identifier, labels, weighted: bool, target: Target | None = None
) -> EntryMetric:
    if target is not None and target.count > 1:
        # What fits the labels of a single target fits.
        labels = type(labels)(1)
    if isinstance(identifier, EntryMetric):
        identifier = identifier.metric
    if isinstance(identifier, type):
        raise ValueError(
            f"Expected a metric. Received: the class {identifier.__name__}. Write "
            f"{identifier.__name__}()."
        )
    metric = _metric(identifier, labels)
    cls = known_class(metric)
    if isinstance(metric, _FunctionMetric):
        return EntryMetric(metric, None, weighted, target)
    if cls is not None:
        feed = labels.feed(metric, cls)
        if feed is None:
            raise ValueError(
                f"Expected a metric for {labels.description}. Received: "
                f"{_described(metric, cls)}. Write metrics={labels.metric_line}, or "
                "compute it from predict()."
            )
        return EntryMetric(metric, feed, weighted, target)
    try:
        inspect.signature(metric.update_state).bind(0, 0, sample_weight=0)
    except TypeError:
        raise ValueError(
            "Expected a metric with update_state(y_true, y_pred, sample_weight=None), "
            f"so that padding can be left out. Received: {type(metric).__name__} "
            f"with update_state{inspect.signature(metric.update_state)}."
        ) from None
    return EntryMetric(metric, None, weighted, target)


def _described(metric, cls: type) -> str:
    config = metric.get_config()
    names = ("class_id", "top_k", "multi_label", "num_regressors", "threshold")
    said = [f"{n}={config[n]}" for n in names if config.get(n)]
    return f"{cls.__name__}({', '.join(said)})"


def _metric(identifier, labels) -> keras.metrics.Metric:
    """Return a metric with the name that it has in the logs."""
    if isinstance(identifier, keras.metrics.Metric):
        return identifier
    if isinstance(identifier, str):
        name = labels.metric_names.get(identifier.lower(), identifier)
        options = {}
        try:
            metric = keras.metrics.get(name)
        except ValueError as error:
            # Losses that Keras has no metric of, such as "huber".
            cls = _class_of_function(_known_loss(name))
            if cls not in labels.losses:
                raise ValueError(
                    "Expected metrics that are names that Keras knows, functions or "
                    f"keras.metrics objects. Received: {identifier!r}. Write "
                    f"metrics={labels.metric_line}, or pass a function."
                ) from error
            loss = entry_loss(name, labels)
            return _FunctionMetric(loss.values, identifier)
        config = metric.get_config()
        options = {"from_logits": True} if "from_logits" in config else {}
        return type(metric).from_config({**config, **options, "name": identifier})
    if isinstance(identifier, dict):
        return keras.metrics.get(identifier)
    if not callable(identifier):
        raise ValueError(
            "Expected metrics that are names, functions or keras.metrics objects. "
            f"Received: {identifier!r}."
        )
    name = _function_name(identifier)
    # Of functions that `functools.wraps` makes, `__module__` is that of another one.
    module = getattr(identifier, "__globals__", {}).get("__name__", "")
    if module.startswith("keras."):
        return _metric(name, labels)
    return _FunctionMetric(identifier, name)


class _FunctionMetric(keras.metrics.MeanMetricWrapper):
    """The mean of a function's values."""

    def __init__(self, function: Callable, name: str):
        def values(y_true, y_pred):
            entries = function(y_true, y_pred)
            return _one_per_entry(entries, y_pred, name, "metric")

        super().__init__(values, name=name)
