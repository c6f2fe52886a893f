"""`keras` and `keras.ops` for code that runs on the host, with or without a backend.

Keras does not import without a backend. A server that makes batches for an exported
model has none: there, `keras` has what preprocessing layers, batchers, plans and
loaders need of it on the host, and whatever computes on a device says what to install.
"""

import types
from collections.abc import Callable
from typing import Any

from keras_bandgnn.default_backend import imports_keras, missing_backend


class HostOnlyLayer:
    """What a layer on the host has of `keras.layers.Layer`."""

    def __init__(
        self,
        *,
        activity_regularizer=None,
        trainable: bool = True,
        dtype: str | None = None,
        autocast: bool = True,
        name: str | None = None,
    ):
        del activity_regularizer, autocast  # of tensors
        self.name = type(self).__name__.lower() if name is None else name
        self.trainable = trainable
        self.dtype = dtype

    def get_config(self) -> dict:
        """Return the arguments that Keras gives to every layer."""
        return {"name": self.name, "trainable": self.trainable, "dtype": self.dtype}


class HostOnlyDataset:
    """What a loader has of `keras.utils.PyDataset`."""

    def __init__(
        self,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
    ):
        self.workers = workers
        self.use_multiprocessing = use_multiprocessing
        self.max_queue_size = max_queue_size


class Registry:
    """The functions of `keras.saving` for registered classes and functions."""

    def __init__(self):
        self._objects: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def register_keras_serializable(
        self, package: str = "Custom", name: str | None = None
    ) -> Callable:
        """Return a decorator that registers a class or a function."""

        def register(value):
            full = f"{package}>{name or value.__name__}"
            self._objects[full], self._names[value] = value, full
            return value

        return register

    def get_registered_name(self, value) -> str:
        """Return the name of a class or a function, its own if it has no other."""
        return self._names.get(value, value.__name__)

    def get_registered_object(self, name: str):
        """Return the class or the function of a name, or None."""
        return self._objects.get(name)

    def get_custom_objects(self) -> dict[str, Any]:
        """Return all classes and functions by name."""
        return self._objects


class NeedsBackend:
    """A module whose functions, when called, say what to install."""

    def __getattr__(self, name: str) -> Callable:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args, **kwargs):
            raise missing_backend()

        return refuse


if imports_keras():
    import keras as keras
    from keras import ops as ops
else:
    ops = NeedsBackend()
    keras = types.SimpleNamespace(
        backend=types.SimpleNamespace(backend=lambda: None),
        layers=types.SimpleNamespace(Layer=HostOnlyLayer),
        ops=ops,
        saving=Registry(),
        utils=types.SimpleNamespace(PyDataset=HostOnlyDataset),
    )
