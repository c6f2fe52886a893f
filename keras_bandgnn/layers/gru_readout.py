"""`GRUReadout`: graph state refined by attention over the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import positive_int
from keras_bandgnn.layers.batch_layer import Readout, check_width
from keras_bandgnn.layers.gru_update import GRUUpdate
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.ops.segment_softmax import segment_softmax
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class GRUReadout(Readout):
    """Attentive readout: a GRU state per graph that attends to its nodes, T times.

    The readout of AttentiveFP, as in the authors' program and torch_geometric:

        g = relu(sum over the nodes n of h[n])
        T times:
            a[n] = softmax over the nodes (leaky_relu(a_n . W h[n] + a_g . W g, 0.01))
            c = elu(sum over the nodes of a[n] W h[n] + b)
            g = relu(GRU(c, g))

    Padding nodes have no weight, and graphs without nodes give 0. Sums and the softmax
    run in float32.

    Args:
        units: C, width of the graph's state and of the nodes' states.
        num_steps: T.

    Input shape:
        states: float [G, N, C].
        batch: A batch (see `keras_bandgnn.batch`); it reads `batch["node"]["mask"]`,
            `batch["node"]["graph_id"]` [G, N] and `batch["graph"]["n_node"]` [G, B].

    Output shape:
        float [G, B, C].

    Raises:
        ValueError: For arguments below 1, or states that are not C wide.

    Reference:
        Xiong et al. 2019 (AttentiveFP), https://doi.org/10.1021/acs.jmedchem.9b00959.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> GRUReadout(2)(batch["node"]["h"], batch).shape[-1]
    2
    """

    splits_sequences = True

    def __init__(self, units: int, num_steps: int = 2, **kwargs: Unpack[LayerOptions]):
        super().__init__(units, **kwargs)
        # === Config ===
        self.num_steps = positive_int("num_steps", num_steps)
        # === Layers ===
        policy = self.dtype_policy
        self.transform = keras.layers.Dense(
            self.units, use_bias=False, dtype=policy, name="transform"
        )
        options = {"use_bias": False, "dtype": policy}
        self.node_score = keras.layers.Dense(1, name="node_score", **options)
        self.graph_score = keras.layers.Dense(1, name="graph_score", **options)
        self.update = GRUUpdate(self.units, dtype=policy, name="update")

    def build_weights(self, states_shape: Shape) -> None:
        """Build the weights, shared by all steps."""
        check_width("states", states_shape, self.units)
        for layer in (self.transform, self.node_score, self.graph_score):
            layer.build(states_shape)
        self.update.build(states_shape, states_shape)
        self.bias = self.add_weight(
            name="bias", shape=(self.units,), initializer="zeros"
        )

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return one state per graph."""
        graphs = GraphSegments(batch)
        wide = keras.backend.result_type(self.compute_dtype, "float32")

        def total(values):
            return ops.cast(graphs.sum(ops.cast(values, wide)), self.compute_dtype)

        graph = ops.relu(total(states))
        rows = self.transform(states)
        scores = self.node_score(rows)
        bias = ops.convert_to_tensor(self.bias)
        for _ in range(self.num_steps):
            graph_scores = self.graph_score(self.transform(graph))
            weights = segment_softmax(
                ops.leaky_relu(scores + graphs.gather(graph_scores), 0.01),
                graphs.ids,
                graphs.mask,
                graphs.num_graphs,
                split=True,
            )
            context = ops.elu(total(rows * ops.cast(weights, rows.dtype)) + bias)
            graph = ops.relu(self.update(context, graph))
        return ops.where(ops.expand_dims(graphs.counts > 0, -1), graph, 0.0)
