"""`HGTConvolution`: the layer of a heterogeneous graph transformer."""

from collections.abc import Iterable

import keras
from keras import ops

from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.checks import positive_int
from keras_bandgnn.layers.batch_layer import (
    BatchLayer,
    batch_part,
    edge_factor,
    log_factor,
    receiver_rows,
)
from keras_bandgnn.layers.node_set_dense import (
    NodeSetDense,
    checked_node_sets,
    node_set_ids,
)
from keras_bandgnn.ops.attention import edge_attention
from keras_bandgnn.ops.batched import batched_gather, batched_segment_sum
from keras_bandgnn.ops.context import is_portable
from keras_bandgnn.registration import serializable

# Rows of a block, all mapped by the matrices of one type.
_BLOCK = 64


@serializable
class HGTConvolution(BatchLayer):
    """Attention over the edges into a node, with maps per node set and edge type.

    Hu et al. 2020, Eqs. 3 to 5, as the HGTConv of PyTorch Geometric computes it. For an
    edge j -> n of type p, s the set of j and t that of n, and each of K heads of d
    channels:

        score = a[p] (h[j] W_k[s] + b_k[s]) A[p] . (h[n] W_q[t] + b_q[t]) / sqrt(d)
        message = (h[j] W_v[s] + b_v[s]) M[p]
        sum[n] = sum over edges into n of softmax over them (score) message
        new[n] = gelu(sum[n]) W_o[t] + b_o[t]
        out[n] = sigmoid(c[t]) new[n] + (1 - sigmoid(c[t])) h[n]

    The softmax is over the edges of all types together, in float32, and the sum of a
    node without edges is 0. Heads are concatenated. If H differs from U, `out` is
    `new`. `batch["plan"]` is ignored.

    Args:
        units: Width U of the new states, all heads together.
        node_sets: Names of the node sets of the graphs.
        num_edge_types: P, the number of edge types in batches: of the edge sets.
        num_heads: K, a divisor of U.

    Input shape:
        states: float [G, N, H].
        batch: A batch of graphs with node sets (see `keras_bandgnn.batch`), or the
            result of `prepare`; it reads `batch["edge"]["sender"]`, `["receiver"]` and
            `["type"]`, int32 [G, E], `batch["node"]["state_row"]`, int32 [G, N], and
            `batch["set"][s]["node"]`, int32 [G, M].

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, `units` that heads do not divide, or a
            batch without these node sets.

    Reference:
        Hu et al. 2020, https://arxiv.org/abs/2003.01332.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.data.from_sets(
    ...     {"user": 2, "item": 3},
    ...     {("user", "buys", "item"): [[0, 1], [0, 2]]},
    ...     reverse=True,
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph], num_edge_types=2)[0]
    >>> states = keras.ops.ones((*batch["node"]["mask"].shape, 8))
    >>> layer = HGTConvolution(8, ["user", "item"], num_edge_types=2, num_heads=2)
    >>> layer(states, batch).shape[-1]
    8
    """

    splits_sequences = False
    reads = {
        "edge": ("sender", "receiver", "type"),
        "node": ("mask", STATE_ROW),
        "set": None,
        "typed": None,
    }

    def __init__(
        self,
        units: int,
        node_sets: Iterable[str],
        num_edge_types: int = 1,
        num_heads: int = 8,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.node_sets = checked_node_sets(node_sets)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.num_heads = positive_int("num_heads", num_heads)
        if self.units % self.num_heads:
            raise ValueError(
                "Expected `units` to be a multiple of `num_heads`. "
                f"Received: units={units}, num_heads={num_heads}."
            )
        # === Layers ===
        options = {"dtype": self.dtype_policy}
        # Each of the three matrices side by side has the fans of one.
        self.projection = NodeSetDense(
            3 * self.units,
            self.node_sets,
            kernel_initializer="lecun_uniform",
            name="projection",
            **options,
        )
        self.output_dense = NodeSetDense(
            self.units, self.node_sets, name="output", **options
        )

    def build(self, states_shape, batch_shape=None):
        """Build the weights.

        W_k, W_q and W_v as one matrix [H, 3 U], W_o [U, U] and the biases, of each set;
        c [S] of S sets; and A and M [P, K, U / K, U / K] and a [P, K] of the types.
        """
        self.projection.build(states_shape)
        self.output_dense.build((*states_shape[:-1], self.units))
        width, heads = self.units // self.num_heads, self.num_heads
        # Fans of one matrix.
        limit = (3.0 / width) ** 0.5
        self.attention_kernel, self.message_kernel = (
            self.add_weight(
                name=name,
                shape=(self.num_edge_types, heads, width, width),
                initializer=keras.initializers.RandomUniform(-limit, limit),
            )
            for name in ("attention_kernel", "message_kernel")
        )
        self.prior = self.add_weight(
            name="prior", shape=(self.num_edge_types, heads), initializer="ones"
        )
        self.skip = None
        if states_shape[-1] == self.units:
            self.skip = self.add_weight(
                name="skip", shape=(len(self.node_sets),), initializer="ones"
            )
        self.built = True

    def prepare(self, batch):
        """Precompute the part of a batch that layers of equal options share.

        Args:
            batch: A batch.

        Returns:
            The argument `batch` of the calls.
        """
        edge = batch_part(batch, "edge")
        self.projection.check_sets(batch)
        sets = {name: {"node": table["node"]} for name, table in batch["set"].items()}
        num_nodes = ops.shape(batch["node"][STATE_ROW])[1]
        typed = _typed_rows(edge, num_nodes, self.num_edge_types)
        return {**batch, "set": sets, "typed": typed}

    def call(self, states, batch):
        """Return the new states."""
        if "typed" not in batch:
            batch = self.prepare(batch)
        edge, typed = batch["edge"], batch["typed"]
        keys, queries, values = ops.split(self.projection(states, batch), 3, axis=-1)
        rows = self._mapped(ops.concatenate([keys, values], axis=-1), typed)
        keys, values = ops.split(rows, 2, axis=-1)
        bias = log_factor(edge_factor(batch))
        if bias is not None:
            shape = (*ops.shape(bias), self.num_heads)
            bias = ops.broadcast_to(ops.expand_dims(bias, -1), shape)
        sums, _ = edge_attention(
            receiver_rows(queries, batch),
            keys,
            values,
            bias=bias,
            weight=None,
            sender=typed["row"],
            receiver=ops.convert_to_tensor(edge["receiver"]),
            num_heads=self.num_heads,
        )
        sums = ops.cast(sums, self.compute_dtype)
        out = self.output_dense(ops.gelu(sums, approximate=False), batch)
        if self.skip is None:
            return out
        kind = node_set_ids(batch, self.node_sets, ops.shape(out)[1])
        share = ops.cast(ops.sigmoid(self.skip), out.dtype)
        share = ops.matmul(
            ops.one_hot(kind, len(self.node_sets), dtype=out.dtype),
            ops.expand_dims(share, -1),
        )
        return share * out + (1 - share) * receiver_rows(states, batch)

    def _mapped(self, rows, typed):
        """Return rows [G, M, 2 U] times the matrices of types, [G, R, 2 U]."""
        attention, message, prior = (
            ops.cast(weight, self.compute_dtype)
            for weight in (self.attention_kernel, self.message_kernel, self.prior)
        )
        # Keys have the priors: a score is linear in them.
        attention = attention * ops.expand_dims(ops.expand_dims(prior, -1), -1)
        kernel = ops.concatenate([attention, message], axis=1)
        types, heads, width, _ = kernel.shape
        groups, count = ops.shape(rows)[:2]
        if "type" not in typed:
            # All nodes with the matrices of all types: per head [M, d] @ [d, P d].
            rows = ops.reshape(rows, (-1, heads, width))
            kernel = ops.reshape(
                ops.transpose(kernel, (1, 2, 0, 3)), (heads, width, types * width)
            )
            rows = ops.matmul(ops.transpose(rows, (1, 0, 2)), kernel)
            rows = ops.reshape(rows, (heads, groups * count * types, width))
            rows = ops.transpose(rows, (1, 0, 2))
            return ops.reshape(rows, (groups, count * types, heads * width))
        kind = typed["type"]
        blocks = ops.shape(kind)[1]
        rows = batched_gather(rows, typed["sender"])
        rows = ops.reshape(rows, (groups, blocks, _BLOCK, heads, width))
        rows = ops.matmul(
            ops.transpose(rows, (0, 1, 3, 2, 4)), ops.take(kernel, kind, axis=0)
        )
        rows = ops.transpose(rows, (0, 1, 3, 2, 4))
        return ops.reshape(rows, (groups, blocks * _BLOCK, heads * width))

    def compute_output_shape(self, states_shape, batch_shape=None):
        """[G, N, U]."""
        return (*states_shape[:-1], self.units)


def _typed_rows(edge, num_nodes, num_types: int) -> dict:
    """Return the rows of senders that are mapped by the matrices of a type.

    A matrix per edge would take E K d^2 numbers. Instead there are R rows of 2 U
    numbers, the fewer of

    - N P, each node mapped for each type, and
    - E + P B at most, the senders of edges in the order of types, in blocks of B rows
      of one type. A block reads 2 K d^2 numbers of matrices, no more than its rows have
      as long as d <= B.

    Args:
        edge: Edges of a batch.
        num_nodes: N.
        num_types: P.

    Returns:
        `row` int32 [G, E], the row of each edge; in the second case also the node of
        each row, `sender` int32 [G, R], and the type of each block, `type` [G, R / B].
    """
    sender, kind = (ops.convert_to_tensor(edge[name]) for name in ("sender", "type"))
    num_edges = ops.shape(kind)[1]
    # Other runtimes may have no sort, and TensorFlow may trace without sizes.
    fixed = isinstance(num_nodes, int) and isinstance(num_edges, int)
    blocks = -(-num_edges // _BLOCK) + num_types
    if is_portable() or not fixed or num_nodes * num_types <= blocks * _BLOCK:
        return {"row": sender * num_types + kind}
    order = ops.cast(ops.argsort(kind, axis=1), "int32")
    kind = ops.take_along_axis(kind, order, axis=1)
    count = batched_segment_sum(ops.ones_like(kind), kind, num_types, is_sorted=True)
    last = ops.cumsum((count + _BLOCK - 1) // _BLOCK, axis=1)
    first = last - (count + _BLOCK - 1) // _BLOCK
    shift = first * _BLOCK - (ops.cumsum(count, axis=1) - count)
    place = ops.arange(num_edges, dtype="int32") + batched_gather(shift, kind)
    number = ops.reshape(ops.arange(blocks, dtype="int32"), (1, -1, 1))
    block_kind = ops.sum(ops.cast(number >= ops.expand_dims(last, 1), "int32"), axis=-1)
    return {
        "row": batched_segment_sum(place, order, num_edges),
        "sender": batched_segment_sum(
            ops.take_along_axis(sender, order, axis=1), place, blocks * _BLOCK
        ),
        "type": ops.minimum(block_kind, num_types - 1),
    }
