"""`GINEBackbone`: the graph isomorphism network, with edge features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import boolean
from keras_bandgnn.layers.gin_convolution import GINConvolution
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Layer, MessageOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GINEBackbone(MessagePassingBackbone):
    """L layers of `GINConvolution`: GINE, or GIN without edge features.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        train_epsilon: Whether the weight of a node's own state is learned.
        **kwargs: Options of `MessagePassingBackbone`: `edge_inputs, num_edge_types,
            norm, activation, dropout, input_dropout, residual, feed_forward,
            jumping_knowledge, virtual_node, ego_separation, activation_first, remat,
            embeddings_initializer, pooling`.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"graph"`, and `"edge"`
        with edge features, otherwise `"plan"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Xu et al. 2019, https://arxiv.org/abs/1810.00826: L = 5, H = 16 to 64, batch
        normalisation, no residual. Hu et al. 2020, https://arxiv.org/abs/1905.12265.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = GINEBackbone({"h": {"features": 2}}, 8, edge_inputs={"bond": 4})
    >>> graph = kb.Graph(
    ...     3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3}, edge={"bond": [1, 3]}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True
    sums_messages = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        train_epsilon: bool = True,
        **kwargs: Unpack[MessageOptions],
    ):
        super().__init__(inputs, hidden_dim, num_layers, **kwargs)
        # === Config ===
        self.train_epsilon = boolean("train_epsilon", train_epsilon)
        self.make_layers()

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer."""
        return GINConvolution(
            self.hidden_dim,
            activation=self.activation,
            train_epsilon=self.train_epsilon,
            batch_norm=self.norm == "batch",
            num_edge_types=max(self.num_edge_types, 1),
            dtype=self.dtype_policy,
            name=f"message_{number}",
        )

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "train_epsilon": self.train_epsilon,
        }
