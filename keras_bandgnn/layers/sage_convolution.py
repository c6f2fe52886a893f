"""`SAGEConvolution`: the layer of GraphSAGE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn import primitives
from keras_bandgnn.batch import MESSAGE_WEIGHT
from keras_bandgnn.checks import boolean, one_of, optional, positive_int, shown
from keras_bandgnn.layers.batch_layer import batch_part, edge_factor, receiver_rows
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.layers.graph_convolution import EdgeConvolution
from keras_bandgnn.layers.node_set_dense import NodeSetDense, checked_node_sets
from keras_bandgnn.layers.typed_edges import (
    TYPE_REDUCTIONS,
    map_senders,
    type_count,
    type_kernel,
    typed_senders,
    types_into,
)
from keras_bandgnn.ops.batched import batched_gather, flat_matmul
from keras_bandgnn.ops.edges import relu_sum
from keras_bandgnn.ops.lookup import rows_of
from keras_bandgnn.primitives.plan import edges_by_type, is_prepared, mean_by_type
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor

REDUCTIONS = ("mean", "sum", "max", "pool")


@serializable
class SAGEConvolution(EdgeConvolution):
    """A map of a node's state, and another one of its neighbourhood.

        out[n] = W_own h[n] + W_sum reduce over j of m[j, n] + b

    with messages m[j, n] = h[j], or relu(h[j] + e[j, n]) with edge states; `"pool"` is
    the maximum of relu(W_pool h[j] + b_pool). This is the concatenation of the paper's
    Algorithm 1 without its activation, as in other libraries. Without edge states the
    plan in the batch carries out means and sums. Under a loader with `edge_weight`
    their messages have the weights of the edges as factors; a mean still divides by the
    number of edges. Edge types count alike, unless `type_reduce` is set:

        out[n] = W_own h[n] + b + type_reduce over p of W[p] reduce over j of m[j, n]

    where j ranges over the senders of the edges of type p into n. Types without edges
    into n count as 0 in the sum and not at all in the mean, and `"pool"` has
    W_pool[p] and b_pool[p]. With `node_sets` there are W_own and b for each set. The
    sum is what torch_geometric's `HeteroConv` of a `SAGEConv` per relation computes,
    if W_own and b are the sums of its own. Its mean divides by all relations into the
    set of n, also those without edges into n: that is a sum with W[p] divided by their
    number.

    Args:
        units: Width U of the new states.
        reduce: `"mean"`, `"sum"`, `"max"` or `"pool"`. Nodes without edges get 0.
        normalize: Whether to divide each new state by its length.
        use_bias: Whether to add b.
        num_edge_types: P, types of edges that graphs may have.
        type_reduce: `"sum"` or `"mean"` of the types of edges, which then have weights
            of their own. None if they count alike.
        node_sets: Names of the node sets of the graphs, which then have weights of
            their own. None if nodes share W_own and b; only with `type_reduce`.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`), or the result of `prepare`.
        edge_states: float [G, E, H], a `LookedUp`, or None.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, `node_sets` without `type_reduce`, or a
            batch without these node sets.

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
        type_reduce: str | None = None,
        node_sets: Iterable[str] | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.reduce = one_of("reduce", reduce, REDUCTIONS)
        self.normalize = boolean("normalize", normalize)
        self.use_bias = boolean("use_bias", use_bias)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.type_reduce = optional(one_of, "type_reduce", type_reduce, TYPE_REDUCTIONS)
        if node_sets is not None:
            node_sets = checked_node_sets(node_sets)
            if self.type_reduce is None:
                raise ValueError(
                    "Expected `node_sets` only with `type_reduce`. Received: "
                    f"node_sets={shown(node_sets)}, type_reduce=None. Pass "
                    "type_reduce='sum' or leave `node_sets` out."
                )
        self.node_sets = node_sets
        # === Layers ===
        options = {"dtype": self.dtype_policy}
        self.pool_dense = None
        if self.type_reduce is None:
            self.own_dense = FlatDense(
                self.units, use_bias=False, name="own", **options
            )
            self.sum_dense = FlatDense(
                self.units, use_bias=self.use_bias, name="neighbours", **options
            )
            return
        edge = (*self.reads["edge"], "type")
        self.reads = {**self.reads, "edge": edge}
        options.update(use_bias=self.use_bias, name="own")
        if self.node_sets is None:
            self.own_dense = FlatDense(self.units, **options)
        else:
            self.reads = {**self.reads, **NodeSetDense.reads}
            self.own_dense = NodeSetDense(self.units, self.node_sets, **options)

    @property
    def uses_edge_weight(self) -> bool:
        """Whether messages are added up, and have the weights of their edges."""
        return self.reduce in ("mean", "sum")

    def build_weights(
        self, states_shape: Shape, edge_states_shape: Shape | None = None
    ) -> None:
        """Build W_own and W_sum [H, U], b [U], and W_pool [H, H].

        With `type_reduce` there are W [P, H, U], W_pool [P, H, H] and b_pool [P, H],
        and with `node_sets` W_own and b of each set.
        """
        width = states_shape[-1]
        self.own_dense.build(states_shape)
        if self.type_reduce is not None:
            self.kernel = type_kernel(self, "kernel", (width, self.units))
            if self.reduce == "pool":
                self.pool_kernel = type_kernel(self, "pool_kernel", (width, width))
                self.pool_bias = self.add_weight(
                    name="pool_bias",
                    shape=(self.num_edge_types, width),
                    initializer="zeros",
                )
            return
        self.sum_dense.build(states_shape)
        if self.reduce == "pool":
            self.pool_dense = FlatDense(
                width, activation="relu", dtype=self.dtype_policy, name="pool"
            )
            self.pool_dense.build(states_shape)

    def prepare(self, batch: Batch) -> Batch:
        """Precompute the part of a batch that layers without edge states share."""
        if self.node_sets is not None:
            batch = self.own_dense.prepare(batch)
        if self.reduce not in ("mean", "sum"):
            return batch
        if self.type_reduce is None:
            return self.sums_prepared(batch, self.reduce)
        num_nodes = ops.shape(batch["node"]["mask"])[1]
        return {**batch, "plan": self._typed_plan(batch, num_nodes)}

    def _typed_plan(self, batch, num_nodes):
        """Return the prepared plan whose sums are those of the reduced types."""
        plan, types = batch_part(batch, "plan"), self.num_edge_types
        if "mean" in (self.reduce, self.type_reduce):
            if edge_factor(batch) is None:
                count = edges_by_type(plan, num_nodes, types)
            else:
                count = type_count(batch, num_nodes, types)
            divisor = count if self.reduce == "mean" else ops.ones_like(count)
            if self.type_reduce == "mean":
                divisor = divisor * types_into(count)
            plan = mean_by_type(plan, num_nodes, types, divisor)
        return primitives.prepare(
            plan, num_nodes, types, self.compute_dtype, use_bias=False
        )

    def call(
        self,
        states: Tensor,
        batch: Batch,
        edge_states: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the new states."""
        planned = edge_states is None and self.reduce in ("mean", "sum")
        if planned and not is_prepared(batch["plan"]):
            batch = self.prepare(batch)
        if self.type_reduce is not None:
            out = self._reduced_types(states, batch, edge_states, planned)
        elif planned:
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
        inputs = (receiver_rows(states, batch),)
        if self.node_sets is not None:
            inputs += (batch,)
        out = out + self.own_dense(*inputs)
        if self.normalize:
            length = ops.sum(ops.square(ops.cast(out, "float32")), -1, keepdims=True)
            # As in torch: vectors shorter than 1e-12 are divided by it.
            out = out * ops.cast(ops.rsqrt(ops.maximum(length, 1e-24)), out.dtype)
        return out

    def _reduced_types(self, states, batch, edge_states, planned):
        kernel = ops.cast(self.kernel, self.compute_dtype)
        if planned:
            return primitives.propagate(batch["plan"], states, kernel)
        rows = self._reduced(states, batch, edge_states)
        types, width, units = kernel.shape
        num_nodes = ops.shape(receiver_rows(states, batch))[1]
        rows = ops.reshape(rows, (-1, num_nodes, types * width))
        out = flat_matmul(rows, ops.reshape(kernel, (types * width, units)))
        if self.type_reduce == "mean":
            count = types_into(type_count(batch, num_nodes, types))
            out = out / ops.cast(count, out.dtype)
        return out

    def _pooled(self, states, batch):
        """Return relu(W_pool[p] h[j] + b_pool[p]) of each edge [G, E, H]."""
        edge, types = batch_part(batch, "edge"), self.num_edge_types
        num_nodes, width = ops.shape(states)[1], states.shape[-1]
        kernel, bias = (
            ops.cast(weight, self.compute_dtype)
            for weight in (self.pool_kernel, self.pool_bias)
        )
        typed = typed_senders(edge, num_nodes, types, width)
        rows = map_senders(states, ops.expand_dims(kernel, 1), typed)
        rows = batched_gather(rows, typed["row"])
        kind = ops.convert_to_tensor(edge["type"])
        return ops.relu(rows + ops.take(bias, kind, axis=0))

    def _reduced(self, states, batch, edge_states):
        """Return the reduced messages of each node, or of each node and type."""
        edges = EdgeMessages.of(batch, states, weighted=self.uses_edge_weight)
        if self.pool_dense is not None:
            states = self.pool_dense(states)
        typed = self.type_reduce is not None
        if not typed and edge_states is not None and self.reduce in ("mean", "sum"):
            total = edges.fused_sum(relu_sum, states, edge_states)
            if total is not None:
                return total if self.reduce == "sum" else edges.divided(total)
        if typed and self.reduce == "pool":
            messages = self._pooled(states, batch)
        else:
            messages = edges.sent(states)
        if edge_states is not None:
            messages = ops.relu(messages + rows_of(edge_states))
        if typed:
            edges = edges.by_type(batch, self.num_edge_types)
        if self.reduce == "mean":
            return edges.mean(messages)
        return (
            edges.total(messages) if self.reduce == "sum" else edges.largest(messages)
        )
