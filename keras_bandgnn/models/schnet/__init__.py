"""SchNet."""

from keras_bandgnn.models.schnet.schnet_backbone import (
    SchNetBackbone as SchNetBackbone,
)

__all__ = ["SchNetBackbone"]
