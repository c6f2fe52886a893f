"""Searches of models and of how they run, on keras-tuner (extra: tuner).

keras-tuner is imported when one of the names is first used.
"""

import importlib
from typing import Any

_HOME = {
    "GGNNHyperModel": "ggnn",
    "GraphHyperModel": "hypermodel",
    "GraphRegressorHyperModel": "graph_regressor",
    "GraphTransformerHyperModel": "graph_transformer",
    "make_tuner": "search",
    "trial_table": "trials",
}

__all__ = [
    "GGNNHyperModel",
    "GraphHyperModel",
    "GraphRegressorHyperModel",
    "GraphTransformerHyperModel",
    "make_tuner",
    "trial_table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Says what is missing before anything large is imported.
    importlib.import_module(f"{__name__}.extra")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
