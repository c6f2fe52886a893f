"""Graph convolutional networks."""

from keras_bandgnn.models.gcn.gcn_backbone import GCNBackbone as GCNBackbone

__all__ = ["GCNBackbone"]
