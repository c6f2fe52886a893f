"""Graph attention networks."""

from keras_bandgnn.models.gat.gat_backbone import GATBackbone as GATBackbone

__all__ = ["GATBackbone"]
