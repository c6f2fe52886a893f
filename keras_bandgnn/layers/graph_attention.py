"""`GraphAttention`: the layer of a GAT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import (
    boolean,
    divisor,
    fraction,
    one_of,
    optional,
    positive_int,
)
from keras_bandgnn.layers.batch_layer import (
    batch_part,
    check_width,
    edge_factor,
    log_factor,
    receiver_rows,
)
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.layers.graph_convolution import Convolution
from keras_bandgnn.layers.typed_edges import (
    TYPE_REDUCTIONS,
    map_senders,
    type_count,
    type_kernel,
    typed_receivers,
    typed_senders,
    types_into,
)
from keras_bandgnn.ops.batched import flat_matmul, weighted_heads
from keras_bandgnn.ops.edges import score_attention, share_sum
from keras_bandgnn.ops.segment_softmax import segment_softmax
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class GraphAttention(Convolution):
    """Attention of each node over the senders of its edges and itself.

    Velickovic et al. 2018, Eqs. 1 to 5, without the activation, for each of K heads:

        e[j, n] = leaky_relu(a_s . W h[j] + a_r . W h[n])
        out[n] = sum over j of softmax over j (e[j, n]) W h[j] + b

    where j ranges over the senders of the edges into n, and n itself once. The output
    concatenates the heads. `batch["plan"]` is ignored, and so are edge types, unless
    `type_reduce` is set. The softmax runs in float32.

    With `type_reduce` each type p of edges has weights and a softmax of its own:

        e[p, j, n] = leaky_relu(a_s[p] . W[p] h[j] + b_r[p] . h[n])
        out[n] = type_reduce over p of sum over j of softmax over j (e) W[p] h[j] + b

    where j ranges over the senders of the edges of type p into n. A node attends to
    itself only along edges: other layers add its own state, such as those of
    `residual` in a `GATBackbone`. Types without edges into n count as 0 in the sum and
    not at all in the mean. The sum is what torch_geometric's `HeteroConv` of a
    `GATConv(add_self_loops=False)` per relation computes, with b_r = a_r W_r for its
    map W_r of receivers, and the b of all relations. Its mean divides by all relations
    into the set of n, also those without edges into n.

    Args:
        units: Width U of the new states, all heads together.
        num_heads: K, a divisor of U.
        dropout: Dropout rate of the attention weights.
        negative_slope: Slope of the leaky ReLU below 0, in [0, 1).
        use_bias: Whether to add the bias b.
        use_kernel: Whether to apply W; otherwise the states stand for W h, and H = U.
        num_edge_types: P, types of edges that graphs may have.
        type_reduce: `"sum"` or `"mean"` of the types of edges, which then have weights
            of their own. None if they count alike.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E], and with
            `type_reduce` `["type"]`; or the result of `prepare`.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, `units` that heads do not divide,
            states that are not U wide without W, or `type_reduce` without W.

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
        num_edge_types: int = 1,
        type_reduce: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.num_heads = divisor("num_heads", num_heads, "units", self.units)
        self.dropout = fraction("dropout", dropout)
        self.negative_slope = fraction("negative_slope", negative_slope)
        self.use_bias = boolean("use_bias", use_bias)
        self.use_kernel = boolean("use_kernel", use_kernel)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.type_reduce = optional(one_of, "type_reduce", type_reduce, TYPE_REDUCTIONS)
        if self.type_reduce is not None and not self.use_kernel:
            raise ValueError(
                "Expected `use_kernel=True` with `type_reduce`, as types of edges "
                f"differ in W. Received: use_kernel=False, type_reduce={type_reduce!r}."
                " Leave one of them out."
            )
        # === Layers ===
        policy = self.dtype_policy
        if self.use_kernel and self.type_reduce is None:
            self.transform = FlatDense(
                self.units, use_bias=False, dtype=policy, name="transform"
            )
        self.dropout_layer = Dropout(self.dropout, dtype=policy)

    def build_weights(self, states_shape: Shape) -> None:
        """Build W [H, U], a_s and a_r [K, U / K] and the bias [U].

        With `type_reduce` there are W [P, H, U], a_s [P, K, U / K] and b_r [P, H, K].
        """
        shape = (self.num_heads, self.units // self.num_heads)
        width = states_shape[-1]
        if self.type_reduce is not None:
            self.kernel = type_kernel(self, "kernel", (width, self.units))
            self.sender_kernel = type_kernel(self, "sender_kernel", shape)
            self.receiver_kernel = type_kernel(
                self, "receiver_kernel", (width, self.num_heads)
            )
        else:
            if self.use_kernel:
                self.transform.build(states_shape)
            else:
                check_width("states", states_shape, self.units)
            self.sender_kernel, self.receiver_kernel = (
                self.add_weight(name=name, shape=shape, initializer="glorot_uniform")
                for name in ("sender_kernel", "receiver_kernel")
            )
        self.bias = self.bias_weight()

    def prepare(self, batch: Batch) -> Batch:
        """Precompute the part of a batch that layers of equal options share."""
        # In a hop of a sampled batch the call knows the number of senders.
        if self.type_reduce is None or "hop" in batch:
            return batch
        num_nodes = ops.shape(batch["node"]["mask"])[1]
        return {**batch, "typed": self._typed(batch, num_nodes, num_nodes)}

    def _typed(self, batch, num_senders, num_nodes):
        """Return the rows of senders and receivers by type, and the types per node."""
        edge, types = batch_part(batch, "edge"), self.num_edge_types
        # Matrices have as many rows as states have channels: in a backbone U.
        typed = typed_senders(edge, num_senders, types, self.units)
        typed["receiver"] = typed_receivers(batch, num_nodes, types)
        if self.type_reduce == "mean":
            typed["count"] = types_into(type_count(batch, num_nodes, types))
        return typed

    def scores(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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

    def call(self, states: Tensor, batch: Batch, training: bool = False) -> Tensor:
        """Return the new states."""
        if self.type_reduce is not None:
            out = self._by_type(states, batch, training)
            return out if self.bias is None else out + ops.convert_to_tensor(self.bias)
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

    def _by_type(self, states, batch, training):
        """Return the sum or mean over types of the attention along each."""
        near = receiver_rows(states, batch)
        width, num_nodes = states.shape[-1], ops.shape(near)[1]
        typed = batch.get("typed")
        if typed is None:
            typed = self._typed(batch, ops.shape(states)[1], num_nodes)
        kernel, sender_kernel, receiver_kernel = (
            ops.cast(weight, self.compute_dtype)
            for weight in (self.kernel, self.sender_kernel, self.receiver_kernel)
        )
        types, heads = self.num_edge_types, self.num_heads
        # A score of a sender is that of its state: W[p] a_s[p] has few columns.
        columns = ops.einsum(
            "phkd,pkd->phk",
            ops.reshape(kernel, (types, width, heads, self.units // heads)),
            sender_kernel,
        )
        rows, sent = (
            map_senders(states, ops.expand_dims(matrix, 1), typed)
            for matrix in (kernel, columns)
        )
        columns = ops.transpose(receiver_kernel, (1, 0, 2))
        received = flat_matmul(near, ops.reshape(columns, (width, types * heads)))
        received = ops.reshape(received, (-1, num_nodes * types, heads))
        segment = typed["receiver"]
        inside = ops.minimum(segment, num_nodes * types - 1)
        scores = ops.leaky_relu(
            graph_ops.batched_gather(sent, typed["row"])
            + graph_ops.batched_gather(received, inside),
            self.negative_slope,
        )
        factor, mask = edge_factor(batch), ops.ones_like(segment, dtype="bool")
        if factor is not None:
            scores = ops.cast(scores, "float32")
            scores = scores + ops.expand_dims(log_factor(factor), -1)
            # The edges of a type may all have the factor 0.
            mask = factor > 0
        weights = segment_softmax(scores, segment, mask, num_nodes * types)
        weights = self.dropout_layer(ops.cast(weights, rows.dtype), training=training)
        receiver = ops.convert_to_tensor(batch["edge"]["receiver"])
        out = _weighted_sums(weights, rows, typed["row"], receiver, num_nodes)
        if "count" in typed:
            out = out / ops.cast(typed["count"], out.dtype)
        return out

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
        sums = _weighted_sums(weights, rows, sender, receiver, num_nodes)
        return weighted_heads(self_weights, receiver_rows(rows, batch)) + sums


def _weighted_sums(weights, rows, sender, receiver, num_nodes):
    """Sum rows of senders [G, M, U] at receivers, weighted per head [G, E, K]."""
    length = ops.shape(rows)[1]
    fixed = isinstance(length, int) and isinstance(num_nodes, int)
    # The fused operation has as many receivers as senders.
    if not fixed or length >= num_nodes:
        sums = share_sum(weights, rows, sender, receiver)
        if sums is not None:
            return sums[:, :num_nodes]
    return graph_ops.batched_segment_sum(
        weighted_heads(weights, graph_ops.batched_gather(rows, sender)),
        receiver,
        num_nodes,
        is_sorted=True,
    )
