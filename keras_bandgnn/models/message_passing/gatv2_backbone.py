"""`GATv2Backbone`: the graph attention network with dynamic scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import divisor, fraction
from keras_bandgnn.layers.graph_attention_v2 import GraphAttentionV2
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Layer, MessageOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GATv2Backbone(MessagePassingBackbone):
    """L layers of `GraphAttentionV2`, with or without edge features.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        num_heads: K, a divisor of H.
        attention_dropout: Dropout rate of the attention weights.
        **kwargs: Options of `MessagePassingBackbone`: `edge_inputs, num_edge_types,
            norm, activation, dropout, input_dropout, residual, feed_forward,
            jumping_knowledge, virtual_node, ego_separation, activation_first, remat,
            embeddings_initializer, pooling`.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"graph"`, and `"edge"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Brody et al. 2022, https://arxiv.org/abs/2105.14491.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = GATv2Backbone({"h": {"features": 2}}, 8, edge_inputs={"bond": 4})
    >>> graph = kb.Graph(
    ...     3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3}, edge={"bond": [1, 3]}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    # A node attends to itself, too: its share depends on the number of messages.
    sums_messages = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        num_heads: int = 4,
        attention_dropout: float = 0.0,
        **kwargs: Unpack[MessageOptions],
    ):
        super().__init__(inputs, hidden_dim, num_layers, **kwargs)
        # === Config ===
        self.num_heads = divisor("num_heads", num_heads, "hidden_dim", self.hidden_dim)
        self.attention_dropout = fraction("attention_dropout", attention_dropout)
        self.make_layers()

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer."""
        return GraphAttentionV2(
            self.hidden_dim,
            self.num_heads,
            self.attention_dropout,
            dtype=self.dtype_policy,
            name=f"message_{number}",
        )

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "attention_dropout": self.attention_dropout,
        }
