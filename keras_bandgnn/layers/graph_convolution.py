"""`GraphConvolution`, the layer of a GCN, and the base classes of such layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn import primitives
from keras_bandgnn.batch import MESSAGE_WEIGHT, explained
from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.layers.batch_layer import (
    StateLayer,
    check_width,
    edge_factor,
    prepare_plan,
)
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, LayerOptions, Shape, Tensor
    from keras_bandgnn.data.flat import FlatGraphs


class Convolution(StateLayer):
    """A layer that computes new states [G, N, U] of nodes.

    Args:
        units: U.
    """

    def __init__(self, units: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.units = positive_int("units", units)

    def bias_weight(self) -> Tensor | None:
        """Return a new bias [U] if `use_bias`, otherwise None."""
        if not self.use_bias:
            return None
        return self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def compute_output_shape(
        self, states_shape: Shape, batch_shape: BatchShape | None = None
    ) -> Shape:
        """[G, N, U]."""
        return (*states_shape[:-1], self.units)


class EdgeConvolution(Convolution):
    """A `Convolution` that is called as `layer(states, batch, edge_states)`.

    Subclasses override `build_weights`. Edge states are float [G, E, H], or None.
    """

    # Whether a call with edge states returns new ones, too.
    updates_edge_states = False

    def build(
        self,
        states_shape: Shape,
        batch_shape: BatchShape | None = None,
        edge_states_shape: Shape | None = None,
    ) -> None:
        """Build the weights for states of nodes and edges; see `build_weights`."""
        self.build_weights(states_shape, edge_states_shape)
        self.built = True

    def build_weights(
        self, states_shape: Shape, edge_states_shape: Shape | None = None
    ) -> None:
        """Build the weights.

        Args:
            states_shape: [G, N, H], of which H has a size.
            edge_states_shape: [G, E, H]; None without edge states.
        """
        raise NotImplementedError

    def sums_prepared(self, batch: Batch, reduce: str = "sum") -> Batch:
        """Return a batch with its plan prepared for sums of messages without a bias.

        Args:
            batch: A batch.
            reduce: `"sum"` or `"mean"`.
        """
        num_nodes = ops.shape(batch["node"]["mask"])[1]
        types, dtype = self.num_edge_types, self.compute_dtype
        plan = prepare_plan(batch, num_nodes, types, dtype, False, reduce)
        return {**batch, "plan": plan}

    def compute_output_shape(
        self,
        states_shape: Shape,
        batch_shape: BatchShape | None = None,
        edge_states_shape: Shape | None = None,
    ) -> Shape | tuple[Shape, ...]:
        """[G, N, U], and [G, E, U] if edge states are updated."""
        out = (*states_shape[:-1], self.units)
        if edge_states_shape is None or not self.updates_edge_states:
            return out
        return out, (*edge_states_shape[:-1], self.units)


@serializable
class GraphConvolution(Convolution):
    """Weighted sum over the neighbours and the node itself, after a linear map.

    Kipf and Welling 2017, Eq. 2, without the activation:

        out = D^-1/2 (A + I) D^-1/2 H W + b,  D[n] = 1 + number of edges into n

    node by node

        out[n] = sum over edges (j -> n) of h[j] W / sqrt(D[j] D[n]) + h[n] W / D[n] + b

    The batch's plan computes the sum over edges, and D is counted from the plan on the
    device, once per batch: results depend neither on the plan, nor on padding, nor on
    the other graphs of a batch. Self-loops count once: without weights they are the I.

    With `edge_weight` in the loader A is weighted, and D[n] is 1 plus the weights of
    the edges into n, of which a self-loop counts as its weight less 1. Weights may be
    negative as long as every D is above 0. Tasks raise a ValueError otherwise. For
    such a node layers that are called directly, exported models and plans that drop
    edges return NaN.

    Args:
        units: Width U of the new states.
        num_edge_types: P, the number of edge types in batches. All share W.
        use_bias: Whether to add the bias b.
        use_kernel: Whether to apply W; otherwise the states stand for H W, and H = U.
        self_loops: Whether to add the I.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`), or the result of `prepare`.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, or states that are not U wide without
            W.

    Reference:
        Kipf and Welling 2017, https://arxiv.org/abs/1609.02907.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> GraphConvolution(4)(batch["node"]["h"], batch).shape[-1]
    4
    """

    splits_sequences = False
    uses_edge_weight = True

    def __init__(
        self,
        units: int,
        num_edge_types: int = 1,
        use_bias: bool = True,
        use_kernel: bool = True,
        self_loops: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.use_bias = boolean("use_bias", use_bias)
        self.use_kernel = boolean("use_kernel", use_kernel)
        self.self_loops = boolean("self_loops", self_loops)

    def build_weights(self, states_shape: Shape) -> None:
        """Build the kernel [H, U] and the bias [U]."""
        self.kernel = None
        if self.use_kernel:
            self.kernel = self.add_weight(
                name="kernel",
                shape=(states_shape[-1], self.units),
                initializer="glorot_uniform",
            )
        else:
            check_width("states", states_shape, self.units)
        self.bias = self.bias_weight()

    def check_weights(
        self, graphs: FlatGraphs, edge_weight: str, first: int = 0
    ) -> None:
        """Raise a ValueError for a node whose weighted degree D is not above 0."""
        weight = graphs.edge[edge_weight].astype(np.float64)
        loops = (graphs.senders == graphs.receivers) & self.self_loops
        if weight.min(initial=0) >= 0 and not loops.any():
            return
        receiver = graphs.receivers + np.repeat(graphs.node_ptr[:-1], graphs.num_edges)
        count = int(graphs.node_ptr[-1])
        degree = self.self_loops + np.bincount(receiver, weight - loops, count)
        # What is left of weights that cancel is rounding.
        total = self.self_loops + np.bincount(receiver, np.abs(weight), count)
        cut = np.flatnonzero((degree <= 1e-6 * total) & (total > 0))
        if len(cut):
            node = int(cut[0])
            graph = int(np.searchsorted(graphs.node_ptr, node, "right")) - 1
            edges = np.flatnonzero(receiver == node)
            number = node - int(graphs.node_ptr[graph])
            shown = ", ".join(f"{w:.6g}" for w in weight[edges[:4]])
            raise ValueError(
                f"Expected edge[{edge_weight!r}] with a weighted degree above 0 at "
                f"each node, whose root {type(self).__name__} divides by. Received: "
                f"{degree[node]:.3g} at node {number} of graph {first + graph}, with "
                f"{len(edges)} incoming edges of weight {shown}"
                f"{', ...' if len(edges) > 4 else ''}. Use weights above 0 with at "
                "most one self-loop per node, or a backbone that does not divide by "
                "the degree, such as GGNNBackbone."
            )

    def prepare(self, batch: Batch) -> Batch:
        """Precompute the part of a batch that layers of equal types share."""
        num_nodes = ops.shape(batch["node"]["mask"])[1]
        plan = primitives.prepare(
            batch["plan"], num_nodes, self.num_edge_types, self.compute_dtype
        )
        sampled = batch.get("sampled", {})
        prepared, self_loops = {"plan": plan}, 0.0
        if self.self_loops:
            loops = self._count_loops(batch, num_nodes)
            # The plan already includes the self-loops of the data.
            self_loops = 1.0 - loops
            prepared["own"] = ops.cast(
                ops.expand_dims(self_loops, -1), self.compute_dtype
            )
        if sampled:
            # That in the whole graph, of senders, too.
            degree = sampled["degree"]
            if self.self_loops:
                degree = degree - sampled["loops"] + 1.0
        else:
            degree = ops.sum(ops.cast(plan["degree"], "float32"), axis=-1) + self_loops
        # Negative weights may add up to less, as where an explanation leaves edges out.
        # In data `check_weights` refuses it. Without weights a plan has dropped edges.
        some = degree > 0
        none = 0.0
        if MESSAGE_WEIGHT in batch["edge"] and explained(batch, "edge") is None:
            none = float("nan")
            if not self.self_loops:
                none = ops.where(degree < 0, none, 0.0)
        scale = ops.where(some, ops.rsqrt(ops.where(some, degree, 1.0)), none)
        prepared["scale"] = ops.cast(ops.expand_dims(scale, -1), self.compute_dtype)
        return prepared

    def _count_loops(self, batch, num_nodes: int):
        """Return the number or the weight of the self-loops, float32 [G, N]."""
        edge = batch["edge"]
        loops = ops.cast(ops.equal(edge["sender"], edge["receiver"]), "int32")
        factor = edge_factor(batch)
        if factor is not None:
            loops = ops.cast(loops, "float32") * factor
        loops = graph_ops.batched_segment_sum(
            loops, edge["receiver"], num_nodes, is_sorted=True
        )
        return ops.cast(loops, "float32")

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the new states."""
        if "scale" not in batch:
            batch = self.prepare(batch)
        scale = batch["scale"]
        if "hop" in batch:
            scale = scale[:, : ops.shape(states)[1]]
        states = states * scale
        self_states = None
        if self.self_loops:
            self_loops = batch["own"]
            # In a hop the first of the senders are the receivers.
            self_states = self_loops * states[:, : ops.shape(self_loops)[1]]
        kernel = None
        if self.use_kernel:
            kernel = ops.convert_to_tensor(self.kernel)
        elif self.num_edge_types > 1:
            kernel = ops.eye(self.units, dtype=self.compute_dtype)
        if kernel is not None:
            kernel = ops.broadcast_to(kernel, (self.num_edge_types, *kernel.shape))
        total = primitives.propagate(batch["plan"], states, kernel, own=self_states)
        if "hop" in batch:
            scale = scale[:, : ops.shape(total)[1]]
        out = scale * total
        return out if self.bias is None else out + ops.convert_to_tensor(self.bias)
