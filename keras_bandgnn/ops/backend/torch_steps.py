"""Trace a step with `make_fx` once and replay it without Python's overhead.

A step on small graphs is a thousand operations of a few microseconds each; Keras and
autograd take most of the time. A record is the sequence of device operations, forward
and backward, so results are the same (with dropout, up to rounding). The model's
`record_steps` selects the steps that are recorded.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

import keras
import torch

from keras_bandgnn import compat
from keras_bandgnn.ops.backend import torch_graphs, torch_programs
from keras_bandgnn.ops.backend.torch_guard import Guard
from keras_bandgnn.ops.backend.torch_programs import NotRecordable

# Eager steps per shape of batch before one is recorded. A record takes as long as 20 to
# 40 steps save, of predictions and of training alike, so the first steps cost at most
# twice what they need.
_WORTH = 32
# Maximum number of recorded shapes.
_MAX_SHAPES = 32
# Number of times that a changed model is recorded again before it stays eager.
_MAX_CHANGES = 3
# Number of times that the update of the weights is recorded for a CUDA graph.
_MAX_UPDATES = 3
_LOG = logging.getLogger("keras_bandgnn")


class _Recording(threading.local):
    # Pairs (condition, value) that the trace is specialised on; None if there is none.
    conditions: list | None = None


_recording = _Recording()


def check_recordable(reason: str) -> None:
    """Raise an error if a step is being recorded; the step then runs eagerly."""
    if is_recording():
        raise NotRecordable(reason)


def is_recording() -> bool:
    """Return whether a step is being recorded in this thread."""
    return _recording.conditions is not None


def specialise(condition) -> bool:
    """Return the value of a condition, and specialise the record on it."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing(), torch_programs.reading_values():
        value = bool(condition)
    _recording.conditions.append((condition, value))
    return value


# === Batches ===


def _leaves(data) -> Iterator:
    if isinstance(data, Mapping):
        # Sorted, as records return nested outputs in this order.
        for name in sorted(data):
            yield from _leaves(data[name])
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _leaves(value)
    elif data is not None:
        yield data


def _tensors(data) -> list:
    return [torch.as_tensor(leaf) for leaf in _leaves(data)]


def shape_of(data):
    """Return names, shapes and types of the arrays of a step."""
    if isinstance(data, Mapping):
        return tuple((name, shape_of(data[name])) for name in sorted(data))
    if isinstance(data, list | tuple):
        return tuple(map(shape_of, data))
    shape = getattr(data, "shape", None)
    if shape is None:
        return repr(data)
    # The same for NumPy arrays and tensors.
    return tuple(shape), str(data.dtype).rpartition(".")[2]


def _with_leaves(data, leaves: Iterator):
    """Return nested data with its leaves replaced."""
    if isinstance(data, Mapping):
        values = {name: _with_leaves(data[name], leaves) for name in sorted(data)}
        return {name: values[name] for name in data}
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
            # Copies from pinned memory are asynchronous.
            leaf = leaf.pin_memory()
        return leaf.to(device, non_blocking=True)

    return _with_leaves(data, map(moved, _leaves(data)))


# === Which steps are recorded ===


class _Shape:
    """The steps on batches of one shape, and their record or the reason against one."""

    def __init__(self):
        self.count = 0
        self.record: _Record | None = None
        self.reason: str | None = None


class Records:
    """The records of one kind of step of a model, by shape of batch.

    Args:
        model: The model.
        kind: "train", "test" or "predict".
        choice: "auto", True or "cuda_graphs"; see `compile` of tasks.
    """

    def __init__(self, model: keras.Model, kind: str, choice):
        self.name = f"{kind} steps of {type(model).__name__}"
        self.kind = kind
        self.is_strict = choice != "auto"
        self.graphed = choice == "cuda_graphs"
        self.shapes: dict = {}
        self.changes = 0
        self.has_logged = False

    def step(self, model: keras.Model, data):
        """Return the results of a recorded step, or None to run Keras' eager step."""
        shape = shape_of(data)
        steps = self.shapes.setdefault(shape, _Shape())
        if steps.record is not None:
            changed = steps.record.changed()
            if changed is None:
                return self._replay(steps, data)
            self._end(changed)
            steps = self.shapes.setdefault(shape, _Shape())
        steps.count += 1
        if steps.reason is not None:
            return self._stay_eager(steps, steps.reason)
        if not self.is_strict and (
            steps.count <= _WORTH or self.changes > _MAX_CHANGES
        ):
            return None
        # A copy, as other threads may predict with the model.
        shapes = [*self.shapes.values()]
        if sum(shape.record is not None for shape in shapes) >= _MAX_SHAPES:
            return self._stay_eager(steps, f"more than {_MAX_SHAPES} shapes of batches")
        if not torch_programs.one_trace.acquire(blocking=self.is_strict):
            return None
        try:
            steps.record, outputs = _record(model, self.kind, data, self.graphed)
        except NotRecordable as error:
            return self._stay_eager(steps, str(error))
        finally:
            torch_programs.one_trace.release()
        graphs = " as CUDA graphs" if steps.record.graphed else ""
        if self.graphed and not graphs:
            graphs = " without CUDA graphs, which need the first GPU"
        message = f"%s are recorded{graphs} from step %d of a shape on"
        self._log(message, steps.count)
        return outputs

    def _replay(self, steps: _Shape, data):
        record = steps.record
        outputs = record(data)
        if outputs is None:
            # If most batches take another branch, record that one instead.
            record.missed += 1
            if record.missed >= _WORTH:
                steps.record, steps.count = None, _WORTH
        return outputs

    def _end(self, changed: str) -> None:
        """Discard all records because the model has changed."""
        self.shapes.clear()
        self.changes += 1
        _LOG.info("%s: records end, as this has changed: %s", self.name, changed)

    def _stay_eager(self, steps: _Shape, reason: str) -> None:
        """Keep this shape eager, or raise an error if steps must be recorded."""
        steps.reason = reason
        if self.is_strict:
            raise ValueError(_not_recordable(self.name, reason))
        self._log("%s stay eager. Not recordable: %s", reason)

    def _log(self, message: str, value) -> None:
        if not self.has_logged:
            self.has_logged = True
            _LOG.info(message, self.name, value)


def _not_recordable(name: str, reason: str) -> str:
    return (
        f"Expected {name} that can be recorded, as record_steps asks for it. Received: "
        f'{reason}. Pass compile(record_steps="auto") for eager steps where code of '
        "others runs, or leave that out."
    )


def recorded(model: keras.Model, kind: str, data):
    """Return the results of a recorded step, or None to run Keras' eager step.

    Args:
        model: The model; its `record_steps` selects the steps that are recorded.
        kind: "train", "test" or "predict".
        data: The arguments of the step.

    Raises:
        ValueError: If `record_steps` requires a record that is impossible.
    """
    choice = model.record_steps
    if choice is False or (kind != "predict" and not _can_train(model, kind)):
        return None
    reason = eager_now(model)
    if reason is not None:
        if choice != "auto":
            raise ValueError(_not_recordable(f"{kind} steps", reason))
        return None
    if kind == "predict":
        data, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    records = compat.model_cache(model).setdefault("records", {})
    if (kind, choice) not in records:
        records[kind, choice] = Records(model, kind, choice)
    return records[kind, choice].step(model, data)


def _can_train(model: keras.Model, kind: str) -> bool:
    """Return whether the model is ready; otherwise Keras' step raises the error."""
    if kind == "test":
        return model.compiled
    return (
        model.optimizer is not None
        and model.optimizer.built
        and bool(model.trainable_variables)
    )


def eager_now(model: keras.Model) -> str | None:
    """Return the setting that rules out recording for any model, or None."""
    device = torch.device(compat.torch_device()).type
    reasons = {
        "run_eagerly=True": model.run_eagerly,
        "jit_compile=True": model.jit_compile,
        "several processes": model.distribution.several,
        "torch.autocast": torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled(device),
        "torch.autograd.detect_anomaly": torch.is_anomaly_enabled(),
        "a mode of torch's functions": compat.modes_of_others(),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


# === Records ===


def random_states() -> list:
    """Return the states of torch's global random generators."""
    states = [torch.get_rng_state()]
    if compat.torch_device().startswith("cuda"):
        states += torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: list) -> None:
    """Set the states of torch's global generators to those of `random_states`."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


@contextlib.contextmanager
def _restored_on_error(model: keras.Model) -> Iterator[None]:
    """Restore variables and random states if a step cannot be recorded."""
    variables = model.non_trainable_variables + model.metrics_variables
    state = compat.held_values(variables)
    before = [value.clone() for value in state]
    random = random_states()
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for value, old in zip(state, before, strict=True):
                value.copy_(old)
        set_random_states(random)
        raise


def _record(model: keras.Model, kind: str, data, graphed: bool) -> tuple:
    """Run and record a step; return the record and the results of the step.

    Raises:
        NotRecordable: If the step cannot be recorded; the model is then unchanged.
    """
    with _restored_on_error(model):
        record = _KINDS[kind](model, graphed)
        try:
            outputs = record.trace(data)
        except NotRecordable:
            raise
        except Exception as error:
            error.add_note(
                "This was raised while a step was recorded. "
                "compile(record_steps=False) runs all steps eagerly."
            )
            raise
    return record, record.finish(outputs)


class _Record:
    """The operations of a step on data of one shape.

    Args:
        model: The model.
        graphed: Whether to replay the step as a CUDA graph.

    Raises:
        NotRecordable: If the step runs code from outside Keras and this library.
    """

    with_labels = True

    def __init__(self, model: keras.Model, graphed: bool = False):
        self.model = model
        self.graphed = graphed and torch_graphs.are_possible(self.reads())
        self.missed = 0
        self.guard = self._new_guard()
        if self.guard.foreign is not None:
            raise NotRecordable(self.guard.foreign)

    def _new_guard(self) -> Guard:
        return Guard(self.model, self.more(), self.with_labels)

    def more(self) -> dict:
        """Return further objects that the step reads, by name."""
        return {}

    def reads(self) -> list:
        """Return the tensors that the step reads and changes."""
        variables = [*self.model.variables, *self.model.metrics_variables]
        return compat.held_values(variables)

    def compute(self, data) -> list:
        """Return the outputs of the step, a list of tensors; this is recorded."""
        raise NotImplementedError

    def finish(self, outputs):
        """Return the results of a step from its outputs."""
        raise NotImplementedError

    def trace(self, data) -> list:
        """Run and record the step; return its outputs."""
        from keras_bandgnn.ops.backend.torch_memory import reuse_memory

        outputs: list = []

        def step(*leaves):
            outputs.extend(self.compute(_with_leaves(data, iter(leaves))))
            return [*outputs, *(condition for condition, _ in _recording.conditions)]

        _recording.conditions = []
        try:
            # Copies, because layers may cache properties on a tensor.
            traced = torch_programs.trace(step, [t.clone() for t in _tensors(data)])
            self.branches = [value for _, value in _recording.conditions]
        finally:
            _recording.conditions = None
        self.conditions = torch_programs.split_off(traced, len(self.branches))
        reuse_memory(traced.graph)
        if self.graphed:
            torch_programs.move_constants(traced)
        self.program, self.constants = torch_programs.program_of(traced)
        if self.graphed:
            self.program = self.as_graph(self.program)
        if self.guard.changed() is not None:
            # The first step of a model creates state that later steps read.
            self.guard = self._new_guard()
        return outputs

    def as_graph(self, program: Callable) -> Callable:
        """Return a program that replays another as a CUDA graph."""
        return torch_graphs.GraphedProgram(program, lambda: self.constants)

    def changed(self) -> str | None:
        """Return the first change that invalidates the record, or None."""
        return self.guard.changed()

    def __call__(self, data):
        """Replay the step; return its results, or None if data take another branch."""
        leaves = _tensors(data)
        with torch.inference_mode():
            if self.branches and self.branches != [
                bool(value) for value in self.conditions(*leaves)
            ]:
                return None
            outputs = self.program(*leaves)
        return self.finish(outputs)


class _TrainingRecord(_Record):
    """A training step: gradients and logs; `finish` then updates the weights."""

    def __init__(self, model: keras.Model, graphed: bool = False):
        self.optimizer = model.optimizer
        self.variables = model.trainable_variables
        if not all(value.requires_grad for value in compat.held_values(self.variables)):
            raise NotRecordable("a weight that takes no gradients")
        super().__init__(model, graphed)
        # Updates the weights within a CUDA graph; None if `finish` does.
        self.update: Callable | None = None
        self.chances = _MAX_UPDATES if self.graphed else 0

    def more(self) -> dict:
        """See `_Record`; of optimizers only the scaling of the loss is recorded."""
        return {"optimizer.scale_loss": [scale for _, scale, _ in self._scaling()]}

    def _new_guard(self) -> Guard:
        self.scaling = self._scaling()
        return super()._new_guard()

    def _scaling(self) -> list[tuple]:
        """Return the optimizer and those that it wraps, with their loss scaling."""
        scaling, optimizer = [], self.model.optimizer
        while optimizer is not None:
            scale = getattr(optimizer.scale_loss, "__func__", optimizer.scale_loss)
            scaling.append((optimizer, scale, optimizer.loss_scale_factor))
            optimizer = getattr(optimizer, "inner_optimizer", None)
        return scaling

    def compute(self, data) -> list:
        """Return the gradients and the logs."""
        model = self.model
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = model(x, training=True)
        loss = compat.whole_loss(model, x, y, outputs, weight)
        gradients = torch.autograd.grad(
            self.optimizer.scale_loss(loss),
            [variable.value for variable in self.variables],
            allow_unused=True,
        )
        logs = model.compute_metrics(x, y, outputs, sample_weight=weight)
        self.names = list(logs)
        return [*gradients, *logs.values()]

    def finish(self, outputs) -> dict:
        """Update the weights; return the logs."""
        count = len(self.variables)
        gradients = list(outputs[:count])
        if self.update is None and not self._record_update(gradients):
            with torch.no_grad():
                self.optimizer.apply(gradients, self.variables)
        # As after a step of Keras, for callbacks that read gradients.
        weights = compat.held_values(self.variables)
        for value, gradient in zip(weights, gradients, strict=True):
            value.grad = gradient
        return dict(zip(self.names, outputs[count:], strict=True))

    def reads(self) -> list:
        """See `_Record`; includes the state of the optimizer."""
        return [*super().reads(), *_state_of(self.optimizer)]

    def changed(self) -> str | None:
        """See `_Record`; if only the update has changed, it is recorded again."""
        if self.update is not None and self.update_guard.changed() is not None:
            self.update = None
            self.program.forget()
        if self.scaling != self._scaling():
            return "optimizer.scale_loss"
        return super().changed()

    def as_graph(self, program: Callable) -> Callable:
        """See `_Record`; the graph includes the update of the weights if possible."""
        count = len(self.variables)

        def step(*leaves):
            outputs = program(*leaves)
            if self.update is not None:
                gradients = (value for value in outputs[:count] if value is not None)
                self.update(*gradients)
            return outputs

        def reads():
            state = [] if self.update is None else self.update_constants
            return [*self.constants, *state]

        return torch_graphs.GraphedProgram(step, reads)

    def _record_update(self, gradients: list) -> bool:
        """Update the weights and record the update; return whether it succeeded."""
        if not self.chances:
            return False
        constraints = [variable.constraint for variable in self.variables]
        guard = Guard(self.optimizer, {"constraints": constraints})
        if guard.foreign is not None or hasattr(self.optimizer, "inner_optimizer"):
            self.chances = 0
            return False

        def update(*tensors):
            present = iter(tensors)
            filled = [g if g is None else next(present) for g in gradients]
            self.optimizer.apply(filled, self.variables)

        inputs = [gradient for gradient in gradients if gradient is not None]
        state = _state_of(self.optimizer) + compat.held_values(self.variables)
        with torch.no_grad():
            before = [value.clone() for value in state]
            try:
                # The state is an input, so that its values do not become constants.
                traced = torch_programs.trace(update, [*inputs, *state])
            except NotRecordable:  # Keras then updates the weights in each step.
                self.chances = 0
                for value, old in zip(state, before, strict=True):
                    value.copy_(old)
                return False
        torch_programs.move_constants(traced)
        program, constants = torch_programs.program_of(traced)
        self.update_constants = [*constants, *state]
        self.update = lambda *tensors: program(*tensors, *state)
        self.update_guard = Guard(self.optimizer, {"constraints": constraints})
        self.chances -= 1
        self.program.forget()
        return True


def _state_of(optimizer) -> list:
    """Return the state tensors of an optimizer; Nadam has one outside `variables`."""
    more = [v for v in vars(optimizer).values() if isinstance(v, keras.Variable)]
    values = compat.held_values([*optimizer.variables, *more])
    return [*{id(value): value for value in values}.values()]


class _EvaluationRecord(_Record):
    """An evaluation step: the logs."""

    def compute(self, data) -> list:
        """Return the logs."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self.model(x, training=False)
        compat.whole_loss(self.model, x, y, outputs, weight, training=False)
        logs = self.model.compute_metrics(x, y, outputs, sample_weight=weight)
        self.names = list(logs)
        return list(logs.values())

    def finish(self, outputs) -> dict:
        """Return the logs by name."""
        return dict(zip(self.names, outputs, strict=True))


class _PredictionRecord(_Record):
    """A prediction step: the outputs for a batch."""

    with_labels = False

    def compute(self, data) -> list:
        """Return the outputs as a flat list."""
        outputs = self.model(data, training=False)
        self.structure = keras.tree.map_structure(lambda output: 0, outputs)
        return keras.tree.flatten(outputs)

    def finish(self, outputs):
        """Return the outputs with their structure."""
        return keras.tree.pack_sequence_as(self.structure, list(outputs))


_KINDS = {
    "train": _TrainingRecord,
    "test": _EvaluationRecord,
    "predict": _PredictionRecord,
}


def repeated(model: keras.Model, steps: int, state, constants):
    """Repeat a step of a model; see `ops.loops`."""
    # The model's step is recorded once; a record of the loop would unroll it.
    check_recordable("a loop")
    device = keras.tree.flatten(state)[0].device
    for number in torch.arange(steps, device=device):
        data = {"step": number, "state": state, "constants": constants}
        # Replayed steps return inference tensors, which no other step may read.
        state = keras.tree.map_structure(torch.clone, model.predict_step(data))
    return state
