"""`LightGCNBackbone`: propagated embeddings of users and items."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np

from keras_bandgnn.checks import number, optional, positive_int, refuse
from keras_bandgnn.layers.graph_convolution import GraphConvolution
from keras_bandgnn.models.backbone import Backbone
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Initializer, Layer, ModuleOptions, Tensor
    from keras_bandgnn.data.flat import FlatGraphs

_LOG = logging.getLogger(__name__)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class LightGCNBackbone(MessagePassingBackbone):
    """The mean of embeddings after 0 to L propagations, without weights of layers.

        e(0) = encode(features)
        e(l) = D^-1/2 A D^-1/2 e(l-1),  l = 1 .. L
        out  = sum over l of layer_weights[l] e(l)

    D[n] is the number of edges into n, of all types together; a self-loop of the data
    is an edge like others. There are no other weights than those of the encoder: over
    ids it is the matrix of embeddings of the paper, over other features a linear map
    of them, which also applies to new users and items. Messages go from senders to
    receivers, so each edge needs its reverse, as an undirected graph has it, or a
    reverse edge set.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        num_edge_types: P, types of edges that graphs may have, 0 for any. All count
            alike.
        layer_weights: Weights of the L + 1 embeddings, which may be negative; by
            default 1 / (L + 1).
        embeddings_initializer: As for `MessagePassingBackbone`; by default a normal
            distribution of standard deviation 0.1, as in the code of the paper.
        **kwargs: `name`, `dtype` and `trainable` of Keras.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"plan"` and `"edge"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        He et al. 2020, https://arxiv.org/abs/2002.02126, Eqs. 3 to 8: H = 64, L = 3,
        trained with `LinkPredictor(objective="bpr")`.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.data.from_sets(
    ...     {"user": {"id": [0, 1, 2]}, "item": {"id": [0, 1]}},
    ...     {("user", "buys", "item"): [[0, 1, 2], [0, 0, 1]]},
    ...     reverse=True,
    ... )
    >>> inputs = {"sets": {"user": {"id": 3}, "item": {"id": 2}}}
    >>> backbone = LightGCNBackbone(inputs, hidden_dim=8)
    >>> batch, = kb.preprocessing.GraphLoader([graph], num_edge_types=0)[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True
    takes_pooling = False
    sums_messages = True
    reads_edge_states = False

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 3,
        *,
        num_edge_types: int = 0,
        layer_weights: Sequence[float] | None = None,
        embeddings_initializer: Initializer | None = None,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(
            inputs,
            hidden_dim,
            num_layers,
            num_edge_types=positive_int("num_edge_types", num_edge_types, 0),
            norm=None,
            activation="linear",
            residual=False,
            # The last states join those of all layers.
            jumping_knowledge="sum",
            embeddings_initializer=(
                keras.initializers.RandomNormal(stddev=0.1)
                if embeddings_initializer is None
                else embeddings_initializer
            ),
            **kwargs,
        )
        # === Config ===
        self.layer_weights = optional(
            _checked_weights, "layer_weights", layer_weights, self.num_layers + 1
        )
        self.make_layers()

    def message_layer(self, number: int) -> Layer | None:
        """Return the propagation of a layer, which has no weights."""
        return GraphConvolution(
            self.hidden_dim,
            max(self.num_edge_types, 1),
            use_bias=False,
            use_kernel=False,
            self_loops=False,
            dtype=self.dtype_policy,
            name=f"convolution_{number}",
        )

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if features do not fit; warn of edges of one direction."""
        super().check(graphs)
        starts = graphs.node_ptr[:-1].repeat(graphs.num_edges)
        receives = np.zeros(graphs.node_ptr[-1], bool)
        receives[graphs.receivers + starts] = True
        if len(starts) and not receives[graphs.senders + starts].any():
            _LOG.warning(
                "No node receives messages and sends any, so senders stay as they were "
                "embedded. Give each edge its reverse, such as from_sets(..., "
                "reverse=True)."
            )

    def check_edge_types(self, num_edge_types: int) -> None:
        """Raise a ValueError for plans with types of edges, unless it has them."""
        super().check_edge_types(num_edge_types)
        if not self.num_edge_types and num_edge_types > 1:
            raise ValueError(
                "Expected a loader whose plan has one type of edges, as the backbone "
                f"has num_edge_types=0. Received: {num_edge_types} types. Pass "
                "GraphLoader(..., num_edge_types=0), or to LinkLoader "
                "loader=GraphLoader([graph], StaticBatcher(1), num_edge_types=0)."
            )

    def joined(self, seen: Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the states [G, N, H] of all layers."""
        # In a trimmed batch the last layer has the fewest rows.
        rows = keras.ops.shape(seen[-1])[1]
        seen = [states[:, :rows] for states in seen]
        if self.layer_weights is None:
            return sum(seen[1:], seen[0]) * (1.0 / len(seen))
        return sum(
            weight * states
            for weight, states in zip(self.layer_weights, seen, strict=True)
        )

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **Backbone.get_config(self),
            "inputs": self.encoder.inputs,
            "hidden_dim": self.hidden_dim,
            "num_layers": self.num_layers,
            "num_edge_types": self.num_edge_types,
            "layer_weights": self.layer_weights,
            "embeddings_initializer": self.encoder.embeddings_initializer,
        }


def _checked_weights(name: str, weights, count: int) -> list[float]:
    """Return an argument that is a list of some numbers, or raise a ValueError."""
    if not isinstance(weights, list | tuple) or len(weights) != count:
        refuse(name, f"a list of {count} numbers, num_layers + 1", weights)
    return [number(f"{name}[{k}]", weight) for k, weight in enumerate(weights)]
