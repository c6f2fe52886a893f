"""Graph transformers: Graphormer and GT."""

from keras_bandgnn.models.graph_transformer.graphormer_backbone import (
    GraphormerBackbone as GraphormerBackbone,
)
from keras_bandgnn.models.graph_transformer.gt_backbone import GTBackbone as GTBackbone

__all__ = ["GTBackbone", "GraphormerBackbone"]
