"""Lazy loading of a package's names on first use."""

import importlib
import sys
from collections.abc import Callable, Mapping

from keras_bandgnn.plugins import names_in


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable, Callable]:
    """Return `__getattr__` and `__dir__` of a package, also for names of plug-ins.

    Args:
        package: Its `__name__`.
        homes: Module of each name, relative to `keras_bandgnn`.
    """
    homes = {**homes, **names_in(package.partition(".")[2])}

    def get(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"keras_bandgnn.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
