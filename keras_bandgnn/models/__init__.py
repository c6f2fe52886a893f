"""Backbones, tasks and presets."""

from keras_bandgnn import plugins
from keras_bandgnn.models.backbone import Backbone as Backbone
from keras_bandgnn.models.edge_classifier import EdgeClassifier as EdgeClassifier
from keras_bandgnn.models.edge_regressor import EdgeRegressor as EdgeRegressor
from keras_bandgnn.models.embedding import EmbeddingBackbone as EmbeddingBackbone
from keras_bandgnn.models.force_regressor import ForceRegressor as ForceRegressor
from keras_bandgnn.models.gat import GATBackbone as GATBackbone
from keras_bandgnn.models.gcn import GCNBackbone as GCNBackbone
from keras_bandgnn.models.ggnn import GGNNBackbone as GGNNBackbone
from keras_bandgnn.models.graph_classifier import GraphClassifier as GraphClassifier
from keras_bandgnn.models.graph_regressor import GraphRegressor as GraphRegressor
from keras_bandgnn.models.graph_transformer import (
    GraphormerBackbone as GraphormerBackbone,
)
from keras_bandgnn.models.graph_transformer import GTBackbone as GTBackbone
from keras_bandgnn.models.link_predictor import LinkPredictor as LinkPredictor
from keras_bandgnn.models.message_passing import GatedGCNBackbone as GatedGCNBackbone
from keras_bandgnn.models.message_passing import GATv2Backbone as GATv2Backbone
from keras_bandgnn.models.message_passing import GINEBackbone as GINEBackbone
from keras_bandgnn.models.message_passing import GPSBackbone as GPSBackbone
from keras_bandgnn.models.message_passing import HGTBackbone as HGTBackbone
from keras_bandgnn.models.message_passing import LightGCNBackbone as LightGCNBackbone
from keras_bandgnn.models.message_passing import (
    MessagePassingBackbone as MessagePassingBackbone,
)
from keras_bandgnn.models.message_passing import PNABackbone as PNABackbone
from keras_bandgnn.models.message_passing import RGCNBackbone as RGCNBackbone
from keras_bandgnn.models.message_passing import SAGEBackbone as SAGEBackbone
from keras_bandgnn.models.mpeu import MPEUBackbone as MPEUBackbone
from keras_bandgnn.models.node_classifier import NodeClassifier as NodeClassifier
from keras_bandgnn.models.node_regressor import NodeRegressor as NodeRegressor
from keras_bandgnn.models.node_selector import NodeSelector as NodeSelector
from keras_bandgnn.models.painn import PaiNNBackbone as PaiNNBackbone
from keras_bandgnn.models.schnet import SchNetBackbone as SchNetBackbone
from keras_bandgnn.models.task import Task as Task
from keras_bandgnn.plugins import lazy_names
from keras_bandgnn.saving.preset_paths import list_presets as list_presets

__all__ = [
    "AttentionWeights",
    "Backbone",
    "BugLocalizer",
    "EdgeClassifier",
    "EdgeRegressor",
    "EmbeddingBackbone",
    "Ensemble",
    "ForceRegressor",
    "GATBackbone",
    "GATv2Backbone",
    "GCNBackbone",
    "GINEBackbone",
    "GPSBackbone",
    "GatedGCNBackbone",
    "GGNNBackbone",
    "GTBackbone",
    "GraphClassifier",
    "GraphRegressor",
    "GraphormerBackbone",
    "HGTBackbone",
    "JointSelection",
    "LastLayerLaplace",
    "LightGCNBackbone",
    "LinkPredictor",
    "MPEUBackbone",
    "MessagePassingBackbone",
    "NodeClassifier",
    "NodeRegressor",
    "NodeSelector",
    "PNABackbone",
    "PaiNNBackbone",
    "RGCNBackbone",
    "SAGEBackbone",
    "SchNetBackbone",
    "Task",
    "list_presets",
    "upload_preset",
]

# Names that Keras files cannot contain are imported on use.
_HOMES = {
    "AttentionWeights": "models.inspection",
    "Ensemble": "models.ensemble",
    "LastLayerLaplace": "models.last_layer_laplace",
    "upload_preset": "saving.preset_hub",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
plugins.register("models")
