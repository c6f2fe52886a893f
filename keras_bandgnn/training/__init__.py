"""Schedules, losses and optimisers."""

from keras_bandgnn.training.linear_decay import LinearDecay as LinearDecay
from keras_bandgnn.training.optimizers import make_optimizer as make_optimizer
from keras_bandgnn.training.selection_crossentropy import (
    SelectionCrossentropy as SelectionCrossentropy,
)

__all__ = ["LinearDecay", "SelectionCrossentropy", "make_optimizer"]
