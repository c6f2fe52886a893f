"""Keras layers over the batch contract.

Layers that read the graph are called as `layer(states, batch, ...)`, and `NodeEncoder`,
`AttentionBias` and `ZBLRepulsion`, which take no states, as `layer(batch)`. `batch` is
the batch of a loader; layers with `prepare(batch)` also accept its result in place of
the batch, so that several calls share the work. The other layers (`GRUUpdate`,
`PaiNNUpdate`, `ContinuousFilter`, `ElementEmbedding`, `CharacterEncoder`,
`CumulativeLink`, the radial functions) take tensors, like any Keras layer.
"""

from keras_bandgnn.layers.attention_bias import AttentionBias as AttentionBias
from keras_bandgnn.layers.banded_message_passing import (
    BandedMessagePassing as BandedMessagePassing,
)
from keras_bandgnn.layers.batch_normalization import (
    MaskedBatchNormalization as MaskedBatchNormalization,
)
from keras_bandgnn.layers.character_encoder import CharacterEncoder as CharacterEncoder
from keras_bandgnn.layers.continuous_filter import ContinuousFilter as ContinuousFilter
from keras_bandgnn.layers.cosine_cutoff import CosineCutoff as CosineCutoff
from keras_bandgnn.layers.cumulative_link import CumulativeLink as CumulativeLink
from keras_bandgnn.layers.dense import shifted_softplus as shifted_softplus
from keras_bandgnn.layers.dual_interleaved_attention import (
    DualInterleavedAttention as DualInterleavedAttention,
)
from keras_bandgnn.layers.edge_readout import EdgeReadout as EdgeReadout
from keras_bandgnn.layers.element_embedding import ElementEmbedding as ElementEmbedding
from keras_bandgnn.layers.gated_graph_convolution import (
    GatedGraphConvolution as GatedGraphConvolution,
)
from keras_bandgnn.layers.gaussian_basis import GaussianBasis as GaussianBasis
from keras_bandgnn.layers.gin_convolution import GINConvolution as GINConvolution
from keras_bandgnn.layers.graph_attention import GraphAttention as GraphAttention
from keras_bandgnn.layers.graph_attention_v2 import GraphAttentionV2 as GraphAttentionV2
from keras_bandgnn.layers.graph_convolution import GraphConvolution as GraphConvolution
from keras_bandgnn.layers.graph_normalization import (
    GraphNormalization as GraphNormalization,
)
from keras_bandgnn.layers.graph_normalization import (
    PairNormalization as PairNormalization,
)
from keras_bandgnn.layers.graph_readout import GraphReadout as GraphReadout
from keras_bandgnn.layers.graph_transformer_layer import (
    GraphTransformerLayer as GraphTransformerLayer,
)
from keras_bandgnn.layers.gru_readout import GRUReadout as GRUReadout
from keras_bandgnn.layers.gru_update import GRUUpdate as GRUUpdate
from keras_bandgnn.layers.layer_normalization import (
    LayerNormalization as LayerNormalization,
)
from keras_bandgnn.layers.link_scorer import LinkScorer as LinkScorer
from keras_bandgnn.layers.mpeu_interaction import MPEUInteraction as MPEUInteraction
from keras_bandgnn.layers.node_encoder import NodeEncoder as NodeEncoder
from keras_bandgnn.layers.painn_message import PaiNNMessage as PaiNNMessage
from keras_bandgnn.layers.painn_update import PaiNNUpdate as PaiNNUpdate
from keras_bandgnn.layers.pna_convolution import PNAConvolution as PNAConvolution
from keras_bandgnn.layers.readout_head import ReadoutHead as ReadoutHead
from keras_bandgnn.layers.sage_convolution import SAGEConvolution as SAGEConvolution
from keras_bandgnn.layers.schnet_interaction import (
    SchNetInteraction as SchNetInteraction,
)
from keras_bandgnn.layers.sign_net import SignNet as SignNet
from keras_bandgnn.layers.sine_basis import SineBasis as SineBasis
from keras_bandgnn.layers.zbl_repulsion import ZBLRepulsion as ZBLRepulsion

# Their names in PyTorch Geometric.
GCNConv = GraphConvolution
GATConv = GraphAttention
GATv2Conv = GraphAttentionV2
GINConv = GINEConv = GINConvolution
PNAConv = PNAConvolution
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
    "LayerNormalization",
    "LinkScorer",
    "MPEUInteraction",
    "MaskedBatchNormalization",
    "NodeEncoder",
    "PNAConvolution",
    "PaiNNMessage",
    "PaiNNUpdate",
    "PairNormalization",
    "ReadoutHead",
    "SAGEConvolution",
    "SchNetInteraction",
    "SignNet",
    "SineBasis",
    "ZBLRepulsion",
    "shifted_softplus",
]
