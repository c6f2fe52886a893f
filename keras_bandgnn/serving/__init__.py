"""Running exported models, and packing graphs for them."""

from keras_bandgnn.plugins import lazy_names

_HOMES = {
    "ExportedModel": "serving.runtimes",
    "GraphPacker": "serving.graph_packer",
    "PackedGraphs": "serving.graph_packer",
}

__all__ = ["ExportedModel", "GraphPacker", "PackedGraphs"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
