# Written by docs/names.py, for type checkers and editors.
from keras_bandgnn.serving.runtimes import ExportedModel as ExportedModel
from keras_bandgnn.serving.graph_packer import GraphPacker as GraphPacker
from keras_bandgnn.serving.graph_packer import PackedGraphs as PackedGraphs
