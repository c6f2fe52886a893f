"""keras-bandgnn: graph neural networks as dense, static-shape computation on Keras 3.

Submodules load on first use. Layers and models load as soon as Keras is imported, by
the user, before or after this package, so that Keras finds their classes in saved
files. KERAS_BACKEND is set if Keras would start with a backend that is not installed.
"""

import importlib
import sys
from typing import Any

from keras_bandgnn.default_backend import replace_missing_backend
from keras_bandgnn.graph import Graph as Graph
from keras_bandgnn.import_hook import after_keras
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
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ALIASES, *EXPERIMENTAL})


def _register() -> None:
    """Load the rooms whose classes are in saved files."""
    for name in ("layers", "models", "preprocessing", "training"):
        importlib.import_module(f"{__name__}.{name}")


if "keras" not in sys.modules:
    replace_missing_backend()
    after_keras(_register)
elif hasattr(sys.modules["keras"], "Model"):
    _register()
