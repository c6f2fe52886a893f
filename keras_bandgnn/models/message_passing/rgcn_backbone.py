"""`RGCNBackbone`: the relational graph convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import divisor, one_of, optional, positive_int
from keras_bandgnn.layers.rgcn_convolution import REDUCTIONS, RGCNConvolution
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Layer, RelationOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class RGCNBackbone(MessagePassingBackbone):
    """L layers of `RGCNConvolution`, with a matrix per type of edge.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        num_edge_types: P, types of edges that graphs may have.
        reduce: `"mean"` or `"sum"`, how the messages of one type are reduced.
        num_bases: B, the matrices that all types share; None for a matrix per type.
        num_blocks: B, blocks on the diagonal of each type's matrix, a divisor of H;
            None for full matrices.
        **kwargs: Options of `MessagePassingBackbone`: `norm, activation, dropout,
            input_dropout, residual, feed_forward, jumping_knowledge, virtual_node,
            ego_separation, activation_first, remat, embeddings_initializer, pooling`.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"plan"` and `"graph"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range, or both `num_bases` and `num_blocks`.

    Reference:
        Schlichtkrull et al. 2018, https://arxiv.org/abs/1703.06103: L = 2, H = 16, no
        norm and no residual, `num_bases` from 0 to 40, edges in both directions as
        types of their own.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = RGCNBackbone({"h": {"features": 2}}, 8, num_edge_types=2)
    >>> graph = kb.Graph(
    ...     3, [0, 1, 0], [1, 2, 2], edge_type=[0, 1, 0], node={"h": [[1.0, 2.0]] * 3}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True
    sums_messages = True
    reads_edge_states = False

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        num_edge_types: int = 1,
        reduce: str = "mean",
        num_bases: int | None = None,
        num_blocks: int | None = None,
        **kwargs: Unpack[RelationOptions],
    ):
        super().__init__(
            inputs,
            hidden_dim,
            num_layers,
            num_edge_types=positive_int("num_edge_types", num_edge_types),
            **kwargs,
        )
        # === Config ===
        self.reduce = one_of("reduce", reduce, REDUCTIONS)
        self.num_bases = optional(positive_int, "num_bases", num_bases)
        self.num_blocks = optional(
            divisor, "num_blocks", num_blocks, "hidden_dim", self.hidden_dim
        )
        self.make_layers()

    @property
    def means_by_type(self) -> bool:
        """Return whether sums are divided by the number of edges of a type."""
        return self.reduce == "mean"

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer."""
        return RGCNConvolution(
            self.hidden_dim,
            self.num_edge_types,
            self.reduce,
            num_bases=self.num_bases,
            num_blocks=self.num_blocks,
            dtype=self.dtype_policy,
            name=f"message_{number}",
        )

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "reduce": self.reduce,
            "num_bases": self.num_bases,
            "num_blocks": self.num_blocks,
        }
