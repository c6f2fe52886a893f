"""Exported models: packing graphs for them, and running them."""

from keras_bandgnn.serving.exported_model import ExportedModel as ExportedModel
from keras_bandgnn.serving.graph_packer import GraphPacker as GraphPacker
from keras_bandgnn.serving.graph_packer import PackedGraphs as PackedGraphs

__all__ = ["ExportedModel", "GraphPacker", "PackedGraphs"]
