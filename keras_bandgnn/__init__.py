"""keras-bandgnn: graph neural networks as dense, static-shape computation on Keras 3.

Submodules load on first use. If Keras is already imported, layers and models load
immediately, so that Keras finds their classes in saved files. Otherwise KERAS_BACKEND
is set if Keras would start with a backend that is not installed.
"""

import importlib
import sys
from typing import Any

from keras_bandgnn.default_backend import replace_missing_backend
from keras_bandgnn.graph import Graph as Graph
from keras_bandgnn.heap import share_heap
from keras_bandgnn.version import __version__ as __version__

_SUBMODULES = (
    "batch",
    "data",
    "distribution",
    "explain",
    "layers",
    "models",
    "ops",
    "planning",
    "plotting",
    "preprocessing",
    "primitives",
    "programs",
    "serving",
    "training",
    "tuning",
)

__all__ = ["Graph", "__version__", *_SUBMODULES]

# What users of Keras look for.
_ALIASES = ("visualization",)


def __getattr__(name: str) -> Any:
    if name not in _SUBMODULES and name not in _ALIASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ALIASES})


if "keras" not in sys.modules:
    replace_missing_backend()
share_heap()

if "keras" in sys.modules and hasattr(sys.modules["keras"], "Model"):
    for _name in ("layers", "models", "preprocessing", "training"):
        importlib.import_module(f"{__name__}.{_name}")
