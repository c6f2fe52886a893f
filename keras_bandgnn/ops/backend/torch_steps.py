"""Steps that torch records once and repeats without Python's part of them.

A step of small graphs is a thousand operations of microseconds, of which Keras and
autograd take most of the time. `make_fx` records what reaches the device, forward and
backward; from the record only Python is left out, so results are the same, with dropout
up to rounding. Steps of training and of prediction are recorded.
"""

import threading
import types
from collections.abc import Callable, Iterator, Mapping

import keras
import torch
from torch.overrides import TorchFunctionMode

from keras_bandgnn import compat
from keras_bandgnn.ops.backend import torch_graphs, torch_programs

# Steps with batches of one shape before they are recorded, which takes a second or two.
_WORTH = 64
# Shapes of batches with a record of their own.
_MOST = 32
_PACKAGES = ("keras", "keras_bandgnn", "builtins", "torch")
# Values of attributes that are compared as such, others as objects.
_PLAIN = (bool, int, float, str)
_SCHEDULE = keras.optimizers.schedules.LearningRateSchedule
# Updates of weights that a record holds, one after the other.
_MOST_UPDATES = 3
# What a caller may set on a model to change its steps.
_METHODS = ("call", "compute_loss", "compute_metrics", "loss")


class _Recording(threading.local):
    # What has decided which branch the recorded step takes, None if none is recorded.
    decided = None


_recording = _Recording()
_one_records = threading.Lock()


def check_recordable(what: str) -> None:
    """Raise an error if a step is being recorded, which then runs as it is."""
    if is_recording():
        raise torch_programs.NotRecordable(what)


def is_recording() -> bool:
    """Return whether a step is being recorded in this thread."""
    return _recording.decided is not None


def decided(condition) -> bool:
    """Return a value while a step is recorded, whose record then holds for it alone."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing():
        value = bool(condition)
    _recording.decided.append((condition, value))
    return value


def recorded_step(model: keras.Model, data, kept: dict):
    """Return the logs of a training step, or None if the step of Keras is to be taken.

    Args:
        model: The compiled model.
        data: What Keras' `train_step` takes.
        kept: The records of the model, empty at first and after changes of it.
    """
    return _from_record(_TrainingRecord, model, data, kept)


def recorded_prediction(model: keras.Model, data, kept: dict):
    """Return the outputs for a batch, or None if the step of Keras is to be taken.

    Args:
        model: The compiled model.
        data: What Keras' `predict_step` takes.
        kept: The records of the model, empty at first and after changes of it.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return _from_record(_PredictionRecord, model, x, kept)


def _from_record(record_type: type, model: keras.Model, data, kept: dict):
    """Return what a step returns, or None if the step of Keras is to be taken."""
    kind = _kind(data)
    record, seen = kept.get(kind, (None, 0))
    if record is None:
        kept[kind] = None, seen + 1
        known = sum(1 for each, _ in kept.values() if each)
        if seen < _WORTH or known >= _MOST or not record_type.fits(model):
            return None
        # Torch records in one thread at a time.
        if not _one_records.acquire(blocking=False):
            return None
        try:
            record, found = _record(record_type, model, data)
        finally:
            _one_records.release()
        kept[kind] = record, seen + 1
        return found
    if not record:
        return None
    if not record.holds():
        kept.clear()
        return None
    found = record(data)
    if found is None:
        # Where most batches take another branch, that one is worth a record.
        record.missed += 1
        if record.missed >= _WORTH:
            kept[kind] = None, _WORTH
    return found


def _leaves(data) -> Iterator:
    if isinstance(data, Mapping):
        for value in data.values():
            yield from _leaves(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _leaves(value)
    elif data is not None:
        yield data


def _tensors(data) -> list:
    return [torch.as_tensor(leaf) for leaf in _leaves(data)]


def _kind(data):
    """Return names, shapes and types of the arrays of a step."""
    if isinstance(data, Mapping):
        return tuple((name, _kind(value)) for name, value in data.items())
    if isinstance(data, list | tuple):
        return tuple(map(_kind, data))
    shape = getattr(data, "shape", None)
    if shape is None:
        return repr(data)
    # Of arrays of NumPy and of tensors alike.
    return tuple(shape), str(data.dtype).rpartition(".")[2]


def _with_leaves(data, leaves: Iterator):
    """Return nested data with other leaves."""
    if isinstance(data, Mapping):
        return {name: _with_leaves(value, leaves) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return tuple(_with_leaves(value, leaves) for value in data)
    return None if data is None else next(leaves)


def step_data(data):
    """Return the data of a step on the device; see `ops.backend`."""
    return data if compat.torch_device() == "cpu" else batch_data(data)


def batch_data(data):
    """Return a batch as tensors on the device; see `ops.backend`."""
    device = torch.device(compat.torch_device())

    def moved(leaf):
        leaf = torch.as_tensor(leaf)
        if device.type == "cuda" and leaf.device.type == "cpu":
            # Copies from there do not wait for the device.
            leaf = leaf.pin_memory()
        return leaf.to(device, non_blocking=True)

    return _with_leaves(data, map(moved, _leaves(data)))


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _PACKAGES


def _is_known(value) -> bool:
    """Return whether a value of an attribute is not, and does not hold, foreign code.

    The code of others may depend on what a record does not see, such as counters, or
    have effects of its own.
    """
    if isinstance(value, list | tuple):
        return all(map(_is_known, value))
    if isinstance(value, Mapping):
        return all(map(_is_known, value.values()))
    if isinstance(value, keras.losses.Loss | keras.metrics.Metric):
        return _is_ours(type(value).__module__) and _is_known([*vars(value).values()])
    if not isinstance(value, Callable):
        return True
    if not hasattr(value, "__code__"):
        # An object that is called, or a function without code in Python.
        of = (
            value
            if isinstance(value, type | types.BuiltinFunctionType)
            else type(value)
        )
        return _is_ours(of.__module__)
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    inner = [cell for cell in cells if isinstance(cell, Callable)]
    return _is_ours(value.__module__) and all(map(_is_known, inner))


def _are_same(new: list, old: list) -> bool:
    """Return whether lists hold the same objects and equal numbers."""
    return len(new) == len(old) and all(
        a is b or (type(b) in _PLAIN and type(a) is type(b) and a == b)
        for a, b in zip(new, old, strict=True)
    )


def _values(variables: list) -> list:
    """Return tensors of variables, with types, and if they take gradients or hooks."""
    found = compat.held_values(variables)
    kinds = [value.dtype for value in found]
    taking = [value.requires_grad for value in found]
    return [*found, *kinds, *taking, *map(compat.has_gradient_hooks, found)]


def _optimizers(model: keras.Model) -> list:
    """Return the optimizer and those that it wraps."""
    found = [model.optimizer]
    while inner := getattr(found[-1], "inner_optimizer", None):
        found.append(inner)
    return found


def _updates_are_known(model: keras.Model) -> bool:
    """Return whether what updates the weights is not, and calls no, foreign code."""
    optimizer = model.optimizer
    parts = [variable.constraint for variable in model.trainable_variables]
    parts += vars(optimizer).values()
    # What optimizers of an optimizer hold would not be seen to change.
    several = any(
        isinstance(part, keras.optimizers.Optimizer)
        for part in keras.tree.flatten(parts)
    )
    return not several and _is_ours(type(optimizer).__module__) and _is_known(parts)


def _state_of(optimizer) -> list:
    """Return the tensors of an optimizer; Nadam has one beside its variables."""
    own = [v for v in vars(optimizer).values() if isinstance(v, keras.Variable)]
    found = [*optimizer.variables, *own]
    return [*{id(value): value for value in compat.held_values(found)}.values()]


class _OnTheDevice(TorchFunctionMode):
    """Raises an error where a number of a tensor becomes one of Python or NumPy."""

    _VALUES = ("numpy", "cpu", "item", "tolist", "__array__", "__bool__")
    _VALUES += ("__float__", "__int__", "__index__")

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        """Call a function of torch; see `TorchFunctionMode`."""
        if getattr(function, "__name__", "") in self._VALUES:
            raise torch_programs.NotRecordable(function.__name__)
        return function(*args, **(kwargs or {}))


def _modes(model: keras.Model) -> list:
    """Return what changes how steps are computed; all False where they are recorded."""
    return [
        model.run_eagerly,
        bool(model.jit_compile),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled(torch.device(compat.torch_device()).type),
        torch.is_anomaly_enabled(),
    ]


def _is_plain(model: keras.Model) -> bool:
    """Return whether a step is made of Keras' and this library's code alone."""
    if any(_modes(model)):
        return False
    layers = compat.sublayers(model)
    hooked = any(map(compat.has_hooks, layers)) or any(
        map(compat.has_gradient_hooks, compat.held_values(model.variables))
    )
    return not hooked and all(
        _is_ours(type(layer).__module__) and _is_known([*vars(layer).values()])
        for layer in layers
    )


def _record(record_type: type, model: keras.Model, data) -> tuple:
    """Return the record of a step, and what that step, which it has taken, returns.

    Both are None and False if the step cannot be recorded; it is not taken then.
    """
    state = [v.value for v in model.non_trainable_variables + model.metrics_variables]
    before = [value.clone() for value in state]
    random = torch.get_rng_state(), torch.cuda.get_rng_state_all()
    try:
        record = record_type(model, data)
    except Exception:  # Whatever cannot be recorded runs as it would without.
        with torch.no_grad():
            for value, old in zip(state, before, strict=True):
                value.copy_(old)
        torch.set_rng_state(random[0])
        torch.cuda.set_rng_state_all(random[1])
        return False, None
    found, record.first = record.finish(record.first), None
    return record, found


class _Record:
    """The operations of a step on data of one shape.

    Args:
        model: The model.
        data: What the step takes.
    """

    def __init__(self, model: keras.Model, data):
        # This import takes a second.
        from torch.fx.experimental.proxy_tensor import make_fx

        self.model = model
        self.layers = compat.sublayers(model)
        self.graphed = torch_graphs.are_possible(self.changed())
        self.options = self._options()
        found: list = []

        def step(*leaves):
            # Recording takes the step, too.
            found.extend(self.compute(_with_leaves(data, iter(leaves))))
            return [*found, *(condition for condition, _ in _recording.decided)]

        # Copies, as what is known of a tensor may be stored with it.
        leaves = [tensor.clone() for tensor in _tensors(data)]
        _recording.decided = []
        try:
            recorded = make_fx(step)(*leaves)
            self.branches = [value for _, value in _recording.decided]
        finally:
            _recording.decided = None
        torch_programs.check_shapes(recorded.graph)
        self.first, self.missed = found, 0
        torch_programs.simplify(recorded.graph)
        self.deciding = torch_programs.split_off(recorded, len(self.branches))
        if self.graphed:
            torch_programs.move_constants(recorded)
        self.program, self.constants = torch_programs.program_of(recorded)
        if self.graphed:
            self.program = self.as_graph(self.program)

    @classmethod
    def fits(cls, model: keras.Model) -> bool:
        """Return whether steps of a model may be recorded."""
        return _is_plain(model)

    def compute(self, data) -> list:
        """Return the tensors that the step results in, which is recorded."""
        raise NotImplementedError

    def finish(self, outputs):
        """Return what a step returns, from these tensors."""
        raise NotImplementedError

    def changed(self) -> list:
        """Return the tensors that the step reads and changes."""
        variables = [*self.model.variables, *self.model.metrics_variables]
        return compat.held_values(variables)

    def as_graph(self, program: Callable) -> Callable:
        """Return a program as one that the GPU repeats."""
        return torch_graphs.GraphedProgram(program, lambda: self.constants)

    def held(self) -> list:
        """Return the objects that the step reads, besides data and layers."""
        variables = [*self.model.variables, *self.model.metrics_variables]
        return _values(variables)

    def _options(self) -> list:
        """Return the objects that a computation of the model reads, besides a batch.

        They are compared by identity, which takes microseconds.
        """
        found = self.held() + _modes(self.model)
        found += map(vars(self.model).get, _METHODS)
        for layer in self.layers:
            found.append(compat.has_hooks(layer))
            if layer is not self.model:
                # Keras also notes in those of a model what is no part of a step. Layers
                # of Keras do not read torch's `training`, which `fit` changes.
                own = vars(layer).items()
                found += [value for name, value in own if name != "training"]
            found.append(layer.trainable)
        return found

    def holds(self) -> bool:
        """Return whether the model still computes what was recorded."""
        return _are_same(self._options(), self.options)

    def __call__(self, data):
        """Take a step; return what it returns, or None for data of another branch."""
        leaves = _tensors(data)
        with torch.inference_mode():
            if self.branches and self.branches != [
                bool(value) for value in self.deciding(*leaves)
            ]:
                return None
            outputs = self.program(*leaves)
        return self.finish(outputs)


class _TrainingRecord(_Record):
    """A training step: the gradients and the logs; weights are then updated."""

    def __init__(self, model: keras.Model, data):
        self.optimizer = model.optimizer
        self.variables = model.trainable_variables
        self.every = [*model.variables, *model.metrics_variables]
        self.names: list = []
        # What updates the weights within the program; None if `finish` does.
        self.update = None
        self.chances = _MOST_UPDATES if _updates_are_known(model) else 0
        super().__init__(model, data)

    @classmethod
    def fits(cls, model: keras.Model) -> bool:
        """See `_Record`; losses, metrics and the optimizer are parts of the step."""
        return (
            model.optimizer is not None
            and model.optimizer.built
            and bool(model.trainable_variables)
            and _is_known([model.loss, *model.metrics])
            and _is_known([v.regularizer for v in model.trainable_variables])
            and _is_known([each.scale_loss for each in _optimizers(model)])
            and _is_plain(model)
        )

    def compute(self, data) -> list:
        """Return the gradients, and the logs."""
        model = self.model
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = model(x, training=True)
        loss = compat.whole_loss(model, x, y, outputs, weight)
        weights = [v.value for v in self.variables]
        gradients = torch.autograd.grad(
            self.optimizer.scale_loss(loss), weights, allow_unused=True
        )
        logs = model.compute_metrics(x, y, outputs, sample_weight=weight)
        self.names.extend(logs)
        return [*gradients, *logs.values()]

    def finish(self, outputs) -> dict:
        """Update the weights; return the logs."""
        count = len(self.variables)
        gradients = list(outputs[:count])
        if self.update is None and not self._record_update(gradients):
            with torch.no_grad():
                self.optimizer.apply(gradients, self.variables)
        # Where a step of Keras leaves them, for those that watch them.
        weights = compat.held_values(self.variables)
        for value, gradient in zip(weights, gradients, strict=True):
            value.grad = gradient
        return dict(zip(self.names, outputs[count:], strict=True))

    def changed(self) -> list:
        """See `_Record`; the state of the optimizer, too."""
        return [*super().changed(), *_state_of(self.optimizer)]

    def holds(self) -> bool:
        """See `_Record`; an update that alone has changed is recorded anew."""
        if self.update is not None and not _are_same(
            self._update_options(), self.update_options
        ):
            self.update = None
            self.program.forget()
        return super().holds()

    def _update_options(self) -> list:
        """Return the objects that the update of the weights reads."""
        parts, found = [*vars(self.optimizer).values()], []
        for variable in self.variables:
            parts.append(variable.constraint)
            found.append(getattr(variable, "overwrite_with_gradient", False))
        found += [*parts, *_state_of(self.optimizer)]
        for part in parts:
            if isinstance(part, _SCHEDULE | keras.constraints.Constraint):
                found += keras.tree.flatten([*vars(part).values()])
        return found

    def as_graph(self, program: Callable) -> Callable:
        """See `_Record`; weights are updated in the graph, if they can be."""
        count = len(self.variables)

        def step(*leaves):
            outputs = program(*leaves)
            if self.update is not None:
                self.update(*(each for each in outputs[:count] if each is not None))
            return outputs

        def reads():
            own = [] if self.update is None else self.update_constants
            return [*self.constants, *own]

        return torch_graphs.GraphedProgram(step, reads)

    def _record_update(self, gradients: list) -> bool:
        """Update the weights and record that; return whether it is done."""
        if not self.graphed or not self.chances:
            return False
        from torch.fx.experimental.proxy_tensor import make_fx

        def update(*given_and_state):
            left = iter(given_and_state)
            filled = [each if each is None else next(left) for each in gradients]
            self.optimizer.apply(filled, self.variables)

        given = [each for each in gradients if each is not None]
        state = _state_of(self.optimizer) + compat.held_values(self.variables)
        with torch.no_grad():
            before = [value.clone() for value in state]
            try:
                # Their values are no constants, as those of other tensors would be.
                with _OnTheDevice():
                    recorded = make_fx(update)(*given, *state)
                torch_programs.check_shapes(recorded.graph)
            except Exception:  # Then Keras updates the weights in each step.
                self.chances = 0
                for value, old in zip(state, before, strict=True):
                    value.copy_(old)
                return False
        torch_programs.simplify(recorded.graph)
        torch_programs.move_constants(recorded)
        program, constants = torch_programs.program_of(recorded)
        self.update_constants = [*constants, *state]
        self.update = lambda *given: program(*given, *state)
        self.update_options = self._update_options()
        self.chances -= 1
        self.program.forget()
        return True

    def held(self) -> list:
        """See `_Record`; variables and optimizers with their options."""
        found = _values(self.every)
        parts = [self.model.loss]
        for variable in self.every:
            found += variable.trainable, variable.regularizer
            parts.append(variable.regularizer)
        for part in parts:
            if isinstance(part, keras.losses.Loss | keras.regularizers.Regularizer):
                found += vars(part).values()
        for optimizer in _optimizers(self.model):
            found += optimizer, optimizer.loss_scale_factor
        return found


class _PredictionRecord(_Record):
    """The outputs for a batch."""

    def compute(self, data) -> list:
        """Return the outputs, without their structure."""
        outputs = self.model(data, training=False)
        self.structure = keras.tree.map_structure(lambda output: 0, outputs)
        return keras.tree.flatten(outputs)

    def finish(self, outputs):
        """Return the outputs in their structure."""
        return keras.tree.pack_sequence_as(self.structure, list(outputs))
