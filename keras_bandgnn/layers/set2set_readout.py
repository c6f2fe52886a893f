"""`Set2SetReadout`: an LSTM per graph that attends to the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import positive_int, refuse
from keras_bandgnn.layers.batch_layer import Readout, check_width
from keras_bandgnn.ops.graph_segments import GraphSegments
from keras_bandgnn.ops.segment_softmax import segment_softmax
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class Set2SetReadout(Readout):
    """Attentive readout: an LSTM per graph that attends to its nodes, T times.

    From q* = 0, T times:

        q = LSTM(q*)
        a[n] = softmax over the nodes (h[n] . q)
        r = sum over the nodes of a[n] h[n]
        q* = [q, r]

    and q* is the output. Padding nodes have no weight, and graphs without nodes give 0.
    Sums and the softmax run in float32.

    Args:
        units: 2 C, width of the output; even. States are C wide.
        num_steps: T.

    Input shape:
        states: float [G, N, C].
        batch: A batch (see `keras_bandgnn.batch`); it reads `batch["node"]["mask"]`,
            `batch["node"]["graph_id"]` [G, N] and `batch["graph"]["n_node"]` [G, B].

    Output shape:
        float [G, B, 2 C].

    Raises:
        ValueError: For arguments below 1, odd units, or states that are not C wide.

    Reference:
        Vinyals et al. 2016, https://arxiv.org/abs/1511.06391, Eqs. 3 to 7.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> Set2SetReadout(4)(batch["node"]["h"], batch).shape[-1]
    4
    """

    splits_sequences = True

    def __init__(self, units: int, num_steps: int = 3, **kwargs: Unpack[LayerOptions]):
        super().__init__(units, **kwargs)
        # === Config ===
        if self.units % 2:
            refuse("units", "an even number, twice the width of the states", units)
        self.num_steps = positive_int("num_steps", num_steps)
        # === Layers ===
        self.cell = keras.layers.LSTMCell(
            self.units // 2, dtype=self.dtype_policy, name="cell"
        )

    def build_weights(self, states_shape: Shape) -> None:
        """Build the LSTM, shared by all steps."""
        check_width("states", states_shape, self.units // 2)
        self.cell.build((None, self.units))

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return one vector per graph."""
        graphs = GraphSegments(batch)
        wide = keras.backend.result_type(self.compute_dtype, "float32")
        width = self.units // 2
        shape = (*ops.shape(graphs.counts), width)
        # A cell takes one row for each graph of all supergraphs.
        query = memory = ops.zeros((shape[0] * shape[1], width), self.compute_dtype)
        total = ops.zeros(shape, self.compute_dtype)
        for _ in range(self.num_steps):
            rows = ops.concatenate([query, ops.reshape(total, (-1, width))], axis=-1)
            query, (_, memory) = self.cell(rows, (query, memory))
            question = ops.reshape(query, shape)
            products = ops.cast(states * graphs.gather(question), wide)
            weights = segment_softmax(
                ops.sum(products, axis=-1, keepdims=True),
                graphs.ids,
                graphs.mask,
                graphs.num_graphs,
                split=True,
            )
            values = ops.cast(states, wide) * ops.cast(weights, wide)
            total = ops.cast(graphs.sum(values), self.compute_dtype)
        out = ops.concatenate([question, total], axis=-1)
        return ops.where(ops.expand_dims(graphs.counts > 0, -1), out, 0.0)
