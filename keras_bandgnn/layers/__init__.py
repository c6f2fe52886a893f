"""Keras layers over the batch contract.

Layers that read the graph are called as `layer(states, batch, ...)`, and `NodeEncoder`,
`AttentionBias` and `ZBLRepulsion`, which take no states, as `layer(batch)`. `batch` is
the batch of a loader; layers with `prepare(batch)` also accept its result in place of
the batch, so that several calls share the work. The other layers (`GRUUpdate`,
`PaiNNUpdate`, `ContinuousFilter`, `ElementEmbedding`, `CharacterEncoder`,
`CumulativeLink`, the radial functions) take tensors, like any Keras layer.
"""

from keras_bandgnn.layers.attention_bias import AttentionBias
from keras_bandgnn.layers.banded_message_passing import BandedMessagePassing
from keras_bandgnn.layers.batch_normalization import MaskedBatchNormalization
from keras_bandgnn.layers.character_encoder import CharacterEncoder
from keras_bandgnn.layers.continuous_filter import ContinuousFilter
from keras_bandgnn.layers.cosine_cutoff import CosineCutoff
from keras_bandgnn.layers.cumulative_link import CumulativeLink
from keras_bandgnn.layers.dense import shifted_softplus
from keras_bandgnn.layers.diff_pooling import DiffPooling
from keras_bandgnn.layers.dual_interleaved_attention import DualInterleavedAttention
from keras_bandgnn.layers.edge_readout import EdgeReadout
from keras_bandgnn.layers.element_embedding import ElementEmbedding
from keras_bandgnn.layers.gated_graph_convolution import GatedGraphConvolution
from keras_bandgnn.layers.gaussian_basis import GaussianBasis
from keras_bandgnn.layers.gin_convolution import GINConvolution
from keras_bandgnn.layers.graph_attention import GraphAttention
from keras_bandgnn.layers.graph_attention_v2 import GraphAttentionV2
from keras_bandgnn.layers.graph_convolution import GraphConvolution
from keras_bandgnn.layers.graph_normalization import (
    GraphNormalization,
    PairNormalization,
)
from keras_bandgnn.layers.graph_readout import GraphReadout
from keras_bandgnn.layers.graph_transformer_layer import GraphTransformerLayer
from keras_bandgnn.layers.gru_readout import GRUReadout
from keras_bandgnn.layers.gru_update import GRUUpdate
from keras_bandgnn.layers.harmonic_encoding import HarmonicEncoding
from keras_bandgnn.layers.hgt_convolution import HGTConvolution
from keras_bandgnn.layers.layer_normalization import LayerNormalization
from keras_bandgnn.layers.link_scorer import LinkScorer
from keras_bandgnn.layers.min_cut_pooling import MinCutPooling
from keras_bandgnn.layers.mpeu_interaction import MPEUInteraction
from keras_bandgnn.layers.node_encoder import NodeEncoder
from keras_bandgnn.layers.painn_message import PaiNNMessage
from keras_bandgnn.layers.painn_update import PaiNNUpdate
from keras_bandgnn.layers.pna_convolution import PNAConvolution
from keras_bandgnn.layers.readout_head import ReadoutHead
from keras_bandgnn.layers.rgcn_convolution import RGCNConvolution
from keras_bandgnn.layers.sag_pooling import SAGPooling
from keras_bandgnn.layers.sage_convolution import SAGEConvolution
from keras_bandgnn.layers.schnet_interaction import SchNetInteraction
from keras_bandgnn.layers.set2set_readout import Set2SetReadout
from keras_bandgnn.layers.sign_net import SignNet
from keras_bandgnn.layers.sine_basis import SineBasis
from keras_bandgnn.layers.top_k_pooling import TopKPooling, pooled_batch
from keras_bandgnn.layers.zbl_repulsion import ZBLRepulsion

# Their names in PyTorch Geometric.
GCNConv = GraphConvolution
GATConv = GraphAttention
GATv2Conv = GraphAttentionV2
GINConv = GINEConv = GINConvolution
HGTConv = HGTConvolution
PNAConv = PNAConvolution
RGCNConv = RGCNConvolution
ResGatedGraphConv = GatedGraphConvolution
SAGEConv = SAGEConvolution
GraphNorm = GraphNormalization
PairNorm = PairNormalization

__all__ = [
    "AttentionBias",
    "BandedMessagePassing",
    "CharacterEncoder",
    "ContinuousFilter",
    "CosineCutoff",
    "CumulativeLink",
    "DiffPooling",
    "DualInterleavedAttention",
    "EdgeReadout",
    "ElementEmbedding",
    "GINConvolution",
    "GRUReadout",
    "GRUUpdate",
    "GatedGraphConvolution",
    "GaussianBasis",
    "GraphAttention",
    "GraphAttentionV2",
    "GraphConvolution",
    "GraphNormalization",
    "GraphReadout",
    "GraphTransformerLayer",
    "HGTConvolution",
    "HarmonicEncoding",
    "LayerNormalization",
    "LinkScorer",
    "MPEUInteraction",
    "MaskedBatchNormalization",
    "MinCutPooling",
    "NodeEncoder",
    "PNAConvolution",
    "PaiNNMessage",
    "PaiNNUpdate",
    "PairNormalization",
    "RGCNConvolution",
    "ReadoutHead",
    "SAGEConvolution",
    "SAGPooling",
    "SchNetInteraction",
    "Set2SetReadout",
    "SignNet",
    "SineBasis",
    "TopKPooling",
    "ZBLRepulsion",
    "pooled_batch",
    "shifted_softplus",
]
