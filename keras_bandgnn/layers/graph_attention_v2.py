"""`GraphAttentionV2`: the layer of a GATv2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn.checks import boolean, divisor, fraction
from keras_bandgnn.layers.batch_layer import log_factor, receiver_rows
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.layers.graph_convolution import EdgeConvolution
from keras_bandgnn.ops.batched import flat_matmul, weighted_heads
from keras_bandgnn.ops.edges import scores as edge_scores
from keras_bandgnn.ops.edges import share_sum
from keras_bandgnn.ops.lookup import map_states
from keras_bandgnn.ops.segment_softmax import segment_softmax
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class GraphAttentionV2(EdgeConvolution):
    """Attention of each node over its senders and itself, with dynamic scores.

    Brody et al. 2022, Eq. 7, without the activation, for each of K heads:

        s[j, n] = a . leaky_relu(W_s h[j] + W_r h[n] + W_e e[j, n])
        out[n] = sum over j of softmax over j (s[j, n]) W_s h[j] + b

    where j ranges over the senders of the edges into n, and n itself once, whose edge
    state is the mean of those into n. The output concatenates the heads. Edge types and
    `batch["plan"]` are ignored. The softmax runs in float32.

    Args:
        units: Width U of the new states, all heads together.
        num_heads: K, a divisor of U.
        dropout: Dropout rate of the attention weights.
        negative_slope: Slope of the leaky ReLU below 0, in [0, 1).
        self_loops: Whether nodes attend to themselves; otherwise only through loops of
            the data.
        share_kernel: Whether W_r is W_s.
        use_bias: Whether W_s, W_r and the output have biases.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E].
        edge_states: float [G, E, D], a `LookedUp`, or None.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, or `units` that heads do not divide.

    Reference:
        Brody et al. 2022, https://arxiv.org/abs/2105.14491.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> GraphAttentionV2(8, num_heads=2)(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = False
    takes_lookups = True
    reads = {"edge": ("sender", "receiver")}

    def __init__(
        self,
        units: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        self_loops: bool = True,
        share_kernel: bool = False,
        use_bias: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.num_heads = divisor("num_heads", num_heads, "units", self.units)
        self.dropout = fraction("dropout", dropout)
        self.negative_slope = fraction("negative_slope", negative_slope)
        self.self_loops = boolean("self_loops", self_loops)
        self.share_kernel = boolean("share_kernel", share_kernel)
        self.use_bias = boolean("use_bias", use_bias)
        # === Layers ===
        options = {"dtype": self.dtype_policy}
        self.sender_dense = FlatDense(
            self.units, use_bias=self.use_bias, name="sender", **options
        )
        self.receiver_dense = self.sender_dense
        if not self.share_kernel:
            self.receiver_dense = FlatDense(
                self.units, use_bias=self.use_bias, name="receiver", **options
            )
        self.edge_dense = FlatDense(self.units, use_bias=False, name="edge", **options)
        self.dropout_layer = Dropout(self.dropout, **options)

    def build_weights(
        self, states_shape: Shape, edge_states_shape: Shape | None = None
    ) -> None:
        """Build W_s and W_r [H, U], W_e [D, U], a [K, U / K] and the biases."""
        self.sender_dense.build(states_shape)
        if not self.share_kernel:
            self.receiver_dense.build(states_shape)
        if edge_states_shape is not None:
            self.edge_dense.build(edge_states_shape)
        self.score_kernel = self.add_weight(
            name="score_kernel",
            shape=(self.num_heads, self.units // self.num_heads),
            initializer="glorot_uniform",
        )
        self.bias = self.bias_weight()

    def _score(self, rows, kernel):
        """Return a . leaky_relu(rows) [..., K] of rows [..., U]."""
        heads, width = kernel.shape
        # Each head's weights in a column of their own: one product of matrices, without
        # rows of products in memory.
        columns = ops.expand_dims(kernel, -1) * ops.expand_dims(
            ops.eye(heads, dtype=kernel.dtype), 1
        )
        return flat_matmul(
            ops.leaky_relu(rows, self.negative_slope),
            ops.reshape(columns, (heads * width, heads)),
        )

    def call(
        self,
        states: Tensor,
        batch: Batch,
        edge_states: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the new states."""
        edges = EdgeMessages.of(batch, states)
        sent = self.sender_dense(states)
        received = sent if self.share_kernel else self.receiver_dense(states)
        # A node that attends to itself does so once.
        mask = edges.receiver < edges.num_nodes
        if self.self_loops:
            mask = ops.not_equal(edges.sender, edges.receiver)
        mapped = self_rows = None
        if self.self_loops:
            self_rows = receiver_rows(sent + received, batch)
        if edge_states is not None:
            mapped = map_states(self.edge_dense, edge_states)
            if self.self_loops:
                self_rows = self_rows + self._mean_of_others(edges, mapped, mask)
        kernel = ops.cast(self.score_kernel, self.compute_dtype)
        scores = edges.fused(
            edge_scores, sent, received, mapped, kernel, self.negative_slope
        )
        if scores is None:
            rows = edges.sent(sent) + edges.received(received)
            rows = rows if mapped is None else rows + mapped
            scores = self._score(rows, kernel)
        times = log_factor(edges.factor)
        if times is not None:
            scores = ops.cast(scores, "float32") + ops.expand_dims(times, -1)
        weights = segment_softmax(
            scores,
            edges.receiver,
            mask,
            edges.num_nodes,
            extra=None if self_rows is None else self._score(self_rows, kernel),
            is_sorted=True,
        )
        own_weights = None
        if self_rows is not None:
            weights, own_weights = weights

        def dropped(shares):
            shares = ops.cast(shares, sent.dtype)
            return self.dropout_layer(shares, training=training)

        # The weights have the factors of the edges already.
        shares, edges = dropped(weights), edges._replace(factor=None)
        out = edges.fused_sum(share_sum, shares, sent)
        if out is None:
            out = edges.total(weighted_heads(shares, edges.sent(sent)))
        if own_weights is not None:
            out = out + weighted_heads(dropped(own_weights), receiver_rows(sent, batch))
        return out if self.bias is None else out + ops.convert_to_tensor(self.bias)

    @staticmethod
    def _mean_of_others(edges, mapped, mask):
        """Return the mean [G, N, U] of edge rows, without those of loops."""
        mask = ops.expand_dims(ops.cast(mask, "float32"), -1)
        return edges.mean(
            mapped * ops.cast(mask, mapped.dtype), count=edges.total(mask)
        )
