"""Keras layers over the batch contract."""

from keras_bandgnn.layers.banded_message_passing import (
    BandedMessagePassing as BandedMessagePassing,
)
from keras_bandgnn.layers.character_encoder import CharacterEncoder as CharacterEncoder
from keras_bandgnn.layers.graph_readout import GraphReadout as GraphReadout
from keras_bandgnn.layers.gru_update import GRUUpdate as GRUUpdate
from keras_bandgnn.layers.node_encoder import NodeEncoder as NodeEncoder

__all__ = [
    "BandedMessagePassing",
    "CharacterEncoder",
    "GRUUpdate",
    "GraphReadout",
    "NodeEncoder",
]
