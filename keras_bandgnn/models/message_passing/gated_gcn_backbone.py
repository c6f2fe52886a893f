"""`GatedGCNBackbone`: the gated graph convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.layers.gated_graph_convolution import GatedGraphConvolution
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Layer, MessageOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GatedGCNBackbone(MessagePassingBackbone):
    """L layers of `GatedGraphConvolution`, which update the edge states, too.

    Without edge features the states of edges are those of their ends, as gates read
    them, and are not kept.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
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
        Bresson and Laurent 2017, https://arxiv.org/abs/1711.07553; Dwivedi et al. 2020,
        https://arxiv.org/abs/2003.00982, Eqs. 16 to 18: L = 4 or 16, batch
        normalisation, residual.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = GatedGCNBackbone({"h": {"features": 2}}, 8, edge_inputs={"bond": 4})
    >>> graph = kb.Graph(
    ...     3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3}, edge={"bond": [1, 3]}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    updates_edge_states = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        **kwargs: Unpack[MessageOptions],
    ):
        super().__init__(inputs, hidden_dim, num_layers, **kwargs)
        self.make_layers()

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer."""
        return GatedGraphConvolution(
            self.hidden_dim, dtype=self.dtype_policy, name=f"message_{number}"
        )
