"""Recorded steps end when anything changes that they read.

Every attribute reachable from a task, its losses, metrics and optimizer, and every
method of their classes, is changed after recording. Either the record ends, or the next
step is that of Keras.
"""

import collections
import contextlib
import functools
import logging
import types

import keras
import numpy as np
import pytest
import task_samples

import keras_bandgnn as kb
from keras_bandgnn import compat

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="torch alone records steps"
)
PACKAGES = ("keras", "keras_bandgnn")
# What the harness itself sets, and what adds variables to an optimizer anew.
HARNESS = {"record_steps"}
BUILDS = ("Adam", "built")


def make(name="GraphRegressor"):
    task = task_samples.task_of(name)
    layer = next(x for x in compat.sublayers(task) if isinstance(x, keras.layers.Dense))
    layer.activity_regularizer = keras.regularizers.L2(0.01)
    task.trainable_variables[0].regularizer = keras.regularizers.L2(0.1)
    return task


class Steps:
    """A task with a record of a kind of step, and its data."""

    def __init__(self, name, kind):
        self.task, self.kind = make(name), kind
        self.task.compile(keras.optimizers.Adam(1e-2), record_steps=True)
        self.batch = self.task.loader(task_samples.data_of(name, 4))[0]
        self.task.train_on_batch(*self.batch)
        self.outputs()
        records = compat.model_cache(self.task)["records"][kind, True]
        (shape,) = records.shapes.values()
        self.record = shape.record
        assert self.record.changed() is None

    def outputs(self, recorded=True):
        """Numbers after a step, from the same state each time; None for an error."""
        task, batch = self.task, self.batch
        before = [value.clone() for value in self.values()]
        task.record_steps = True if recorded else False
        kb.ops.seed_global(0)
        try:
            if self.kind == "predict":
                results = task.predict_step((batch[0],))
            else:
                step = task.train_step if self.kind == "train" else task.test_step
                results = step(batch)
            results = keras.tree.flatten(results) + self.values()
            return [keras.ops.convert_to_numpy(each).copy() for each in results]
        except Exception:
            return None
        finally:
            task.record_steps = True
            self.restore(before)

    def values(self):
        task = self.task
        variables = [*task.variables, *task.metrics_variables]
        return compat.held_values([*variables, *self.optimizer.variables])

    @functools.cached_property
    def optimizer(self):
        return self.task.optimizer

    def restore(self, before):
        import torch

        with torch.no_grad():
            for value, old in zip(self.values(), before, strict=True):
                value.copy_(old)


def is_ours(value):
    return type(value).__module__.partition(".")[0] in PACKAGES


def reachable(*roots):
    """Objects of Keras and the library below some, with their places."""
    waiting, seen = [(type(root).__name__, root) for root in roots], {}
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            yield path, value, value
            waiting += [(f"{path}[{key!r}]", each) for key, each in value.items()]
        elif isinstance(value, list | tuple | set):
            waiting += [(f"{path}[{n}]", each) for n, each in enumerate(value)]
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):
                    waiting.append((f"{path} (closure)", cell.cell_contents))
        if is_ours(value) and hasattr(value, "__dict__"):
            yield path, value, vars(value)
            waiting += [
                (f"{path}.{name}", each)
                for name, each in vars(value).items()
                if name not in ("preprocessor", "_model_cache", "_compile_arguments")
            ]


def other(value):
    """Another value of the same kind; the same one if there is none."""
    import torch

    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 1.5 * value + 0.25 if isinstance(value, float) else value + 1
    if isinstance(value, str):
        return value + "_other"
    if isinstance(value, torch.Tensor):
        return 2 * value
    if isinstance(value, types.FunctionType | types.MethodType):

        @functools.wraps(value)
        def wrapped(*args, **kwargs):
            return value(*args, **kwargs)

        return wrapped
    if isinstance(value, list):
        return [*value, *value]
    return value


def check(steps, place, undo, compares):
    """The record has ended, or the next step is that of Keras; undo the change."""
    try:
        if steps.record.changed() is not None:
            return True
        if not compares:
            return False
        replayed, eager = steps.outputs(), steps.outputs(recorded=False)
    except Exception as error:
        raise AssertionError(place) from error
    finally:
        undo()
    if eager is None or replayed is None:
        assert eager is replayed, place
        return False
    for one, expected in zip(replayed, eager, strict=True):
        np.testing.assert_allclose(one, expected, 1e-4, 1e-5, err_msg=place)
    return False


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("GraphRegressor", "train"),
        ("NodeSelector", "train"),
        ("GraphClassifier, several targets", "test"),
        ("GraphRegressor", "predict"),
    ],
)
def test_every_attribute(name, kind):
    steps = Steps(name, kind)
    task = steps.task
    roots = [task]
    if kind != "predict":
        roots += [task.loss, task.metrics, task.optimizer]
    tried = ended = 0
    compared = collections.Counter()
    for path, owner, attributes in [*reachable(*roots)]:
        for key, value in [*attributes.items()]:
            if key in HARNESS or (type(owner).__name__, key) == BUILDS:
                continue
            changed = other(value)
            if changed is value:
                continue

            def undo(attributes=attributes, key=key, value=value):
                attributes[key] = value

            attributes[key] = changed
            tried += 1
            # Of equal objects, such as variables of optimizers, one.
            kind_of = type(owner), str(key)
            has_ended = check(steps, f"{path}.{key}", undo, not compared[kind_of])
            compared[kind_of] += not has_ended
            ended += has_ended
    assert steps.record.changed() is None
    # Few attributes are read by no step: those of `fit`, constructors and optimizers.
    assert tried > 500 and ended > 0.4 * tried


def test_every_method():
    steps = Steps("GraphRegressor", "train")
    kinds = (keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric)
    kinds += (keras.regularizers.Regularizer, keras.Variable)
    classes = {
        base
        for _, owner, _ in reachable(steps.task)
        if isinstance(owner, kinds)
        for base in type(owner).__mro__
        if base.__module__.partition(".")[0] in (*PACKAGES, "torch")
    }
    tried = 0
    for cls in sorted(classes, key=lambda cls: cls.__qualname__):
        for name, value in [*vars(cls).items()]:
            if isinstance(value, types.FunctionType):
                setattr(cls, name, other(value))
                try:
                    changed = steps.record.changed()
                finally:
                    setattr(cls, name, value)
                assert changed is not None, f"{cls.__qualname__}.{name}"
                tried += 1
    assert steps.record.changed() is None and tried > 300


def hooks(task):
    """Ways to call a function with each step, by name; each returns how to undo it."""
    from torch.nn.modules import module

    layer = task.backbone.layers[0] if task.backbone.layers else task.backbone
    value = task.trainable_variables[-1].value
    # Of torch's functions that register a hook, those with a step.
    for name in dir(type(layer)):
        if name.startswith("register_") and name.endswith("hook"):
            if "state_dict" not in name:
                yield name, getattr(layer, name)
    for name in dir(module):
        if name.startswith("register_module_") and name.endswith("hook"):
            yield name, getattr(module, name)
    yield "tensor", value.register_hook
    yield "accumulated", value.register_post_accumulate_grad_hook


def test_every_hook(monkeypatch):
    from torch.nn.modules import module

    steps = Steps("GraphRegressor", "train")
    names = []
    for name, register in hooks(steps.task):
        handle = register(lambda *args, **kwargs: None)
        assert steps.record.changed() is not None, name
        handle.remove()
        # Torch remembers which kind of backward hooks there was.
        monkeypatch.setattr(module, "_global_is_full_backward_hook", None)
        for layer in compat.sublayers(steps.task):
            layer._is_full_backward_hook = None
        # An empty dict of hooks is none.
        steps.record.guard = steps.record._new_guard()
        assert steps.record.guard.foreign is None
        names.append(name)
    assert len(names) >= 10


def counting(function, calls):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        calls.append(1)
        return (1 + len(calls)) * function(*args, **kwargs)

    return wrapped


def foreign_loss(task, calls):
    task.compile("sgd", loss=counting(keras.losses.mean_squared_error, calls))


def foreign_metric(task, calls):
    function = counting(keras.losses.mean_squared_error, calls)
    task.compile("sgd", metrics=[function])


def foreign_call(task, calls):
    layer = task.head_layers[0]
    layer.call = counting(layer.call, calls)


def foreign_method(task, calls):
    layer = task.head_layers[0]
    cls = type(layer)
    before = cls.call
    cls.call = counting(before, calls)
    return lambda: setattr(cls, "call", before)


def foreign_activation(task, calls):
    layer = next(x for x in compat.sublayers(task) if hasattr(x, "activation"))
    layer.activation = counting(keras.activations.tanh, calls)


FOREIGN = [
    foreign_loss,
    foreign_metric,
    foreign_call,
    foreign_method,
    foreign_activation,
]


@pytest.mark.parametrize("change", FOREIGN)
def test_foreign_code_runs_in_every_step(monkeypatch, caplog, change):
    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", 1)
    results = []
    for choice in ("auto", False):
        keras.utils.set_random_seed(1)
        task, calls = task_samples.task_of("GraphRegressor"), []
        undo = change(task, calls) or (lambda: None)
        task.record_steps = choice
        batch = task.loader(task_samples.data_of("GraphRegressor", 4))[0]
        with caplog.at_level(logging.INFO, "keras_bandgnn"):
            losses = [task.train_on_batch(*batch) for _ in range(5)]
            outputs = [task.predict_on_batch(batch[0]) for _ in range(4)]
        undo()
        results.append((losses, outputs, len(calls)))
    assert results[0][2] == results[1][2] > 0
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
    for one, expected in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)
    lines = [r.getMessage() for r in caplog.records if "train steps" in r.getMessage()]
    # One line names the object and where it was defined.
    assert len(lines) == 1
    assert "stay eager" in lines[0] and f"({__name__}.wrapped)" in lines[0]


def test_a_line_says_that_recording_began(monkeypatch, caplog):
    from keras_bandgnn.ops.backend import torch_steps

    monkeypatch.setattr(torch_steps, "_WORTH", 1)
    task = task_samples.task_of("GraphRegressor")
    batch = task.loader(task_samples.data_of("GraphRegressor", 4))[0]
    with caplog.at_level(logging.INFO, "keras_bandgnn"):
        for _ in range(3):
            task.train_on_batch(*batch)
    (line,) = [r.getMessage() for r in caplog.records if "steps" in r.getMessage()]
    assert "train steps of GraphRegressor are recorded from step 2" in line


def test_a_record_that_is_asked_for_is_required():
    task, calls = task_samples.task_of("GraphRegressor"), []
    batch = task.loader(task_samples.data_of("GraphRegressor", 4))[0]
    task.compile("sgd", record_steps=True)
    foreign_call(task, calls)
    for step in (task.train_on_batch, task.test_on_batch):
        with pytest.raises(ValueError, match=r"record_steps.*\.wrapped\)"):
            step(*batch)
    with pytest.raises(ValueError, match=r"record_steps.*\.wrapped\)"):
        task.predict_on_batch(batch[0])
    task.record_steps = False
    task.train_on_batch(*batch)


def test_errors_of_a_recorded_step_propagate(monkeypatch):
    from keras_bandgnn.models.labels import Labels

    task = task_samples.task_of("GraphRegressor")
    batch = task.loader(task_samples.data_of("GraphRegressor", 4))[0]
    task.compile("sgd", record_steps=True)
    task.record_steps = False
    task.train_on_batch(*batch)
    task.record_steps = True
    before = [keras.ops.convert_to_numpy(w).copy() for w in task.weights]

    def entries(*args):
        raise RuntimeError("broken")

    # As if the library had a defect: no foreign code.
    entries = types.FunctionType(entries.__code__, vars(compat))
    monkeypatch.setattr(type(task.labels), "entries", entries)
    assert issubclass(type(task.labels), Labels)
    with pytest.raises(RuntimeError, match="broken") as raised:
        task.train_on_batch(*batch)
    assert "record_steps=False" in raised.value.__notes__[0]
    for weight, value in zip(task.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), value)
