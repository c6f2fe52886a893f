"""Running exported models, and packing graphs for them."""

from keras_bandgnn.serving.graph_packer import GraphPacker as GraphPacker
from keras_bandgnn.serving.graph_packer import PackedGraphs as PackedGraphs
from keras_bandgnn.serving.runtimes import ExportedModel as ExportedModel

__all__ = ["ExportedModel", "GraphPacker", "PackedGraphs"]
