"""`SAGEConvolution`: the layer of GraphSAGE."""

from keras import ops

from keras_bandgnn import primitives
from keras_bandgnn.batch import MESSAGE_WEIGHT
from keras_bandgnn.checks import boolean, one_of, positive_int
from keras_bandgnn.layers.batch_layer import BatchLayer, prepare_plan, receiver_rows
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.ops.edges import relu_sum
from keras_bandgnn.ops.lookup import rows_of
from keras_bandgnn.primitives.plan import is_prepared
from keras_bandgnn.registration import serializable

REDUCTIONS = ("mean", "sum", "max", "pool")


@serializable
class SAGEConvolution(BatchLayer):
    """A map of a node's state, and another one of its neighbourhood.

        out[n] = W_own h[n] + W_sum reduce over j of m[j, n] + b

    with messages m[j, n] = h[j], or relu(h[j] + e[j, n]) with edge states; `"pool"` is
    the maximum of relu(W_pool h[j] + b_pool). This is the concatenation of the paper's
    Algorithm 1 without its activation, as in other libraries. Without edge states the
    plan in the batch carries out means and sums. Under a loader with `edge_weight`
    their messages have the weights of the edges as factors; a mean still divides by the
    number of edges. Edge types count alike.

    Args:
        units: Width U of the new states.
        reduce: `"mean"`, `"sum"`, `"max"` or `"pool"`. Nodes without edges get 0.
        normalize: Whether to divide each new state by its length.
        use_bias: Whether to add b.
        num_edge_types: P, types of edges that graphs may have; all count alike.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`), or the result of `prepare`.
        edge_states: float [G, E, H], a `LookedUp`, or None.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Hamilton et al. 2017, https://arxiv.org/abs/1706.02216, Algorithm 1.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> SAGEConvolution(8)(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = False
    takes_lookups = True
    reads = {
        "edge": ("sender", "receiver", MESSAGE_WEIGHT),
        "node": ("mask",),
        "plan": None,
    }

    def __init__(
        self,
        units: int,
        reduce: str = "mean",
        normalize: bool = False,
        use_bias: bool = True,
        num_edge_types: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.reduce = one_of("reduce", reduce, REDUCTIONS)
        self.normalize = boolean("normalize", normalize)
        self.use_bias = boolean("use_bias", use_bias)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        # === Layers ===
        options = {"dtype": self.dtype_policy}
        self.own_dense = FlatDense(self.units, use_bias=False, name="own", **options)
        self.sum_dense = FlatDense(
            self.units, use_bias=self.use_bias, name="neighbours", **options
        )
        self.pool_dense = None

    @property
    def uses_edge_weight(self) -> bool:
        """Whether messages are added up, and have the weights of their edges."""
        return self.reduce in ("mean", "sum")

    def build(self, states_shape, batch_shape=None, edge_states_shape=None):
        """Build W_own and W_sum [H, U], b [U], and W_pool [H, H]."""
        self.own_dense.build(states_shape)
        self.sum_dense.build(states_shape)
        if self.reduce == "pool":
            self.pool_dense = FlatDense(
                states_shape[-1],
                activation="relu",
                dtype=self.dtype_policy,
                name="pool",
            )
            self.pool_dense.build(states_shape)
        self.built = True

    def prepare(self, batch):
        """Precompute the part of a batch that layers without edge states share.

        Args:
            batch: A batch.

        Returns:
            The argument `batch` of the calls.
        """
        if self.reduce not in ("mean", "sum"):
            return batch
        num_nodes = ops.shape(batch["node"]["mask"])[1]
        plan = prepare_plan(
            batch,
            num_nodes,
            self.num_edge_types,
            self.compute_dtype,
            use_bias=False,
            reduce=self.reduce,
        )
        return {**batch, "plan": plan}

    def call(self, states, batch, edge_states=None, training=False):
        """Return the new states."""
        if edge_states is None and self.reduce in ("mean", "sum"):
            if not is_prepared(batch["plan"]):
                batch = self.prepare(batch)
            # The map of the sums is that of the messages: the plan applies it.
            kernel = ops.cast(self.sum_dense.kernel, self.compute_dtype)
            kernel = ops.broadcast_to(kernel, (self.num_edge_types, *kernel.shape))
            out = primitives.propagate(
                batch["plan"], states, kernel, reduce=self.reduce
            )
            if self.use_bias:
                out = out + ops.cast(self.sum_dense.bias, out.dtype)
        else:
            out = self.sum_dense(self._reduced(states, batch, edge_states))
        out = out + self.own_dense(receiver_rows(states, batch))
        if self.normalize:
            length = ops.sum(ops.square(ops.cast(out, "float32")), -1, keepdims=True)
            # As in torch: vectors shorter than 1e-12 are divided by it.
            out = out * ops.cast(ops.rsqrt(ops.maximum(length, 1e-24)), out.dtype)
        return out

    def _reduced(self, states, batch, edge_states):
        edges = EdgeMessages.of(batch, states, weighted=self.uses_edge_weight)
        if self.pool_dense is not None:
            states = self.pool_dense(states)
        if edge_states is not None and self.reduce in ("mean", "sum"):
            total = edges.fused_sum(relu_sum, states, edge_states)
            if total is not None:
                return total if self.reduce == "sum" else edges.divided(total)
        messages = edges.sent(states)
        if edge_states is not None:
            messages = ops.relu(messages + rows_of(edge_states))
        if self.reduce == "mean":
            return edges.mean(messages)
        return (
            edges.total(messages) if self.reduce == "sum" else edges.largest(messages)
        )

    def compute_output_shape(
        self, states_shape, batch_shape=None, edge_states_shape=None
    ):
        """[G, N, U]."""
        return (*states_shape[:-1], self.units)
