"""Message passing with edge updates."""

from keras_bandgnn.models.mpeu.mpeu_backbone import MPEUBackbone as MPEUBackbone

__all__ = ["MPEUBackbone"]
