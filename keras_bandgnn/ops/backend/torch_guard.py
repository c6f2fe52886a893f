"""Guards of recorded steps: foreign code, and attributes that change after recording.

A record replays the device operations of one step. It is valid as long as no Python
object that the step reads changes: attributes of the model, its layers, losses, metrics
and regularizers, and the functions and classes that these call.
"""

import collections
import contextlib
import functools
import itertools
import operator
import sys
import types
import weakref
from collections.abc import Iterator, Mapping

import keras
import numpy as np
import torch

from keras_bandgnn import compat

_PACKAGES = ("keras", "keras_bandgnn", "torch", "numpy", "ml_dtypes")
_RANDOM = ("random", "itertools", "secrets")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Attributes that no step reads, or that every step sets first: state of `fit`, losses
# of the last call, arguments of constructors, and values computed on the host.
UNREAD = frozenset(
    {
        "_auto_config",
        "_compile_arguments",
        "_compile_config",
        "_model_cache",
        "_eval_epoch_iterator",
        "_for_predictions",
        "_loss_ids",
        "_losses",
        "_losses_override",
        "_step_lock",
        "_torch_params",
        "_variant",
        "history",
        "optimizer",
        "predict_function",
        "preprocessor",
        "record_steps",
        "stop_evaluating",
        "stop_predicting",
        "stop_training",
        "test_function",
        "train_function",
        "training",
    }
)
# Attributes of a model that are read only by steps with labels.
_WITH_LABELS = frozenset(
    {"_compile_loss", "_compile_metrics", "_loss_tracker", "_metrics", "loss"}
)
_HOOKS = frozenset(compat.HOOKS)
_contents = operator.attrgetter("cell_contents")
_state = operator.attrgetter("dtype", "requires_grad", *compat.TENSOR_HOOKS)
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_LEAVES = (
    torch.Tensor,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
    types.ModuleType,
    types.CodeType,
    keras.initializers.Initializer,
    keras.KerasTensor,
    weakref.ReferenceType,
)


def _is_library(module: str | None) -> bool:
    """Return whether a module is of Keras, this library, torch, NumPy or Python."""
    package = (module or "").partition(".")[0]
    if package.startswith("namedtuple_"):
        # `collections.namedtuple` defines `__new__` in such a module.
        return True
    if package in _PACKAGES:
        return not module.startswith("numpy.random")
    return package in sys.stdlib_module_names and package not in _RANDOM


def _described(path: str, value) -> str:
    """Return a description of a foreign object: its place, module and name."""
    if isinstance(value, types.FunctionType):
        # `functools.wraps` changes names.
        name, module = value.__code__.co_name, value.__globals__.get("__name__")
    else:
        named = value if hasattr(value, "__qualname__") else type(value)
        name, module = named.__qualname__, named.__module__
    return f"{path} ({module}.{name})"


class Guard:
    """A snapshot of the objects reachable from a model, to detect changes.

    Args:
        model: The model. Attributes are compared recursively, except those that no
            step reads.
        more: Further objects of the step, by name.
        with_labels: Whether the step reads losses and metrics.

    Attributes:
        foreign: Description of the first object with code from outside Keras and this
            library, or of the first hook; None without any.
    """

    def __init__(self, model, more: Mapping | None = None, with_labels: bool = True):
        self.foreign: str | None = None
        self._trackers = compat.tracker_type(model)
        self._unread = UNREAD if with_labels else UNREAD | _WITH_LABELS
        # Live views of dicts, lists and classes, with places.
        self._views: list = []
        self._owners: list = []
        self._cells: list = []
        self._tensors: list = []
        self._arrays: list = []
        seen: dict = {}
        hooks = compat.global_hooks()
        roots = {type(model).__name__: model, **(more or {}), **hooks}
        waiting = [*reversed(roots.items())]
        while waiting and self.foreign is None:
            path, value = waiting.pop()
            if isinstance(value, _PLAIN) or id(value) in seen:
                continue
            # A reference, so that the id stays unique.
            seen[id(value)] = value
            waiting.extend(reversed([*self._parts(path, value)]))
        for name, functions in hooks.items():
            if functions:
                self.foreign = f"a hook of all modules: {name}"
        self._settings = _settings()
        self._refresh()

    def changed(self) -> str | None:
        """Return the place of the first attribute that has changed; None if none has.

        Identities are compared first, which takes 30 nanoseconds per object.
        """
        if not (
            self._sizes == list(map(len, self._views))
            and all(map(operator.is_, self._chained(), self._now))
        ):
            # Equal numbers may be distinct objects, and `fit` sets unread attributes.
            for place, before in zip(self._owners, self._items, strict=True):
                path, owner, has_attributes = place
                for name, old, new in _differences(before, _items_of(owner)):
                    unread = has_attributes and self._is_unread(name)
                    if not (unread or _is_same(old, new)):
                        return f"{path}.{name}"
            self._refresh()
        if not all(map(operator.is_, map(_contents, self._cells), self._held)):
            return "a variable of a closure"
        if self._states != list(map(_state, self._tensors)):
            return "the type of a weight, its hooks, or whether it takes gradients"
        for path, array, copy in self._arrays:
            if not np.array_equal(array, copy):
                return path
        return None if self._settings == _settings() else "a setting of Keras or torch"

    def _is_unread(self, name) -> bool:
        return name in self._unread or name.endswith("_initializer")

    def _chained(self) -> Iterator:
        return itertools.chain.from_iterable(filter(None, self._views))

    def _refresh(self) -> None:
        """Take a new snapshot."""
        self._now = list(self._chained())
        self._sizes = list(map(len, self._views))
        self._items = [_items_of(owner) for _, owner, _ in self._owners]
        self._held = list(map(_contents, self._cells))
        self._states = list(map(_state, self._tensors))

    def _watch(self, path: str, owner, view, has_attributes: bool = False) -> None:
        self._owners.append((path, owner, has_attributes))
        self._views.append(view)

    def _parts(self, path: str, value) -> Iterator[tuple]:
        """Yield the places and values of the parts of an object; set `foreign`."""
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            for name in compat.TENSOR_HOOKS:
                hooks = getattr(value, name)
                if hooks:
                    self.foreign = f"a hook of the gradient of {path}"
                # None or a dict, which is empty once hooks are removed.
                yield f"{path}.{name}", hooks
        if isinstance(value, np.ndarray):
            self._arrays.append((path, value, value.copy()))
        elif isinstance(value, types.FunctionType):
            yield from self._parts_of_function(path, value)
        elif isinstance(value, types.MethodType):
            yield path, value.__func__
            yield path, value.__self__
        elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            if not _is_library(getattr(value, "__module__", None) or "builtins"):
                self.foreign = _described(path, value)
            yield path, value.__self__
        elif isinstance(value, functools.partial):
            yield path, value.func
            yield path, value.args
            yield path, value.keywords
            yield from self._parts_of_object(path, value)
        elif isinstance(value, type):
            yield from self._parts_of_class(path, value)
        elif isinstance(value, property):
            for function in (value.fget, value.fset):
                yield path, function
        elif isinstance(value, staticmethod | classmethod):
            yield path, value.__func__
        elif isinstance(value, self._trackers):
            return  # The tracked lists of variables and layers are compared.
        elif isinstance(value, _LEAVES):
            # A custom class of tensors or modules has code, too.
            if not _is_library(type(value).__module__):
                self.foreign = _described(path, value)
        else:
            yield from self._parts_of_object(path, value)

    def _parts_of_function(self, path: str, value) -> Iterator[tuple]:
        # `functools.wraps` changes `__module__`, but not the globals.
        if not _is_library(value.__globals__.get("__name__")):
            self.foreign = _described(path, value)
            return
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # It may still be empty.
                yield f"{path} (closure)", _contents(cell)
                self._cells.append(cell)
        yield path, value.__defaults__
        yield path, value.__kwdefaults__
        for name, part in vars(value).items():
            yield f"{path}.{name}", part

    def _parts_of_class(self, path: str, cls: type) -> Iterator[tuple]:
        if not _is_library(cls.__module__):
            self.foreign = _described(path, cls)
        elif cls.__module__.partition(".")[0] in _PACKAGES[:3]:
            self._watch(cls.__qualname__, cls, vars(cls).values())
            for name, part in vars(cls).items():
                code = (property, staticmethod, classmethod)
                is_code = callable(part) and not isinstance(part, type)
                if is_code or isinstance(part, code):
                    yield f"{cls.__qualname__}.{name}", part
            for base in cls.__bases__:
                yield base.__qualname__, base

    def _parts_of_object(self, path: str, value) -> Iterator[tuple]:
        kind = type(value)
        if not _is_library(kind.__module__):
            self.foreign = _described(path, value)
            return
        # The function that `functools.cache` wraps.
        yield path, getattr(value, "__dict__", {}).get("__wrapped__")
        if isinstance(value, dict):
            self._watch(path, value, value.values())
            for name, part in value.items():
                yield f"{path}[{name!r}]", part
        elif isinstance(value, _CONTAINERS):
            if not isinstance(value, tuple | frozenset):
                self._watch(path, value, value)
            for number, part in enumerate(value):
                yield f"{path}[{number}]", part
        if kind.__module__.partition(".")[0] not in _PACKAGES[:3]:
            return
        yield path, kind
        attributes = getattr(value, "__dict__", None)
        if attributes is None:
            return
        self._watch(path, attributes, attributes.values(), has_attributes=True)
        # Public names first: users know these.
        for name in sorted(attributes, key=lambda name: name.startswith("_")):
            if name in _HOOKS and attributes[name]:
                self.foreign = f"a hook: {path}.{name}"
            elif name == "_modules":
                for child, module in attributes[name].items():
                    if not self._is_unread(child):
                        yield f"{path}.{child}", module
                self._watch(
                    path,
                    attributes[name],
                    attributes[name].values(),
                    has_attributes=True,
                )
            elif not self._is_unread(name):
                yield f"{path}.{name}", attributes[name]


def _settings() -> tuple:
    """Return the process-wide settings that operations read when called."""
    return (
        keras.config.floatx(),
        keras.config.epsilon(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _items_of(owner) -> list:
    """Return the names and values of a dict, a class or another collection."""
    if isinstance(owner, type):
        return [*vars(owner).items()]
    return [*owner.items()] if isinstance(owner, dict) else [*enumerate(owner)]


def _is_same(old, new) -> bool:
    """Return whether two values are the same object, or equal numbers or strings."""
    return old is new or (
        type(old) is type(new) and isinstance(old, _PLAIN) and old == new
    )


_MISSING = object()


def _differences(before: list, now: list) -> Iterator[tuple]:
    """Yield the name, old value and new value of each difference."""
    if len(before) == len(now) and all(
        a[1] is b[1] for a, b in zip(before, now, strict=True)
    ):
        return
    old, new = dict(before), dict(now)
    for name in {**old, **new}:
        pair = old.get(name, _MISSING), new.get(name, _MISSING)
        if pair[0] is not pair[1]:
            yield name, *pair
