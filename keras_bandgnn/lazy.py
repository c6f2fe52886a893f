"""Lazy loading of a package's names on first use, and names no longer public."""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping


def lazy_names(
    package: str, homes: Mapping[str, str], internal: Mapping[str, str] | None = None
) -> tuple[Callable, Callable]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: Its `__name__`.
        homes: Module of each name, relative to `keras_bandgnn`.
        internal: Likewise for names that version 0.1.0 had here and that are no longer
            public. They still resolve, with a `DeprecationWarning`.
    """
    internal = internal or {}

    def get(name: str):
        if name in internal:
            home = f"keras_bandgnn.{internal[name]}"
            warnings.warn(
                f"{package}.{name} is no longer public and may change without notice. "
                f"It is in {home}.",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(importlib.import_module(home), name)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"keras_bandgnn.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
