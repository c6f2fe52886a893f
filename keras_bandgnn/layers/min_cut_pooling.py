"""`MinCutPooling`, and `ClusterPooling`, the base class of readouts of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import non_negative_number, positive_int
from keras_bandgnn.layers.batch_layer import Readout
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, LayerOptions, Shape, Tensor


class Clusters(NamedTuple):
    """The clusters of each graph of a batch.

    Attributes:
        graphs: The graphs.
        share: S, float32 [G, N, K], the share of each node in each cluster; 0 for
            padding.
        edges: The edges of the batch.
        states: S^T X, float32 [G, B, K, H].
        adjacency: S^T A S, float32 [G, B, K, K], with A[n, j] for edges (j -> n).
        overlap: S^T S, float32 [G, B, K, K].
    """

    graphs: GraphSegments
    share: Tensor
    edges: EdgeMessages
    states: Tensor
    adjacency: Tensor
    overlap: Tensor

    @classmethod
    def of(cls, share: Tensor, states: Tensor, batch: Batch) -> Clusters:
        """Return the clusters of a batch, without an array of all pairs of nodes.

        Args:
            share: float32 [G, N, K], 0 for padding.
            states: float32 [G, N, H], 0 for padding.
            batch: The batch.
        """
        graphs = GraphSegments(batch)
        edges = EdgeMessages.of(batch, states, weighted=True)
        sent = edges.total(edges.sent(share))
        return cls(
            graphs,
            share,
            edges,
            _products(graphs, share, states),
            _products(graphs, share, sent),
            _products(graphs, share, share),
        )

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values [G, B] over the real graphs of the batch."""
        real = self.graphs.counts > 0
        count = ops.sum(ops.cast(real, "float32"))
        return ops.sum(ops.where(real, values, 0.0)) / ops.maximum(count, 1.0)


def _products(graphs: GraphSegments, first, second):
    """Return F^T S of each graph, float32 [G, B, K, H], of [G, N, K] and [G, N, H]."""
    rows = ops.expand_dims(first, -1) * ops.expand_dims(second, -2)
    groups, nodes, clusters, width = ops.shape(rows)
    sums = graphs.sum(ops.reshape(rows, (groups, nodes, clusters * width)))
    return ops.reshape(sums, (groups, graphs.num_graphs, clusters, width))


class ClusterPooling(Readout):
    """Group the nodes of each graph into K clusters, and read these.

        S = softmax(assignment(X)),  X' = S^T X,  A' = norm(S^T A S)
        L times:  X' = activation(A' X' W_1 + X' W_2 + b)
        out = mean over the clusters of X'

    A loss of the assignment is added to that of the model. Subclasses override
    `make_assignment`, `assign`, `normalized` and `assignment_loss`. The arguments are
    those of `MinCutPooling`.
    """

    def __init__(
        self,
        units: int,
        num_clusters: int,
        num_layers: int = 1,
        activation: Activation = "relu",
        loss_weight: float = 1.0,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.num_layers = positive_int("num_layers", num_layers)
        self.activation = keras.activations.get(activation)
        self.loss_weight = non_negative_number("loss_weight", loss_weight)
        # === Layers ===
        policy, numbers = self.dtype_policy, range(self.num_layers)
        self.message_dense = [
            keras.layers.Dense(
                self.units, use_bias=False, dtype=policy, name=f"message_{number}"
            )
            for number in numbers
        ]
        self.cluster_dense = [
            keras.layers.Dense(self.units, dtype=policy, name=f"cluster_{number}")
            for number in numbers
        ]
        self.assignment = self.make_assignment()

    # === Methods to override ===

    def make_assignment(self) -> keras.layers.Layer:
        """Return the layer of the assignment, which `build` builds for the states."""
        raise NotImplementedError

    def assign(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the logits of the assignment, float [G, N, K]."""
        raise NotImplementedError

    def normalized(self, adjacency: Tensor) -> Tensor:
        """Return the factors of the messages between clusters, [G, B, K, K]."""
        raise NotImplementedError

    def assignment_loss(self, clusters: Clusters) -> Tensor:
        """Return the loss of an assignment, a number."""
        raise NotImplementedError

    # === Implementation ===

    def build_weights(self, states_shape: Shape) -> None:
        """Build the assignment and the layers between clusters."""
        self.assignment.build(states_shape)
        width = states_shape[-1]
        for layers in zip(self.message_dense, self.cluster_dense, strict=True):
            for layer in layers:
                layer.build((None, None, self.num_clusters, width))
            width = self.units

    def clusters(self, states: Tensor, batch: Batch) -> Clusters:
        """Return the clusters of the nodes.

        Args:
            states: float [G, N, H].
            batch: A batch.
        """
        mask = ops.expand_dims(ops.convert_to_tensor(batch["node"]["mask"]), -1)
        # Rows of padding may hold anything.
        states = ops.where(mask, ops.cast(states, "float32"), 0.0)
        share = ops.softmax(ops.cast(self.assign(states, batch), "float32"), axis=-1)
        return Clusters.of(ops.where(mask, share, 0.0), states, batch)

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return one vector per graph."""
        clusters = self.clusters(states, batch)
        if self.loss_weight:
            self.add_loss(self.loss_weight * self.assignment_loss(clusters))
        factor = ops.cast(self.normalized(clusters.adjacency), self.compute_dtype)
        rows = ops.cast(clusters.states, self.compute_dtype)
        for message, cluster in zip(
            self.message_dense, self.cluster_dense, strict=True
        ):
            rows = self.activation(message(ops.matmul(factor, rows)) + cluster(rows))
        real = ops.expand_dims(clusters.graphs.counts > 0, -1)
        return ops.where(real, ops.mean(rows, axis=-2), 0.0)


@serializable
class MinCutPooling(ClusterPooling):
    """Group the nodes of each graph into K clusters that few edges leave.

        S = softmax(X W + b),  X' = S^T X,  A' = S^T A S
        A'' = D^-1/2 (A' without its diagonal) D^-1/2
        L times:  X' = activation(A'' X' W_1 + X' W_2 + b)
        out = mean over the clusters of X'

    To the loss of the model it adds, as the mean over the graphs of a batch,

        -trace(A') / trace(S^T D S) + |S^T S / |S^T S| - I / sqrt(K)|

    with the number of edges into each node in D, Frobenius norms, and 0 for the first
    term in graphs without edges. It takes the place of a readout: `readout=` of
    `GraphClassifier` and `GraphRegressor`, after the layers of any backbone. Weights of
    edges (`edge_weight` of the loader) are entries of A. Sums run in float32.

    Args:
        units: Width U of the output.
        num_clusters: K.
        num_layers: L, layers between clusters.
        activation: Name of their activation, or a function.
        loss_weight: Factor of the loss that is added; 0 for none.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"edge"` and
            `"graph"`.

    Output shape:
        float [G, B, U].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Bianchi et al. 2020, https://arxiv.org/abs/1907.00481, Eqs. 7 to 9.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> MinCutPooling(4, num_clusters=2)(batch["node"]["h"], batch).shape[-1]
    4
    """

    splits_sequences = False
    uses_edge_weight = True

    def make_assignment(self) -> keras.layers.Layer:
        """Return the layer of W [H, K] and b [K]."""
        return keras.layers.Dense(self.num_clusters, dtype="float32", name="assignment")

    def assign(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the logits of the assignment, float32 [G, N, K]."""
        return self.assignment(states)

    def normalized(self, adjacency: Tensor) -> Tensor:
        """Return A'' [G, B, K, K]."""
        rows = adjacency * (1.0 - ops.eye(self.num_clusters))
        degree = ops.sum(rows, axis=-1)
        some = degree > 0
        scale = ops.where(some, ops.rsqrt(ops.where(some, degree, 1.0)), 0.0)
        return rows * ops.expand_dims(scale, -1) * ops.expand_dims(scale, -2)

    def assignment_loss(self, clusters: Clusters) -> Tensor:
        """Return the mean over graphs of the loss of the cut and of orthogonality."""
        squares = ops.sum(ops.square(clusters.share), axis=-1, keepdims=True)
        edges = clusters.edges
        ones = ops.ones((*ops.shape(edges.receiver), 1), "float32")
        whole = clusters.graphs.sum(squares * edges.total(ones))[..., 0]
        inside = ops.trace(clusters.adjacency, axis1=-2, axis2=-1)
        some = whole > 0
        cut = ops.where(some, -inside / ops.where(some, whole, 1.0), 0.0)
        unit = clusters.overlap / _norm(clusters.overlap)[..., None, None]
        even = ops.eye(self.num_clusters) / self.num_clusters**0.5
        return clusters.mean(cut + _norm(unit - even))


def _norm(matrix):
    """Return the Frobenius norm of each matrix, with a gradient at 0."""
    square = ops.sum(ops.square(matrix), axis=(-2, -1))
    some = square > 0
    # Slots without a graph have a norm of 1.
    return ops.sqrt(ops.where(some, square, 1.0))
