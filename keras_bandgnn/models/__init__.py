"""Backbones, tasks and presets."""

from keras_bandgnn.models.backbone import Backbone as Backbone
from keras_bandgnn.models.ggnn import GGNNBackbone as GGNNBackbone
from keras_bandgnn.models.graph_regressor import GraphRegressor as GraphRegressor
from keras_bandgnn.models.node_selector import NodeSelector as NodeSelector
from keras_bandgnn.models.presets import list_presets as list_presets
from keras_bandgnn.models.task import Task as Task

__all__ = [
    "Backbone",
    "GGNNBackbone",
    "GraphRegressor",
    "NodeSelector",
    "Task",
    "list_presets",
]
