"""Host-side layers: from graphs to batches of static shape. NumPy and SciPy only."""

from keras_bandgnn.lazy import lazy_names
from keras_bandgnn.preprocessing.attention.attention_edges import (
    AttentionEdges as AttentionEdges,
)
from keras_bandgnn.preprocessing.attention.attention_plan import (
    AttentionPlan as AttentionPlan,
)
from keras_bandgnn.preprocessing.attention.conditions import (
    AttentionConditions as AttentionConditions,
)
from keras_bandgnn.preprocessing.attention.conditions import (
    ConditionResult as ConditionResult,
)
from keras_bandgnn.preprocessing.attention.conditions import (
    attention_conditions as attention_conditions,
)
from keras_bandgnn.preprocessing.attention.reformation import LADDER as LADDER
from keras_bandgnn.preprocessing.attention.reformation import Reformation as Reformation
from keras_bandgnn.preprocessing.attention.reformation import (
    cluster_densities as cluster_densities,
)
from keras_bandgnn.preprocessing.attention.reformation import (
    graph_density as graph_density,
)
from keras_bandgnn.preprocessing.attention.reformation import (
    random_tiles as random_tiles,
)
from keras_bandgnn.preprocessing.attention.reformation import reform as reform
from keras_bandgnn.preprocessing.batching.batcher import Batcher as Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import (
    DynamicBatcher as DynamicBatcher,
)
from keras_bandgnn.preprocessing.batching.static_batcher import (
    StaticBatcher as StaticBatcher,
)
from keras_bandgnn.preprocessing.forecast.choose_batcher import (
    BatcherChoice as BatcherChoice,
)
from keras_bandgnn.preprocessing.forecast.choose_batcher import (
    choose_batcher as choose_batcher,
)
from keras_bandgnn.preprocessing.geometry.geometry_layers import (
    FullyConnectedGraph as FullyConnectedGraph,
)
from keras_bandgnn.preprocessing.geometry.geometry_layers import (
    KNearestGraph as KNearestGraph,
)
from keras_bandgnn.preprocessing.geometry.geometry_layers import (
    RadiusGraph as RadiusGraph,
)
from keras_bandgnn.preprocessing.graph_layer import GraphLayer as GraphLayer
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader as GraphLoader
from keras_bandgnn.preprocessing.loading.sequence_loader import (
    SequenceLoader as SequenceLoader,
)
from keras_bandgnn.preprocessing.ordering.cluster_compile import (
    ClusterCompile as ClusterCompile,
)
from keras_bandgnn.preprocessing.ordering.cluster_compile import (
    ClusterOrder as ClusterOrder,
)
from keras_bandgnn.preprocessing.ordering.cluster_compile import (
    cluster_order as cluster_order,
)
from keras_bandgnn.preprocessing.ordering.cluster_compile import (
    num_clusters_for as num_clusters_for,
)
from keras_bandgnn.preprocessing.ordering.rcmk_compile import RCMKCompile as RCMKCompile
from keras_bandgnn.preprocessing.ordering.tiles import best_tiles as best_tiles
from keras_bandgnn.preprocessing.preprocessor import (
    GraphPreprocessor as GraphPreprocessor,
)
from keras_bandgnn.preprocessing.program_encoder import ProgramEncoder as ProgramEncoder
from keras_bandgnn.preprocessing.reachability_filter import (
    ReachabilityFilter as ReachabilityFilter,
)
from keras_bandgnn.preprocessing.structural_encoding import (
    StructuralEncoding as StructuralEncoding,
)

__all__ = [
    "AttentionConditions",
    "AttentionEdges",
    "AttentionPlan",
    "Batcher",
    "BatcherChoice",
    "ClusterCompile",
    "ClusterOrder",
    "ConditionResult",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "TargetNormalizer": "layers.target_normalizer",
        # The name of version 0.1.0.
        "Verdict": "preprocessing.attention.hamiltonian",
    },
)
