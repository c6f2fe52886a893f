"""`DiffPooling`: a readout of clusters that a graph convolution assigns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras import ops

from keras_bandgnn.layers.batch_layer import segment_plan
from keras_bandgnn.layers.graph_convolution import GraphConvolution
from keras_bandgnn.layers.min_cut_pooling import ClusterPooling, Clusters
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, Tensor
    from keras_bandgnn.data.flat import FlatGraphs

_SMALLEST = 1e-15


@serializable
class DiffPooling(ClusterPooling):
    """Group the nodes of each graph into K clusters, which a graph convolution assigns.

        S = softmax(GraphConvolution(K)(X)),  X' = S^T X,  A' = S^T A S
        L times:  X' = activation(A' X' / max(1, row sums of A') W_1 + X' W_2 + b)
        out = mean over the clusters of X'

    To the loss of the model it adds, as the mean over the graphs of a batch,

        |A - S S^T| / n^2 + mean over the n nodes of the entropy of their rows of S

    with the Frobenius norm, computed from edges alone: |A|^2 - 2 trace(S^T A S) +
    |S^T S|^2, where |A|^2 is the sum of the squared weights of the edges, their number
    without weights. It takes the place of a readout: `readout=` of `GraphClassifier`
    and `GraphRegressor`, after the layers of any backbone. Weights of edges
    (`edge_weight` of the loader) are entries of A. Sums run in float32.

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
        Ying et al. 2018, https://arxiv.org/abs/1806.08804, Eqs. 3 to 6.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> DiffPooling(4, num_clusters=2)(batch["node"]["h"], batch).shape[-1]
    4
    """

    splits_sequences = False
    uses_edge_weight = True

    def make_assignment(self) -> GraphConvolution:
        """Return the graph convolution."""
        return GraphConvolution(self.num_clusters, dtype="float32", name="assignment")

    def check_weights(
        self, graphs: FlatGraphs, edge_weight: str, first: int = 0
    ) -> None:
        """See `GraphConvolution.check_weights`."""
        self.assignment.check_weights(graphs, edge_weight, first)

    def assign(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the logits of the assignment, float32 [G, N, K]."""
        return self.assignment(states, {**batch, "plan": segment_plan(batch)})

    def normalized(self, adjacency: Tensor) -> Tensor:
        """Return A' over its row sums, of at least 1, [G, B, K, K]."""
        return adjacency / ops.maximum(ops.sum(adjacency, axis=-1, keepdims=True), 1.0)

    def assignment_loss(self, clusters: Clusters) -> Tensor:
        """Return the mean over graphs of the loss of the links and of the entropy."""
        graphs, edges = clusters.graphs, clusters.edges
        inside = ops.trace(clusters.adjacency, axis1=-2, axis2=-1)
        ones = ops.ones((*ops.shape(edges.receiver), 1), "float32")
        if edges.weight is not None:
            ones = ops.expand_dims(ops.cast(edges.weight, "float32"), -1)
        whole = graphs.sum(edges.total(ones))[..., 0]
        overlap = ops.sum(ops.square(clusters.overlap), axis=(-2, -1))
        # Repeated edges could make it negative.
        square = ops.maximum(whole - 2 * inside + overlap, _SMALLEST)
        count = ops.maximum(ops.cast(graphs.counts, "float32"), 1.0)
        share = clusters.share
        entropy = -ops.sum(share * ops.log(share + _SMALLEST), axis=-1, keepdims=True)
        entropy = graphs.mean(entropy)[..., 0]
        return clusters.mean(ops.sqrt(square) / ops.square(count) + entropy)
