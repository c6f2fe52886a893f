"""Hyperparameter search with keras-tuner (extra: tuner).

keras-tuner is imported when one of the names is first used.
"""

import importlib

from keras_bandgnn.plugins import lazy_names

_HOMES = {
    "DatasetSpec": "tuning.dataset_spec",
    "GGNNHyperModel": "tuning.ggnn",
    "GraphHyperModel": "tuning.hypermodel",
    "GraphRegressorHyperModel": "tuning.graph_regressor",
    "GraphTransformerHyperModel": "tuning.graph_transformer",
    "make_tuner": "tuning.search",
    "trial_table": "tuning.search",
}

__all__ = [
    "DatasetSpec",
    "GGNNHyperModel",
    "GraphHyperModel",
    "GraphRegressorHyperModel",
    "GraphTransformerHyperModel",
    "make_tuner",
    "trial_table",
]

_lazy, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        # Fails with a clear error before anything slow is imported.
        importlib.import_module(f"{__name__}.extra")
    return _lazy(name)
