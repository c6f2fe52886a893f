"""`GraphNormalization` and `PairNormalization`: statistics of each graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn.checks import boolean, positive_number
from keras_bandgnn.layers.batch_layer import StateLayer
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


def _mean(graphs: GraphSegments, rows):
    """Return the mean [G, N, C] of rows [G, N, C] over the graph of each node."""
    return graphs.gather(graphs.mean(rows))


@serializable
class GraphNormalization(StateLayer):
    """Normalisation of each channel over the nodes of each graph.

        c = x - alpha mean;  out = gamma c / sqrt(mean of c^2 + epsilon) + beta

    with means over the nodes of a graph, and alpha, gamma and beta a number per
    channel. A graph's output does not depend on the rest of the batch. Rows of padding
    have no meaning. Means are computed in float32.

    Args:
        epsilon: Added to the mean of squares.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads `"node"` and `"graph"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For an `epsilon` that is not positive.

    Reference:
        Cai et al. 2021, https://arxiv.org/abs/2009.03294, Eq. 6.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(2, [0], [1], node={"h": [[1.0], [3.0]]})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> out = GraphNormalization()(batch["node"]["h"], batch)
    >>> ops.convert_to_numpy(out)[0, :2, 0].round(2).tolist()
    [-1.0, 1.0]
    """

    splits_sequences = False
    reads = {"node": ("mask", "graph_id"), "graph": ("n_node",)}

    def __init__(self, epsilon: float = 1e-5, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.epsilon = positive_number("epsilon", epsilon)

    def build_weights(self, states_shape: Shape) -> None:
        """Build alpha, gamma and beta, each [H]."""
        shape = (states_shape[-1],)
        self.alpha, self.gamma, self.beta = (
            self.add_weight(name=name, shape=shape, initializer=initializer)
            for name, initializer in (
                ("alpha", "ones"),
                ("gamma", "ones"),
                ("beta", "zeros"),
            )
        )

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the normalised states."""
        graphs = GraphSegments(batch)
        rows = ops.cast(states, "float32")
        alpha, gamma, beta = (
            ops.cast(weight, "float32")
            for weight in (self.alpha, self.gamma, self.beta)
        )
        rows = rows - alpha * _mean(graphs, rows)
        scale = ops.rsqrt(_mean(graphs, ops.square(rows)) + self.epsilon)
        return ops.cast(gamma * rows * scale + beta, self.compute_dtype)


@serializable
class PairNormalization(StateLayer):
    """Normalisation that keeps the mean squared distance of the nodes of each graph.

        c = x - mean;  out = scale c / sqrt(epsilon + mean of |c|^2)

    with means over the nodes of a graph, and |c| the length of a node's row, or with
    `individually` out = scale c / (epsilon + |c|). There are no weights. Rows of
    padding have no meaning. Means are computed in float32.

    Args:
        scale: Length of the rows, s.
        individually: Whether to scale each row by itself (PN-SI).
        epsilon: Added to the divisor.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads `"node"` and `"graph"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For numbers that are not positive.

    Reference:
        Zhao and Akoglu 2020, https://arxiv.org/abs/1909.12223, Eqs. 10 and 11.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(2, [0], [1], node={"h": [[1.0], [3.0]]})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> out = PairNormalization(scale=2.0)(batch["node"]["h"], batch)
    >>> ops.convert_to_numpy(out)[0, :2, 0].round(2).tolist()
    [-2.0, 2.0]
    """

    splits_sequences = False
    reads = {"node": ("mask", "graph_id"), "graph": ("n_node",)}

    def __init__(
        self,
        scale: float = 1.0,
        individually: bool = False,
        epsilon: float = 1e-5,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.scale = positive_number("scale", scale)
        self.individually = boolean("individually", individually)
        self.epsilon = positive_number("epsilon", epsilon)

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the normalised states."""
        graphs = GraphSegments(batch)
        rows = ops.cast(states, "float32")
        rows = rows - _mean(graphs, rows)
        square = ops.sum(ops.square(rows), axis=-1, keepdims=True)
        if self.individually:
            # The gradient of the root of 0 is infinite.
            some = square != 0
            length = ops.where(some, ops.sqrt(ops.where(some, square, 1.0)), 0.0)
            scale = 1.0 / (self.epsilon + length)
        else:
            scale = ops.rsqrt(self.epsilon + _mean(graphs, square))
        return ops.cast(self.scale * rows * scale, self.compute_dtype)
