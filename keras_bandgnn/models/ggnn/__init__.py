"""Gated graph neural networks."""

from keras_bandgnn.models.ggnn.ggnn_backbone import GGNNBackbone as GGNNBackbone

__all__ = ["GGNNBackbone"]
