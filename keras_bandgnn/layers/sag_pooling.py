"""`SAGPooling`: the nodes of each graph that a graph convolution scores highest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn.layers.batch_layer import segment_plan
from keras_bandgnn.layers.graph_convolution import GraphConvolution
from keras_bandgnn.layers.top_k_pooling import NodePooling
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, LayerOptions, Shape, Tensor
    from keras_bandgnn.data.flat import FlatGraphs


@serializable
class SAGPooling(NodePooling):
    """Keep the nodes of each graph that a graph convolution scores highest.

        score = D^-1/2 (A + I) D^-1/2 H w + b,  as `GraphConvolution(1)`
        k_g = ceil(ratio n_node_g)
        out[n] = activation(score[n]) h[n] if score[n] is among the k_g largest of the
            graph of n, otherwise 0

    Of equal scores that of the lower row counts as larger. Padding never stays, and a
    graph's nodes do not depend on the rest of the batch. Types of edges count alike. As
    `pooling=` of a message-passing backbone it stands between the layers. Called alone,
    it returns the mask for `pooled_batch`, which gives the batch of the next layers.

    Args:
        ratio: Share of the nodes of each graph that stay, above 0 and at most 1.
        activation: Name of the activation of scores, or a function.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"edge"` and
            `"graph"`.

    Output shape:
        Two arrays: the states, float [G, N, H], 0 for nodes that do not stay, and the
        mask of those that do, bool [G, N].

    Raises:
        ValueError: For a ratio out of range.

    Reference:
        Lee et al. 2019, https://arxiv.org/abs/1904.08082, Eqs. 3 to 5.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> states, mask = SAGPooling(0.5)(batch["node"]["h"], batch)
    >>> int(ops.sum(ops.cast(mask, "int32")))
    2
    """

    splits_sequences = False
    uses_edge_weight = True

    def __init__(
        self,
        ratio: float = 0.5,
        activation: Activation = "tanh",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(ratio, activation, **kwargs)
        # === Layers ===
        self.convolution = GraphConvolution(1, dtype="float32", name="convolution")

    def build_weights(self, states_shape: Shape) -> None:
        """Build the graph convolution."""
        self.convolution.build(states_shape)

    def check_weights(
        self, graphs: FlatGraphs, edge_weight: str, first: int = 0
    ) -> None:
        """See `GraphConvolution.check_weights`."""
        self.convolution.check_weights(graphs, edge_weight, first)

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the graph convolution of the states, float32 [G, N]."""
        batch = {**batch, "plan": segment_plan(batch)}
        scores = self.convolution(ops.cast(states, "float32"), batch)
        return ops.cast(scores[..., 0], "float32")
