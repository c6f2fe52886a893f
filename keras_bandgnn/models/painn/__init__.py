"""PaiNN."""

from keras_bandgnn.models.painn.painn_backbone import PaiNNBackbone as PaiNNBackbone

__all__ = ["PaiNNBackbone"]
