"""`SAGEBackbone`: GraphSAGE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.checks import boolean, one_of, optional, refuse
from keras_bandgnn.layers.sage_convolution import REDUCTIONS, SAGEConvolution
from keras_bandgnn.layers.typed_edges import TYPE_REDUCTIONS
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Layer, MessageOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class SAGEBackbone(MessagePassingBackbone):
    """L layers of `SAGEConvolution`, with or without edge features.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        reduce: `"mean"`, `"sum"`, `"max"` or `"pool"`, how messages are reduced.
        normalize: Whether to divide each message by its length, as in the paper.
        type_reduce: `"sum"` or `"mean"` of the types of edges, which then have weights
            of their own, as have the node sets in `inputs`. None if types count alike.
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
        ValueError: For arguments out of range, or `type_reduce` with
            `num_edge_types=0`.

    Reference:
        Hamilton et al. 2017, https://arxiv.org/abs/1706.02216: L = 2, H = 128, no norm
        and no residual, `normalize=True`.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = SAGEBackbone({"h": {"features": 2}}, 8, edge_inputs={"bond": 4})
    >>> graph = kb.Graph(
    ...     3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3}, edge={"bond": [1, 3]}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        reduce: str = "mean",
        normalize: bool = False,
        type_reduce: str | None = None,
        **kwargs: Unpack[MessageOptions],
    ):
        super().__init__(inputs, hidden_dim, num_layers, **kwargs)
        # === Config ===
        self.reduce = one_of("reduce", reduce, REDUCTIONS)
        self.normalize = boolean("normalize", normalize)
        self.type_reduce = optional(one_of, "type_reduce", type_reduce, TYPE_REDUCTIONS)
        if self.type_reduce is not None and not self.num_edge_types:
            refuse("num_edge_types", "at least 1 with `type_reduce`", 0)
        self.reads_node_sets = (
            self.type_reduce is not None and STATE_ROW in self.encoder.inputs
        )
        self.make_layers()

    @property
    def sums_messages(self) -> bool:
        """Return whether `reduce` is a sum, or types add up their means."""
        by_type = self.type_reduce is not None and self.reduce == "mean"
        return self.reduce == "sum" or by_type

    @property
    def means_by_type(self) -> bool:
        """Return whether messages are divided by the number of edges or types."""
        typed = self.type_reduce is not None
        return typed and "mean" in (self.reduce, self.type_reduce)

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer."""
        sets = self.encoder.inputs.get(STATE_ROW)
        return SAGEConvolution(
            self.hidden_dim,
            self.reduce,
            self.normalize,
            num_edge_types=max(self.num_edge_types, 1),
            type_reduce=self.type_reduce,
            node_sets=[*sets["sets"]] if self.reads_node_sets else None,
            dtype=self.dtype_policy,
            name=f"message_{number}",
        )

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "reduce": self.reduce,
            "normalize": self.normalize,
            "type_reduce": self.type_reduce,
        }
