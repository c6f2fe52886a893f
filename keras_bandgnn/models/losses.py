"""Losses over the real entries of a batch, and their mean in the logs.

Batches are padded and labels may be missing, so Keras' default reductions would count
padding. Tasks flatten a batch once to entries: labels [n, 1], outputs [n, C] and
weights [n].

An entry has two weights. Its mask is 1 if it is real, not padding, and its label is
known: not NaN, not class -1, and not excluded by the `mask` of a task. Losses
divide by it, and `metrics` count by it, as in Keras regardless of `sample_weight`. The
mask times `sample_weight` weighs losses and `weighted_metrics`.
"""

import inspect
from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_bandgnn import compat, keras_bases
from keras_bandgnn.checks import number, shown
from keras_bandgnn.models.labels import Labels, keras_name


def per_entry(values, y_pred, name: str, kind: str):
    """Return the values [n] of a function; raise a ValueError for other shapes."""
    values = ops.convert_to_tensor(values)
    shape, rows = tuple(values.shape), y_pred.shape[0]
    # Sizes are None if they are not static.
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


def of_target(values, index: int, count: int):
    """Return the entries of a target; entry n belongs to target n modulo `count`."""
    if count == 1:
        return values
    return ops.reshape(values, (-1, count, *values.shape[1:]))[:, index]


class _Part:
    """A Keras loss over entries, and its weight in the sum.

    Args:
        loss: Any `keras.losses.Loss` whose `call` returns one value per entry.
        adapter: See `Labels.adapter`.
        factor: The weight.
    """

    def __init__(self, loss: keras.losses.Loss, adapter: Callable, factor: float):
        self.loss = loss
        self.adapter = adapter
        self.factor = factor

    def term(self, y_true, y_pred, weight, mask) -> tuple:
        """Return the weighted mean over entries, and its divisor.

        As in Keras, weights multiply the terms of the sum, not their number, unless
        the reduction is "mean_with_sample_weight".
        """
        dtype = self.loss.dtype
        weight = ops.convert_to_tensor(weight, dtype=dtype)
        y_true = ops.convert_to_tensor(y_true, dtype=dtype)
        y_pred = ops.convert_to_tensor(y_pred, dtype=dtype)
        real = weight != 0
        # `where` blocks values and gradients of padding; 0 * NaN would be NaN.
        y_pred = ops.where(ops.expand_dims(real, -1), y_pred, 0.0)
        values = self.loss.call(*self.adapter(y_true, y_pred))
        values = ops.where(real, per_entry(values, y_pred, self.loss.name, "loss"), 0.0)
        total = ops.sum(weight)
        mean = ops.divide_no_nan(ops.sum(values * weight), total)
        mean = mean if self.factor == 1.0 else self.factor * mean
        if self.loss.reduction == "mean_with_sample_weight":
            return mean, total
        count = ops.sum(mask)
        return mean * ops.divide_no_nan(total, count), count


class EntryLoss:
    """A loss over all entries, or the sum of one loss per target.

    Args:
        identifier: One loss in any form that Keras takes, or one for each target.
        loss_weights: One weight, or one for each target; None for 1.
        labels: The task's `Labels`.

    Attributes:
        identifier: The argument.
        target_weights: The weights by name of the target, if each has a loss.

    Raises:
        ValueError: If a loss is incompatible with the labels.
    """

    def __init__(self, identifier, loss_weights, labels: Labels):
        self.identifier = identifier
        losses = by_target("loss", identifier, labels)
        factors = by_target("loss_weights", loss_weights, labels, 1.0)
        count = max(len(losses), len(factors))
        losses = losses * (count // len(losses))
        factors = factors * (count // len(factors))
        self.parts = [
            _Part(*resolve_loss(loss, labels), _factor(factor))
            for loss, factor in zip(losses, factors, strict=True)
        ]
        factors = [part.factor for part in self.parts]
        names = labels.names or () if count > 1 else ()
        self.target_weights = dict(zip(names, factors, strict=False))
        if count > 1 and any(part.loss.reduction == "sum" for part in self.parts):
            raise ValueError(
                "Expected losses of targets that are means over their labels. "
                'Received: reduction="sum". Leave `reduction` out, and set '
                "loss_weights."
            )

    def __call__(self, y_true, y_pred, sample_weight):
        """Return the weighted mean loss of labels [n, 1], outputs and weights."""
        terms = self.terms(y_true, y_pred, sample_weight, sample_weight)
        return sum(mean for mean, _ in terms)

    @property
    def is_sum(self) -> bool:
        """Return whether training minimises the sum over entries."""
        return self.parts[0].loss.reduction == "sum"

    def terms(self, y_true, y_pred, weight, mask) -> list:
        """Return (mean over entries, their number) of each part of the loss.

        Args:
            y_true: Labels [n, 1].
            y_pred: Outputs [n, C].
            weight: [n], weights of the entries.
            mask: [n], above 0 for real entries, also those with a weight of 0: 1, or
                the factor of a sampler.
        """
        count = len(self.parts)
        return [
            part.term(*(of_target(v, i, count) for v in (y_true, y_pred, weight, mask)))
            for i, part in enumerate(self.parts)
        ]

    def expected(self, count, total) -> list:
        """Return the expected divisors of the means of `terms`.

        Args:
            count: [C], expected number of labels of each target.
            total: [C], expected sum of their weights.
        """
        numbers = []
        for index, part in enumerate(self.parts):
            weighted = part.loss.reduction == "mean_with_sample_weight"
            values = total if weighted else count
            numbers.append(
                ops.sum(values) if len(self.parts) == 1 else ops.sum(values[index])
            )
        return numbers


def by_target(argument: str, value, labels: Labels, missing=None) -> list:
    """Return an argument of `compile` as a list, one for all targets or one each.

    Args:
        argument: Its name.
        value: One for all, a list, or a dict by name of the target.
        labels: The task's `Labels`.
        missing: Value for targets that a dict omits; None to require all.
    """
    if not isinstance(value, list | tuple | dict) or "class_name" in value:
        return [value]
    count, names = labels.num_targets, labels.names or ()
    # Keras takes a list or dict of one for the single output.
    if isinstance(value, dict) and count > 1:
        if len(value) > 1 or set(value) & set(names):
            return _by_name(argument, value, names, missing)
    values = [*value.values()] if isinstance(value, dict) else [*value]
    if count == 1:
        values = [item for item in values if item is not None]
    if len(values) in (1, count):
        return values
    advice = ""
    if argument == "loss":
        advice = (
            " Add several up in a function: def loss(y_true, y_pred): return "
            "keras.losses.mse(y_true, y_pred) + keras.losses.mae(y_true, y_pred)."
        )
    expected = f"`{argument}` to be one for all {count} targets, or a list of {count}"
    if count == 1:
        expected = f"one {argument}, as a task has one output"
    raise ValueError(f"Expected {expected}. Received: {argument}={value!r}.{advice}")


def _by_name(argument: str, value: dict, names: Sequence[str], missing) -> list:
    """Return the values of a dict in the order of the targets."""
    if not names:
        raise ValueError(
            f"Expected targets with names, for a dict as `{argument}`. Received: "
            f"{argument}={value!r}. Pass target_names=[...] (class_names=[...] with "
            "multi_label) to the task, or a list in the order of the targets."
        )
    lacking = [name for name in names if missing is None and name not in value]
    if lacking or set(value) - set(names):
        raise ValueError(
            f"Expected `{argument}` to have the targets {list(names)} as its keys. "
            f"Received: {list(value)}."
        )
    return [value.get(name, missing) for name in names]


def _factor(weight) -> float:
    return 1.0 if weight is None else number("loss_weights", weight)


def refuse_class(kind: str, value) -> None:
    """Raise a ValueError for a class instead of an instance."""
    if isinstance(value, type):
        raise ValueError(
            f"Expected a {kind}. Received: the class {value.__name__}. Write "
            f"{kind}={value.__name__}()."
        )


class FunctionLoss(keras_bases.Loss):
    """A function as a loss."""

    def __init__(self, function: Callable):
        super().__init__(function_name(function))
        self.function = function

    def call(self, y_true, y_pred):
        """Return the values of the function."""
        return self.function(y_true, y_pred)


def function_name(function: Callable) -> str:
    """Return the name of a function; "lambda" of one without."""
    name = getattr(function, "__name__", type(function).__name__)
    return "".join(c for c in name if c.isidentifier() or c.isdigit()) or "function"


def is_of_keras(function) -> bool:
    """Return whether a function is a loss or metric of Keras."""
    name = getattr(function, "__name__", "")
    return any(
        vars(module).get(name) is function for module in (keras.losses, keras.metrics)
    )


def _class_of_function(function) -> type | None:
    """Return the class of a loss function of Keras; None for any other function."""
    if not is_of_keras(function):
        return None
    name = function_name(function).replace("_", "")
    classes = [cls for cls in vars(keras.losses).values() if isinstance(cls, type)]
    return next((cls for cls in classes if cls.__name__.lower() == name), None)


def resolve_loss(identifier, labels: Labels) -> tuple[keras.losses.Loss, Callable]:
    """Convert a loss of any form that Keras takes; return it with its adapter."""
    refuse_class("loss", identifier)
    by_name = isinstance(identifier, str)
    if by_name and identifier.lower() in ("crossentropy", "ce"):
        identifier = labels.crossentropy
    try:
        loss = keras.losses.get(identifier)
    except ValueError:
        if isinstance(identifier, dict):
            raise
        loss = None
    if loss is None:
        raise ValueError(
            "Expected `loss` to be a name that Keras knows, a function or a "
            f"keras.losses object. Received: loss={shown(identifier)}. Write "
            f"loss={labels.loss_line}, or pass a function."
        )
    cls = type(loss) if by_name else None
    if not isinstance(loss, keras.losses.Loss):
        # A function of Keras stands for the class of the same name.
        cls = _class_of_function(loss)
        loss = FunctionLoss(loss) if cls is None else loss
    if cls is not None:
        logits = "from_logits" in inspect.signature(cls).parameters
        loss = cls(from_logits=True) if logits else cls()
    return loss, _adapter(loss, labels)


def _adapter(loss: keras.losses.Loss, labels: Labels) -> Callable:
    """Return the adapter for a loss, if it is compatible with the labels."""
    name = keras_name(loss)
    adapter = labels.adapter(loss, name)
    if adapter is None:
        raise ValueError(
            f"Expected a loss for {labels.description}. Received: loss={name}."
            f" Write loss={labels.loss_line}."
        )
    config = {} if name is None else loss.get_config()
    if config.get("ignore_class") is not None:
        raise ValueError(
            "Expected a loss without ignore_class. Received: "
            f"{name}(ignore_class={config['ignore_class']}). Labels of -1 "
            "are ignored: give the class to ignore that label."
        )
    if config.get("from_logits") is False:
        raise ValueError(
            "Expected from_logits=True in the loss, as the outputs of the task are "
            f"logits. Received: {name}(from_logits=False). Write "
            f"loss=keras.losses.{name}(from_logits=True)."
        )
    return adapter


class LossTracker(keras_bases.Metric):
    """The loss in the logs: the mean over all entries since the last reset.

    A loss is a sum of parts, each a mean over its own entries (graphs, or known
    components of forces), and of terms that are added once per step (regularisation).
    Keras' tracker would give all batches the same weight, because axis 0 is that of
    supergraphs; this one is independent of the batching.

    Args:
        parts: Number of parts with separate entries.
        factor: Factor from a loss that is summed over devices to one that is averaged.
        weights: Weights of the losses of named targets. Losses with a weight other
            than 0 are logged without it, as `<target>_loss`.
    """

    def __init__(self, parts: int = 1, factor: int = 1, weights: dict | None = None):
        super().__init__(name="loss")
        self.target_weights = weights or {}
        self.factor = factor
        self.total = self.add_variable((parts,), "zeros", name="total")
        self.count = self.add_variable((parts,), "zeros", name="count")
        self.added = self.add_variable((), "zeros", name="added")
        self.steps = self.add_variable((), "zeros", name="steps")
        # The loss that `record` added in the current step, and whether it did.
        self.step_loss = self.add_variable((), "zeros", name="step_loss")
        self.recorded = self.add_variable((), "zeros", name="recorded")

    def record(self, parts: list, added, loss) -> None:
        """Add the loss of a step; called by `compute_loss`.

        Args:
            parts: For each part the mean and the sum of the weights.
            added: Sum of the terms that are added once per step.
            loss: The result of `compute_loss`.
        """
        if keras.backend.backend() == "jax" and not compat.in_stateless_scope():
            # A custom step differentiates `compute_loss`; `update_state` is enough.
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
        self.step_loss.assign(ops.stop_gradient(ops.cast(loss, self.dtype)))
        self.recorded.assign(1.0)

    def update_state(self, values, sample_weight=None):
        """Add the loss of a step; after `record` only terms that were added since."""
        del sample_weight
        values = ops.stop_gradient(ops.cast(values, self.dtype))
        step_loss = ops.convert_to_tensor(self.step_loss)
        # The difference of equal infinite losses is NaN.
        same = ops.equal(values, step_loss)
        more = ops.where(same, 0.0, values - step_loss)
        self.added.assign_add(self.factor * more)
        self.steps.assign_add(1.0 - ops.convert_to_tensor(self.recorded))
        # Reset, because metrics of several processes are summed.
        self.step_loss.assign(0.0)
        self.recorded.assign(0.0)

    def result(self):
        """Return the mean loss, or a dict that includes the losses of named targets."""
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
