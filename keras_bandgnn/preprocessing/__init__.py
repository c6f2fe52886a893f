"""Host-side layers: from graphs to batches of static shape."""

from keras_bandgnn import plugins
from keras_bandgnn.plugins import lazy_names
from keras_bandgnn.preprocessing.attention.attention_edges import AttentionEdges
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.encoding.atoms_encoder import AtomsEncoder
from keras_bandgnn.preprocessing.encoding.graph_encoder import GraphEncoder
from keras_bandgnn.preprocessing.encoding.networkx_encoder import NetworkXEncoder
from keras_bandgnn.preprocessing.encoding.node_set_encoder import NodeSetEncoder
from keras_bandgnn.preprocessing.encoding.pyg_encoder import PyGEncoder
from keras_bandgnn.preprocessing.encoding.smiles_encoder import SmilesEncoder
from keras_bandgnn.preprocessing.encoding.table_encoder import TableEncoder
from keras_bandgnn.preprocessing.geometry.geometry_layers import (
    FullyConnectedGraph,
    KNearestGraph,
    RadiusGraph,
)
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.preprocessing.ordering.cluster_compile import ClusterCompile
from keras_bandgnn.preprocessing.ordering.rcmk_compile import RCMKCompile
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.preprocessing.reachability_filter import ReachabilityFilter
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.preprocessing.structural_encoding import StructuralEncoding
from keras_bandgnn.preprocessing.transforms.components import LargestComponent
from keras_bandgnn.preprocessing.transforms.edges import AddSelfLoops, ToUndirected
from keras_bandgnn.preprocessing.transforms.features import NormalizeFeatures
from keras_bandgnn.preprocessing.transforms.node_splits import RandomNodeSplit

# Its name in PyTorch Geometric.
KNNGraph = KNearestGraph

__all__ = [
    "AddSelfLoops",
    "AtomsEncoder",
    "AttentionEdges",
    "AttentionPlan",
    "Batcher",
    "ClusterCompile",
    "ClusterSampler",
    "DynamicBatcher",
    "FullyConnectedGraph",
    "FunctionEncoder",
    "GraphEncoder",
    "GraphLayer",
    "GraphLoader",
    "GraphPreprocessor",
    "KNearestGraph",
    "LargestComponent",
    "LinkLoader",
    "Loader",
    "NegativeSampler",
    "NeighborSampler",
    "NetworkXEncoder",
    "NodeSetEncoder",
    "NormalizeFeatures",
    "ProgramEncoder",
    "PyGEncoder",
    "RCMKCompile",
    "RadiusGraph",
    "RandomNodeSplit",
    "ReachabilityFilter",
    "SampleLoader",
    "Sampler",
    "SequenceLoader",
    "SharedNegatives",
    "SmilesEncoder",
    "StaticBatcher",
    "StructuralEncoding",
    "SubgraphSampler",
    "TableEncoder",
    "TargetNormalizer",
    "ToUndirected",
    "compile_programs",
    "node_splits",
    "shchur_splits",
]

# They may change in any release.
EXPERIMENTAL = [
    "BatchingForecast",
    "ConditionResult",
    "Reformation",
    "attention_conditions",
    "canonical_path",
    "choose_batcher",
    "cluster_order",
    "fastest",
    "random_tiles",
    "reform",
]

_HOMES = {
    "AttentionPlan": "preprocessing.attention.attention_plan",
    "BatchingForecast": "preprocessing.forecast.batching_forecast",
    "ClusterSampler": "preprocessing.sampling.cluster_sampler",
    "ConditionResult": "preprocessing.attention.conditions",
    "LinkLoader": "preprocessing.loading.link_loader",
    "NegativeSampler": "preprocessing.sampling.negative_sampler",
    "SharedNegatives": "preprocessing.sampling.shared_negatives",
    "NeighborSampler": "preprocessing.sampling.neighbor_sampler",
    "Reformation": "preprocessing.attention.reformation",
    "SampleLoader": "preprocessing.loading.sample_loader",
    "SequenceLoader": "preprocessing.loading.sequence_loader",
    "SubgraphSampler": "preprocessing.sampling.subgraph_sampler",
    "TargetNormalizer": "layers.target_normalizer",
    "attention_conditions": "preprocessing.attention.conditions",
    "canonical_path": "preprocessing.attention.path_cover",
    "choose_batcher": "preprocessing.forecast.choose_batcher",
    "cluster_order": "preprocessing.ordering.cluster_compile",
    "fastest": "preprocessing.forecast.choose_batcher",
    "node_splits": "preprocessing.transforms.node_splits",
    "random_tiles": "preprocessing.attention.reformation",
    "reform": "preprocessing.attention.reformation",
    "shchur_splits": "preprocessing.transforms.node_splits",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
plugins.register("preprocessing")
