"""Host-side layers: from graphs to batches of static shape. NumPy and SciPy only."""

from keras_bandgnn.preprocessing.attention_conditions import (
    AttentionConditions as AttentionConditions,
)
from keras_bandgnn.preprocessing.attention_conditions import (
    attention_conditions as attention_conditions,
)
from keras_bandgnn.preprocessing.attention_edges import AttentionEdges as AttentionEdges
from keras_bandgnn.preprocessing.attention_plan import AttentionPlan as AttentionPlan
from keras_bandgnn.preprocessing.choose_batcher import BatcherChoice as BatcherChoice
from keras_bandgnn.preprocessing.choose_batcher import choose_batcher as choose_batcher
from keras_bandgnn.preprocessing.cluster_compile import ClusterCompile as ClusterCompile
from keras_bandgnn.preprocessing.clusters import ClusterOrder as ClusterOrder
from keras_bandgnn.preprocessing.clusters import cluster_order as cluster_order
from keras_bandgnn.preprocessing.clusters import num_clusters_for as num_clusters_for
from keras_bandgnn.preprocessing.dynamic_batcher import DynamicBatcher as DynamicBatcher
from keras_bandgnn.preprocessing.fully_connected_graph import (
    FullyConnectedGraph as FullyConnectedGraph,
)
from keras_bandgnn.preprocessing.graph_layer import GraphLayer as GraphLayer
from keras_bandgnn.preprocessing.graph_loader import GraphLoader as GraphLoader
from keras_bandgnn.preprocessing.graph_preprocessor import (
    GraphPreprocessor as GraphPreprocessor,
)
from keras_bandgnn.preprocessing.k_nearest_graph import KNearestGraph as KNearestGraph
from keras_bandgnn.preprocessing.program_encoder import ProgramEncoder as ProgramEncoder
from keras_bandgnn.preprocessing.radius_graph import RadiusGraph as RadiusGraph
from keras_bandgnn.preprocessing.rcmk_compile import RCMKCompile as RCMKCompile
from keras_bandgnn.preprocessing.reachability_filter import (
    ReachabilityFilter as ReachabilityFilter,
)
from keras_bandgnn.preprocessing.reformation import LADDER as LADDER
from keras_bandgnn.preprocessing.reformation import Reformation as Reformation
from keras_bandgnn.preprocessing.reformation import (
    cluster_densities as cluster_densities,
)
from keras_bandgnn.preprocessing.reformation import graph_density as graph_density
from keras_bandgnn.preprocessing.reformation import random_tiles as random_tiles
from keras_bandgnn.preprocessing.reformation import reform as reform
from keras_bandgnn.preprocessing.reformation_tiles import best_tiles as best_tiles
from keras_bandgnn.preprocessing.sequence_loader import SequenceLoader as SequenceLoader
from keras_bandgnn.preprocessing.static_batcher import StaticBatcher as StaticBatcher
from keras_bandgnn.preprocessing.structural_encoding import (
    StructuralEncoding as StructuralEncoding,
)
from keras_bandgnn.preprocessing.target_normalizer import (
    TargetNormalizer as TargetNormalizer,
)
from keras_bandgnn.preprocessing.verdict import Verdict as Verdict

__all__ = [
    "AttentionConditions",
    "AttentionEdges",
    "AttentionPlan",
    "BatcherChoice",
    "ClusterCompile",
    "ClusterOrder",
    "DynamicBatcher",
    "FullyConnectedGraph",
    "GraphLayer",
    "GraphLoader",
    "GraphPreprocessor",
    "KNearestGraph",
    "LADDER",
    "ProgramEncoder",
    "RCMKCompile",
    "RadiusGraph",
    "ReachabilityFilter",
    "Reformation",
    "SequenceLoader",
    "StaticBatcher",
    "StructuralEncoding",
    "TargetNormalizer",
    "Verdict",
    "attention_conditions",
    "best_tiles",
    "choose_batcher",
    "cluster_densities",
    "cluster_order",
    "graph_density",
    "num_clusters_for",
    "random_tiles",
    "reform",
]
