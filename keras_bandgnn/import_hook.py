"""Calls a function once Keras has been imported, by whoever imports it."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable

_MODULE, _PACKAGE = "keras", "keras_bandgnn"


class _BeforeKeras(importlib.abc.MetaPathFinder):
    """Finds Keras as other finders do, and calls a function after its import."""

    def __init__(self, function: Callable[[], None]):
        self.function = function

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_call(module):
            execute(module)
            # Where the library itself imports Keras, its modules are not complete.
            if not _is_importing():
                self.function()

        spec.loader.exec_module = execute_and_call
        return spec


def _is_importing() -> bool:
    """Return whether a module of the library is among the callers."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] == _PACKAGE:
            return True
        frame = frame.f_back
    return False


def after_keras(function: Callable[[], None]) -> None:
    """Call a function after the first import of Keras that is not the library's."""
    sys.meta_path.insert(0, _BeforeKeras(function))
