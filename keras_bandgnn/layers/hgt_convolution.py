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
from keras_bandgnn.layers.typed_edges import map_senders, typed_senders
from keras_bandgnn.ops.attention import edge_attention
from keras_bandgnn.registration import serializable


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
        batch = self.projection.prepare(batch)
        num_nodes = ops.shape(batch["node"][STATE_ROW])[1]
        width = self.units // self.num_heads
        typed = typed_senders(edge, num_nodes, self.num_edge_types, width)
        return {**batch, "typed": typed}

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
        return map_senders(rows, kernel, typed)

    def compute_output_shape(self, states_shape, batch_shape=None):
        """[G, N, U]."""
        return (*states_shape[:-1], self.units)
