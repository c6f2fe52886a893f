"""Classes and functions in Keras' registry, which files refer to by name."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from keras_bandgnn.host_keras import keras

PACKAGE = "keras_bandgnn"
_Class = TypeVar("_Class")
# Rooms with classes that saved files name.
_ROOMS = ("layers", "models", "preprocessing", "training")
_HINT = "keras.saving.register_keras_serializable(package=...)"


def load_classes() -> None:
    """Import all classes that saved files name, which registers them."""
    for room in _ROOMS:
        importlib.import_module(f"{PACKAGE}.{room}")


@functools.cache
def _argument_names(cls: type) -> tuple[str, ...]:
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind not in kinds)


def constructor_arguments(instance: object, cls: type | None = None) -> dict:
    """Return the arguments of a constructor, from attributes of the same names.

    Activations are written by name, lists and dicts are copied.

    Args:
        instance: The object.
        cls: The class with the constructor, the object's own by default.
    """
    config = {}
    for name in _argument_names(cls or type(instance)):
        value = getattr(instance, name)
        if name == "activation":
            value = keras.activations.serialize(value)
        config[name] = value.copy() if isinstance(value, dict | list) else value
    return config


def serializable(cls: type[_Class]) -> type[_Class]:
    """Register a class under `keras_bandgnn>`, with a `get_config`.

    It adds the arguments of the constructor, which the class has as attributes of the
    same names, to the configuration of the parent.
    """

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {**super(cls, self).get_config(), **constructor_arguments(self, cls)}

    get_config.__qualname__ = f"{cls.__qualname__}.get_config"
    get_config.__module__ = cls.__module__
    cls.get_config = get_config
    return keras.saving.register_keras_serializable(package=PACKAGE)(cls)


def class_entry(instance, config: Mapping) -> dict:
    """Return the file entry of an object: the name of its class, and its arguments."""
    cls = type(instance)
    name = keras.saving.get_registered_name(cls)
    entry = {"class_name": cls.__name__, "config": config}
    if name not in (cls.__name__, f"{PACKAGE}>{cls.__name__}"):
        entry["registered_name"] = name
    return entry


def check_registered(*values) -> None:
    """Raise a ValueError for unregistered functions, or objects of such classes."""
    for value in values:
        kind = "function" if inspect.isfunction(value) else "class"
        named = value if inspect.isfunction(value) else type(value)
        name = keras.saving.get_registered_name(named)
        if keras.saving.get_registered_object(name) is not named:
            raise ValueError(
                f"Expected a registered {kind}, so that it can be saved. Received: "
                f"{named.__module__}.{named.__name__}. Decorate it with @{_HINT}."
            )


def callable_entry(value: Callable) -> dict:
    """Return the file entry of a function or a callable object."""
    if inspect.isfunction(value):
        return {"registered_name": keras.saving.get_registered_name(value)}
    name = keras.saving.get_registered_name(type(value))
    config = value.get_config() if hasattr(value, "get_config") else {}
    return {"registered_name": name, "config": config}


def _has_calls(cls: type) -> bool:
    # Layers are called with tensors.
    is_callable = any("__call__" in vars(base) for base in cls.__mro__)
    return is_callable and not issubclass(cls, keras.layers.Layer)


def registered_callable(entry: Mapping, what: str) -> Callable:
    """Return the function, or the callable object, of a file entry.

    Args:
        entry: Result of `callable_entry`, read from a file.
        what: Description for the error, such as "an ordering".

    Raises:
        ValueError: If no callable is registered under the name.
    """
    name, config = entry.get("registered_name"), entry.get("config", {})
    value = None
    if isinstance(name, str) and isinstance(config, Mapping):
        value = keras.saving.get_registered_object(name)
    if inspect.isfunction(value):
        return value
    if inspect.isclass(value) and _has_calls(value):
        return value(**config)
    raise ValueError(
        f"Expected {what}: a registered function, or a registered class with "
        f"`__call__`. Received: registered_name={name!r}. Register it with {_HINT} "
        "before loading."
    )


def registered_class(entry: Mapping, base: type, what: str) -> type:
    """Return the class of a file entry.

    Args:
        entry: Result of `class_entry`, read from a file.
        base: The required base class.
        what: Description for the error, such as "a batcher".

    Raises:
        ValueError: If no such class is registered under the name.
    """
    name = entry.get("class_name")
    registered = entry.get("registered_name") or f"{PACKAGE}>{name}"
    cls = None
    if isinstance(registered, str) and isinstance(entry.get("config"), Mapping):
        cls = keras.saving.get_registered_object(registered)
    if isinstance(cls, type) and issubclass(cls, base) and cls.__name__ == name:
        return cls
    names = [
        key.removeprefix(f"{PACKAGE}>")
        for key, value in keras.saving.get_custom_objects().items()
        if isinstance(value, type) and issubclass(value, base)
    ]
    raise ValueError(
        f"Expected {what}, with a `config`, and `class_name` to be one of "
        f"{sorted(names)}. Received: class_name={name!r}. Register a custom class with "
        f"{_HINT} before loading."
    )


def layer_entry(layer) -> dict:
    """Return the file entry of a layer that is an argument of another one.

    Raises:
        ValueError: If its class is not registered.
    """
    check_registered(layer)
    return {
        "registered_name": keras.saving.get_registered_name(type(layer)),
        "config": layer.get_config(),
    }


def registered_layer(name: str, entry: Mapping):
    """Return the layer of a file entry; nothing is imported.

    Args:
        name: The argument that the layer is.
        entry: Result of `layer_entry`, read from a file.

    Raises:
        ValueError: If no layer is registered under its name.
    """
    registered = entry.get("registered_name")
    cls = None
    if isinstance(registered, str) and isinstance(entry.get("config"), Mapping):
        cls = keras.saving.get_registered_object(registered)
    if not (isinstance(cls, type) and issubclass(cls, keras.layers.Layer)):
        raise ValueError(
            f"Expected `{name}` to name a registered layer. Received: "
            f"{registered!r}. Register your own class with "
            "keras.saving.register_keras_serializable before loading."
        )
    return cls.from_config(dict(entry["config"]))
