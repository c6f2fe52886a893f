"""`GraphAttention`: the layer of a GAT."""

from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, fraction, positive_int
from keras_bandgnn.layers.batch_layer import (
    BatchLayer,
    batch_part,
    check_width,
    edge_factor,
    log_factor,
    receiver_rows,
)
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.ops.batched import flat_matmul, weighted_heads
from keras_bandgnn.ops.edges import score_attention, share_sum
from keras_bandgnn.ops.segment_softmax import segment_softmax
from keras_bandgnn.registration import serializable


@serializable
class GraphAttention(BatchLayer):
    """Attention of each node over the senders of its edges and itself.

    Velickovic et al. 2018, Eqs. 1 to 5, without the activation, for each of K heads:

        e[j, n] = leaky_relu(a_s . W h[j] + a_r . W h[n])
        out[n] = sum over j of softmax over j (e[j, n]) W h[j] + b

    where j ranges over the senders of the edges into n, and n itself once. The output
    concatenates the heads. Edge types and `batch["plan"]` are ignored. The softmax runs
    in float32.

    Args:
        units: Width U of the new states, all heads together.
        num_heads: K, a divisor of U.
        dropout: Dropout rate of the attention weights.
        negative_slope: Slope of the leaky ReLU below 0, in [0, 1).
        use_bias: Whether to add the bias b.
        use_kernel: Whether to apply W; otherwise the states stand for W h, and H = U.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E].

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, `units` that heads do not divide, or
            states that are not U wide without W.

    Reference:
        Velickovic et al. 2018, https://arxiv.org/abs/1710.10903.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> GraphAttention(8, num_heads=2)(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = False

    def __init__(
        self,
        units: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
        use_bias: bool = True,
        use_kernel: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.num_heads = positive_int("num_heads", num_heads)
        if self.units % self.num_heads:
            raise ValueError(
                "Expected `units` to be a multiple of `num_heads`. "
                f"Received: units={units}, num_heads={num_heads}."
            )
        self.dropout = fraction("dropout", dropout)
        self.negative_slope = fraction("negative_slope", negative_slope)
        self.use_bias = boolean("use_bias", use_bias)
        self.use_kernel = boolean("use_kernel", use_kernel)
        # === Layers ===
        policy = self.dtype_policy
        if self.use_kernel:
            self.transform = FlatDense(
                self.units, use_bias=False, dtype=policy, name="transform"
            )
        self.dropout_layer = Dropout(self.dropout, dtype=policy)

    def build(self, states_shape, batch_shape=None):
        """Build W [H, U], a_s and a_r [K, U / K] and the bias [U]."""
        if self.use_kernel:
            self.transform.build(states_shape)
        else:
            check_width("states", states_shape, self.units)
        shape = (self.num_heads, self.units // self.num_heads)
        self.sender_kernel, self.receiver_kernel = (
            self.add_weight(name=name, shape=shape, initializer="glorot_uniform")
            for name in ("sender_kernel", "receiver_kernel")
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.units,), initializer="zeros"
            )
        self.built = True

    def scores(self, states):
        """Return W h [G, N, U], and a_s . W h and a_r . W h [G, N, K]."""
        rows = self.transform(states) if self.use_kernel else states
        kernels = [
            ops.cast(kernel, rows.dtype)
            for kernel in (self.sender_kernel, self.receiver_kernel)
        ]
        # Each head's weights in a column of their own: one product of matrices, without
        # rows of products in memory.
        eye = ops.expand_dims(ops.eye(self.num_heads, dtype=rows.dtype), 1)
        columns = [
            ops.reshape(ops.expand_dims(kernel, -1) * eye, (self.units, -1))
            for kernel in kernels
        ]
        both = flat_matmul(rows, ops.concatenate(columns, axis=1))
        sent, received = ops.split(both, 2, axis=-1)
        return rows, sent, received

    def call(self, states, batch, training=False):
        """Return the new states."""
        edge = batch_part(batch, "edge")
        sender = ops.convert_to_tensor(edge["sender"])
        receiver = ops.convert_to_tensor(edge["receiver"])
        rows, sent, received = self.scores(states)
        times = log_factor(edge_factor(batch))
        tensors, ends = (rows, sent, received), (sender, receiver)
        out = None
        if times is None:
            out = self._fused(*tensors, ends, training)
        if out is None:
            out = self._composed(*tensors, ends, batch, times, training)
        else:
            out = receiver_rows(out, batch)
        return out if self.bias is None else out + ops.convert_to_tensor(self.bias)

    def _fused(self, rows, sent, received, ends, training):
        """Compute `_composed` as one operation, or return None."""
        shapes = (*ops.shape(ends[0]), self.num_heads), ops.shape(sent)

        def dropped():
            return [
                self.dropout_layer(ops.ones(shape, rows.dtype), training=True)
                for shape in shapes
            ]

        weights = dropped if training and self.dropout else None
        slope = self.negative_slope
        return score_attention(sent, received, rows, weights, slope, *ends)

    def _composed(self, rows, sent, received, ends, batch, times, training):
        """Return the sums of the rows by one operation after the other."""
        sender, receiver = ends
        num_nodes = ops.shape(receiver_rows(rows, batch))[1]

        def score(values):
            return ops.leaky_relu(values, self.negative_slope)

        # Padded edges have the receiver N.
        inside = ops.minimum(receiver, num_nodes - 1)
        scores = score(
            graph_ops.batched_gather(sent, sender)
            + graph_ops.batched_gather(received, inside)
        )
        if times is not None:
            scores = ops.cast(scores, "float32") + ops.expand_dims(times, -1)
        weights, self_weights = segment_softmax(
            scores,
            receiver,
            # A node attends to itself anyway.
            ops.not_equal(sender, receiver),
            num_nodes,
            extra=score(receiver_rows(sent + received, batch)),
            is_sorted=True,
        )
        weights, self_weights = (
            self.dropout_layer(ops.cast(w, rows.dtype), training=training)
            for w in (weights, self_weights)
        )
        sums = share_sum(weights, rows, sender, receiver)
        if sums is None:
            sums = graph_ops.batched_segment_sum(
                weighted_heads(weights, graph_ops.batched_gather(rows, sender)),
                receiver,
                num_nodes,
                is_sorted=True,
            )
        else:
            sums = receiver_rows(sums, batch)
        return weighted_heads(self_weights, receiver_rows(rows, batch)) + sums

    def compute_output_shape(self, states_shape, batch_shape=None):
        """[G, N, U]."""
        return (*states_shape[:-1], self.units)
