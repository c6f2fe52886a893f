"""`HGTBackbone`: the heterogeneous graph transformer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.checks import divisor, positive_int, sequence, shown
from keras_bandgnn.graph import EDGE_SETS, EdgeSet
from keras_bandgnn.layers.hgt_convolution import HGTConvolution, checked_edge_sets
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Activation,
        Config,
        DropoutOptions,
        Initializer,
        Layer,
    )
    from keras_bandgnn.data.flat import FlatGraphs


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class HGTBackbone(MessagePassingBackbone):
    """L layers of `HGTConvolution`, for graphs of several node sets and edge sets.

    A layer mixes new and old states by itself: there is no norm, activation or residual
    around it by default.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`, with those of the node
            sets: `{"sets": {set: inputs of that set}}`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        num_edge_types: P, types of edges that graphs may have: the number of their edge
            sets. By default that of `edge_sets`, or 1.
        num_heads: K, a divisor of H.
        edge_sets: (source set, relation, target set) of each type of edges, in the
            order of types, as `NodeSetEncoder.edge_types()` or
            `graph.info["edge_sets"]`; it saves maps of nodes that no edge reads. None
            for any.
        norm: As for `MessagePassingBackbone`.
        activation: As for `MessagePassingBackbone`.
        residual: As for `MessagePassingBackbone`.
        embeddings_initializer: As for `MessagePassingBackbone`; by default a normal
            distribution of standard deviation 1, as no norm follows.
        **kwargs: Options of `MessagePassingBackbone`: `dropout, input_dropout,
            feed_forward, jumping_knowledge, virtual_node, ego_separation,
            activation_first, remat`.

    Input shape:
        A batch of graphs with node sets (see `keras_bandgnn.batch`); it reads `"node"`,
        `"set"`, `"edge"` and `"graph"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range, or inputs without node sets.

    Reference:
        Hu et al. 2020, https://arxiv.org/abs/2003.01332: L from 2 to 4, H = 256, K = 8,
        edges in both directions as types of their own.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.data.from_sets(
    ...     {"user": {"age": [[20.0], [30.0]]}, "item": {"kind": [0, 2, 1]}},
    ...     {("user", "buys", "item"): [[0, 1], [0, 2]]},
    ...     reverse=True,
    ... )
    >>> inputs = {"sets": {"user": {"age": {"features": 1}}, "item": {"kind": 3}}}
    >>> backbone = HGTBackbone(inputs, 8, num_edge_types=2)
    >>> batch, = kb.preprocessing.GraphLoader([graph], num_edge_types=2)[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True
    takes_pooling = False
    # Draws by type or by weight change the shares of edges in a softmax.
    sums_messages = True
    reads_edge_states = False
    reads_node_sets = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        num_edge_types: int | None = None,
        num_heads: int = 4,
        edge_sets: Iterable[EdgeSet] | None = None,
        norm: str | None = None,
        activation: Activation = "linear",
        residual: bool | str = False,
        embeddings_initializer: Initializer | None = None,
        **kwargs: Unpack[DropoutOptions],
    ):
        if num_edge_types is None:
            num_edge_types = 1
            if edge_sets is not None:
                edge_sets = sequence("edge_sets", edge_sets, "a list of edge sets")
                num_edge_types = max(1, len(edge_sets))
        super().__init__(
            inputs,
            hidden_dim,
            num_layers,
            num_edge_types=positive_int("num_edge_types", num_edge_types),
            norm=norm,
            activation=activation,
            residual=residual,
            embeddings_initializer=(
                keras.initializers.RandomNormal(stddev=1.0)
                if embeddings_initializer is None
                else embeddings_initializer
            ),
            **kwargs,
        )
        # === Config ===
        self.num_heads = divisor("num_heads", num_heads, "hidden_dim", self.hidden_dim)
        if STATE_ROW not in self.encoder.inputs:
            raise ValueError(
                "Expected `inputs` with node sets, as {'sets': {set: its inputs}}. "
                f"Received: inputs={shown(dict(inputs))}. Build graphs with "
                "keras_bandgnn.data.from_sets, or use RGCNBackbone for graphs of one "
                "node set."
            )
        sets = [*self.encoder.inputs[STATE_ROW]["sets"]]
        self.edge_sets = checked_edge_sets(edge_sets, sets, self.num_edge_types)
        self.make_layers()

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if features or edge sets of a `FlatGraphs` do not fit."""
        super().check(graphs)
        if self.edge_sets is None:
            return
        names = [tuple(key) for key in graphs.info[0].get(EDGE_SETS, ())]
        if names != self.edge_sets:
            raise ValueError(
                f"Expected graphs with the edge sets {self.edge_sets}, as the "
                f"backbone. Received: {names}. Pass edge_sets=graph.info['edge_sets']."
            )

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer."""
        return HGTConvolution(
            self.hidden_dim,
            [*self.encoder.inputs[STATE_ROW]["sets"]],
            self.num_edge_types,
            self.num_heads,
            self.edge_sets,
            dtype=self.dtype_policy,
            name=f"message_{number}",
        )

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "edge_sets": self.edge_sets,
        }
