"""Classes that files may name: those in Keras' registry. Nothing is imported."""

from collections.abc import Mapping

import keras

PACKAGE = "keras_bandgnn"
_HINT = "keras.saving.register_keras_serializable(package=...)"


def class_entry(instance, config: Mapping) -> dict:
    """Return what a file says of an object: its class, by name, and its arguments."""
    cls = type(instance)
    name = keras.saving.get_registered_name(cls)
    entry = {"class_name": cls.__name__, "config": config}
    if name not in (cls.__name__, f"{PACKAGE}>{cls.__name__}"):
        entry["registered_name"] = name
    return entry


def check_registered(*instances) -> None:
    """Raise a ValueError if the class of an object is one that no file can name."""
    for cls in map(type, instances):
        name = keras.saving.get_registered_name(cls)
        if keras.saving.get_registered_object(name) is not cls:
            raise ValueError(
                f"Expected a registered class, which a file can name. Received: "
                f"{cls.__module__}.{cls.__name__}. Decorate it with @{_HINT}."
            )


def registered_class(entry: Mapping, base: type, what: str) -> type:
    """Return the class that an entry of a file names.

    Args:
        entry: What `class_entry` returned, read from a file.
        base: The class that it must derive from.
        what: What it is, for the error, such as "a batcher".

    Raises:
        ValueError: If no class of this kind is registered under the name.
    """
    name = entry.get("class_name")
    registered = entry.get("registered_name") or f"{PACKAGE}>{name}"
    cls = None
    if isinstance(registered, str) and isinstance(entry.get("config"), Mapping):
        cls = keras.saving.get_registered_object(registered)
    if isinstance(cls, type) and issubclass(cls, base) and cls.__name__ == name:
        return cls
    known = [
        key.removeprefix(f"{PACKAGE}>")
        for key, value in keras.saving.get_custom_objects().items()
        if isinstance(value, type) and issubclass(value, base)
    ]
    raise ValueError(
        f"Expected {what}, with a `config`, and `class_name` to be one of "
        f"{sorted(known)}. Received: class_name={name!r}. Register a class of your own "
        f"with {_HINT} before loading."
    )
