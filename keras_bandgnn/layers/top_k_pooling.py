"""`TopKPooling`, `NodePooling`, its base class, and `pooled_batch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.batch import explained
from keras_bandgnn.checks import positive_int, positive_number, refuse
from keras_bandgnn.layers.batch_layer import StateLayer, batch_part, segment_plan
from keras_bandgnn.ops.batched import batched_gather, batched_segment_sum
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Activation,
        Batch,
        BatchShape,
        LayerOptions,
        Shape,
        Tensor,
    )

# Whole products, such as 0.7 * 10, may be rounded up.
_ROUNDED = 1 - 1e-6


class NodePooling(StateLayer):
    """Keep the nodes of each graph with the largest scores, times an activation.

        k_g = ceil(ratio n_node_g)
        out[n] = activation(score[n]) h[n] if score[n] is among the k_g largest of the
            graph of n, otherwise 0

    Of equal scores that of the lower row counts as larger. Subclasses override `build`
    and `scores`.

    Args:
        ratio: Share of the nodes of each graph that stay, above 0 and at most 1.
        activation: Name of the activation of scores, or a function.
    """

    def __init__(
        self,
        ratio: float = 0.5,
        activation: Activation = "tanh",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.ratio = positive_number("ratio", ratio)
        if self.ratio > 1:
            refuse("ratio", "at most 1", ratio)
        self.activation = keras.activations.get(activation)

    def build_weights(self, states_shape: Shape) -> None:
        """Build the weights of the scores; none by default."""

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the score of each node, float32 [G, N].

        Args:
            states: float [G, N, H].
            batch: A batch.
        """
        raise NotImplementedError

    def call(self, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the new states and the mask of the nodes that stay."""
        graphs = GraphSegments(batch)
        # Rows of padding may hold anything.
        states = ops.where(ops.expand_dims(graphs.mask, -1), states, 0.0)
        scores = self.scores(states, batch)
        mask = largest_of_graphs(ops.stop_gradient(scores), graphs, self.ratio)
        factor = ops.expand_dims(ops.cast(self.activation(scores), states.dtype), -1)
        states = ops.where(ops.expand_dims(mask, -1), states * factor, 0.0)
        return ops.cast(states, self.compute_dtype), mask

    def compute_output_shape(
        self, states_shape: Shape, batch_shape: BatchShape | None = None
    ) -> tuple[Shape, Shape]:
        """[G, N, H] and [G, N]."""
        return tuple(states_shape), tuple(states_shape[:-1])

    def compute_output_spec(
        self, states: Tensor, batch: Batch | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the shapes, and the types of states and mask."""
        rows, mask = self.compute_output_shape(states.shape)
        return (
            keras.KerasTensor(rows, self.compute_dtype),
            keras.KerasTensor(mask, "bool"),
        )


@serializable
class TopKPooling(NodePooling):
    """Keep the nodes of each graph whose states project furthest onto a vector.

        score[n] = h[n] . p / |p|
        k_g = ceil(ratio n_node_g)
        out[n] = activation(score[n]) h[n] if score[n] is among the k_g largest of the
            graph of n, otherwise 0

    Of equal scores that of the lower row counts as larger. Padding never stays, and a
    graph's nodes do not depend on the rest of the batch. As `pooling=` of a
    message-passing backbone it stands between the layers. Called alone, it returns the
    mask for `pooled_batch`, which gives the batch of the next layers.

    Args:
        ratio: Share of the nodes of each graph that stay, above 0 and at most 1.
        activation: Name of the activation of scores, or a function.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads `"node"` and `"graph"`.

    Output shape:
        Two arrays: the states, float [G, N, H], 0 for nodes that do not stay, and the
        mask of those that do, bool [G, N].

    Raises:
        ValueError: For a ratio out of range.

    Reference:
        Gao and Ji 2019, https://arxiv.org/abs/1905.05178, Eq. 2, with a sigmoid;
        Cangea et al. 2018, https://arxiv.org/abs/1811.01287, with tanh.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> states, mask = TopKPooling(0.5)(batch["node"]["h"], batch)
    >>> ops.convert_to_numpy(mask)[0, :3].tolist()
    [True, True, False]
    """

    splits_sequences = False
    reads = {"node": ("mask", "graph_id"), "graph": ("n_node",)}

    def build_weights(self, states_shape: Shape) -> None:
        """Build the vector p, [H]."""
        self.direction = self.add_weight(
            name="direction", shape=(states_shape[-1],), initializer="glorot_uniform"
        )

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the projection of each state, float32 [G, N]."""
        direction = ops.cast(self.direction, "float32")
        length = ops.sqrt(ops.maximum(ops.sum(ops.square(direction)), 1e-30))
        return ops.sum(ops.cast(states, "float32") * (direction / length), axis=-1)


def largest_of_graphs(scores: Tensor, graphs: GraphSegments, ratio: float) -> Tensor:
    """Return the mask of the nodes with the largest scores of each graph.

    Args:
        scores: float [G, N].
        graphs: The graphs; padding is never chosen.
        ratio: Share of the nodes of each graph, in (0, 1].

    Returns:
        bool [G, N], true for ceil(ratio n_node) nodes of each graph. Of scores that
        agree in 12 bits that of the lower row counts as larger.
    """
    # Invalid numbers stay, so that they show in the output.
    key = ops.where(ops.isnan(scores), -float("inf"), -_without_last_bits(scores))
    # Stable sorts: by score, then by graph.
    by_score = _order(key)
    order = batched_gather(by_score, _order(batched_gather(graphs.ids, by_score)))
    ids = batched_gather(graphs.ids, order)
    slot = ops.minimum(ids, graphs.num_graphs - 1)
    counts = ops.cast(graphs.counts, "int32")
    first = ops.cumsum(counts, axis=1) - counts
    number = ops.arange(ops.shape(order)[1], dtype="int32")
    rank = number - batched_gather(ops.cast(first, "int32"), slot)
    count = ops.ceil(ops.cast(counts, "float32") * (ratio * _ROUNDED))
    stays = ops.logical_and(
        rank < batched_gather(ops.cast(count, "int32"), slot), ids < graphs.num_graphs
    )
    return batched_gather(stays, _order(order))


def _without_last_bits(scores):
    """Return scores rounded to 12 bits: sums differ by backend and plan in the last."""
    scores = ops.cast(scores, "float32")
    scaled = 4097.0 * scores
    rounded = scaled - (scaled - scores)
    return ops.where(ops.isfinite(scaled), rounded, scores)


def _order(keys):
    return ops.cast(ops.argsort(keys, axis=1), "int32")


def pooled_batch(
    batch: Batch, mask: Tensor, num_edge_types: int = 1
) -> tuple[Batch, Tensor]:
    """Return the batch of the nodes that stay, and the order of its edges.

    It has the shapes of the batch. Nodes that do not stay are padding, and edges with
    such an end are padding behind the others. The plan is `Segment()`, whatever it was.

    Args:
        batch: A batch (see `keras_bandgnn.batch`), with `"edge"`.
        mask: bool [G, N], whether a node stays.
        num_edge_types: P, types of edges that later layers tell apart.

    Returns:
        The new batch, and int32 [G, E], which edge of the batch each edge of it was.

    Raises:
        ValueError: For a batch without edges, as those of compact schedules.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> mask = batch["node"]["mask"].copy()
    >>> mask[0, 0] = False
    >>> pooled, order = kb.layers.pooled_batch(batch, mask)
    >>> [int(ops.sum(pooled["graph"][name])) for name in ("n_node", "n_edge")]
    [2, 1]
    """
    node, edge = batch_part(batch, "node"), batch_part(batch, "edge")
    if getattr(mask, "shape", None) is None:
        refuse("mask", "bool [G, N], an array or a tensor", mask)
    positive_int("num_edge_types", num_edge_types)
    mask = ops.logical_and(ops.convert_to_tensor(mask), node["mask"])
    num_nodes = ops.shape(mask)[1]
    sender, receiver = (
        ops.convert_to_tensor(edge[name]) for name in ("sender", "receiver")
    )
    is_real = ops.logical_and(
        batched_gather(mask, sender),
        batched_gather(mask, ops.minimum(receiver, num_nodes - 1)),
    )
    is_real = ops.logical_and(is_real, receiver < num_nodes)
    is_real = ops.logical_and(is_real, edge["mask"])
    order = _real_first(is_real)
    is_real = batched_gather(is_real, order)
    edge = {
        name: batched_gather(ops.convert_to_tensor(values), order)
        for name, values in edge.items()
    }
    edge["mask"] = is_real
    edge["sender"] = ops.where(is_real, edge["sender"], 0)
    edge["receiver"] = ops.where(is_real, edge["receiver"], num_nodes)
    edge["type"] = ops.where(is_real, edge["type"], 0)
    pooled = {**batch, "node": {**node, "mask": mask}, "edge": edge}
    graphs = GraphSegments(pooled)
    edge_graph = batched_gather(graphs.slot, edge["sender"])
    edge_graph = ops.where(is_real, edge_graph, graphs.num_graphs)
    pooled["graph"] = {
        **batch["graph"],
        "n_node": graphs.sum(ops.ones_like(graphs.slot)),
        "n_edge": batched_segment_sum(
            ops.ones_like(edge_graph), edge_graph, graphs.num_graphs
        ),
    }
    factor = explained(batch, "edge")
    if factor is not None:
        factor = batched_gather(ops.convert_to_tensor(factor), order)
        pooled["explained"] = {**batch["explained"], "edge": factor}
    pooled["plan"] = segment_plan(pooled, num_edge_types)
    return pooled, order


def _real_first(is_real):
    """Return the order int32 [G, E] that puts real edges first and keeps their order.

    Args:
        is_real: bool [G, E].
    """
    real = ops.cast(is_real, "int32")
    count = ops.sum(real, axis=1, keepdims=True)
    place = ops.where(
        is_real, ops.cumsum(real, axis=1) - 1, count + ops.cumsum(1 - real, axis=1) - 1
    )
    size = ops.shape(real)[1]
    number = ops.broadcast_to(ops.arange(size, dtype="int32"), ops.shape(real))
    return batched_segment_sum(number, ops.cast(place, "int32"), size)
