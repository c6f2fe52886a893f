"""`GraphReadout`: one vector per graph from the states of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import boolean, one_of, optional, positive_int
from keras_bandgnn.layers.batch_layer import Readout
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.ops.segment_softmax import segment_softmax
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, LayerOptions, Shape, Tensor

REDUCTIONS = ("sum", "mean", "attention")


@serializable
class GraphReadout(Readout):
    """Sum, mean or attention over the nodes of each graph, after a small network.

        u_n = W_2 activation(W_1 h_n + b_1) + b_2
        out_g = sum over the nodes n of graph g of a_n u_n

    with a_n = 1 for "sum", 1 / n_node_g for "mean", and for "attention" the softmax of
    learned scores w . h_n over the nodes of the graph.

    Padding nodes add nothing, and graphs without nodes get 0. Half-precision values
    accumulate in float32.

    Args:
        units: Width D of the output.
        reduce: `"sum"`, `"mean"` or `"attention"` over the nodes of a graph.
        hidden: Width of the hidden layer; by default half the width of the states.
        activation: Name of the hidden layer's activation, or a function.
        use_bias: Whether the two layers have biases.

    Input shape:
        states: float [G, N, C].
        batch: A batch (see `keras_bandgnn.batch`); it reads `batch["node"]["mask"]`,
            `batch["node"]["graph_id"]` [G, N] and `batch["graph"]["n_node"]` [G, B].

    Output shape:
        float [G, B, D].

    Raises:
        ValueError: For an unknown `reduce`, or widths below 1.

    Reference:
        Schuett et al. 2017 (SchNet) and Speckhard et al. 2025: C -> C / 2 -> 1 per
        node, then the mean (the paper's equations say sum). Li et al. 2016, Eq. 7, with
        a softmax: "attention".

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> GraphReadout(4)(batch["node"]["h"], batch).shape[-1]
    4
    """

    splits_sequences = True

    def __init__(
        self,
        units: int,
        reduce: str = "sum",
        hidden: int | None = None,
        activation: Activation = "silu",
        use_bias: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.reduce = one_of("reduce", reduce, REDUCTIONS)
        self.hidden = optional(positive_int, "hidden", hidden)
        self.activation = keras.activations.get(activation)
        self.use_bias = boolean("use_bias", use_bias)

    def build_weights(self, states_shape: Shape) -> None:
        """Build the layers."""
        width = states_shape[-1]
        options = {"use_bias": self.use_bias, "dtype": self.dtype_policy}
        self.hidden_dense = FlatDense(
            self.hidden or max(1, width // 2),
            activation=self.activation,
            name="hidden",
            **options,
        )
        self.output_dense = FlatDense(self.units, name="output", **options)
        self.hidden_dense.build((None, None, width))
        self.output_dense.build((None, None, self.hidden_dense.units))
        if self.reduce == "attention":
            # Softmax is invariant to a bias.
            options["use_bias"] = False
            self.score_dense = FlatDense(1, name="score", **options)
            self.score_dense.build((None, None, width))

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return one vector per graph."""
        values = self.output_dense(self.hidden_dense(states))
        return ops.cast(self._over_nodes(values, states, batch), self.compute_dtype)

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the vectors in which the output is linear.

        Returns:
            float [G, B, H], times the weights of the last layer the output; with a
            last column for the bias, [G, B, H + 1], if there is one.
        """
        values = self.hidden_dense(states)
        if self.use_bias:
            values = ops.concatenate([values, ops.ones_like(values[..., :1])], axis=-1)
        return self._over_nodes(values, states, batch)

    def _over_nodes(self, values, states, batch):
        """Return the sum, mean or weighted sum of the nodes of each graph."""
        graphs = GraphSegments(batch)
        if self.reduce == "attention":
            shares = segment_softmax(
                self.score_dense(states),
                graphs.ids,
                graphs.mask,
                graphs.num_graphs,
                split=True,
            )
            values = values * ops.cast(shares, values.dtype)
        wide = keras.backend.result_type(self.compute_dtype, "float32")
        values = ops.cast(values, wide)
        return graphs.mean(values) if self.reduce == "mean" else graphs.sum(values)
