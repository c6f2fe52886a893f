"""keras-bandgnn: graph neural networks as dense, static-shape computation on Keras 3.

Importing it imports Keras and registers all classes, so that Keras finds them in saved
files. KERAS_BACKEND is set if Keras would start with a backend that is not installed.
"""

import importlib
import os
import sys
from pathlib import PurePath
from typing import Any

from keras_bandgnn.default_backend import (
    WORKER,
    backend_required,
    installed_backends,
    replace_missing_backend,
)
from keras_bandgnn.graph import Graph as Graph
from keras_bandgnn.version import __version__ as __version__

_SUBMODULES = (
    "batch",
    "config",
    "data",
    "distribution",
    "explain",
    "layers",
    "models",
    "ops",
    "plans",
    "plotting",
    "preprocessing",
    "programs",
    "serving",
    "training",
    "tuning",
)

__all__ = ["Graph", "__version__", *_SUBMODULES]

# They may change in any release.
EXPERIMENTAL = ["planning"]
# What users of Keras look for, and the name of `plans` in 0.2.0.
_ALIASES = ("visualization", "primitives")


def __getattr__(name: str) -> Any:
    if name not in (*_SUBMODULES, *_ALIASES, *EXPERIMENTAL):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with backend_required():
        return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ALIASES, *EXPERIMENTAL})


def _loads_keras() -> bool:
    """Return whether this process needs all classes from the start.

    The command chooses the backend before Keras is imported, and processes of
    `multiprocessing` import what their jobs use. Loading a preset registers all
    classes there, too. Without a backend, graphs are still made and written.
    """
    program = sys.argv[0] if sys.argv else ""
    # Python locates a module that it runs: `python -m keras_bandgnn`.
    is_module = program == "-m" and __name__ in sys.orig_argv
    if is_module or PurePath(program).name in ("bandgnn", "bandgnn.exe"):
        return False
    if WORKER in os.environ:
        return False
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return False
    # A new process runs the script of its parent before it knows its parent.
    if "--multiprocessing-fork" in sys.orig_argv:
        return False
    return bool(installed_backends())


if "keras" in sys.modules or _loads_keras():
    if "keras" not in sys.modules:
        replace_missing_backend()
    importlib.import_module(f"{__name__}.registration").load_classes()
