"""`EdgeReadout`: one vector per edge from the states of its two nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, mapping, optional, positive_int
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.layers.batch_layer import Readout, batch_part, target_edges
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.node_encoder import NodeEncoder
from keras_bandgnn.ops.lookup import sum_of_rows

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Activation,
        Batch,
        Config,
        LayerOptions,
        Shape,
        Tensor,
    )


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class EdgeReadout(Readout):
    """A small network per edge, over the states of sender and receiver and features.

        f(s, r) = W_2 activation(W_s h_s + W_r h_r + W_x x_sr + b_1) + b_2
        out_sr = f(s, r), or (f(s, r) + f(r, s)) / 2 if symmetric

    which is a network with one hidden layer over [h_s, h_r, x_sr]. The maps of states
    are computed once per node, not per edge. Symmetric outputs are the same for an edge
    and its reverse if both have the same features.

    Args:
        units: Width D of the output.
        inputs: Edge feature -> its kind, as of `NodeEncoder`: `{"features": F}` for
            numbers, `{"ids": V}` or V for ids. `"type"` is the type of the edge, that
            of the original graph for target edges of `AttentionEdges`. None for no
            features.
        hidden: Width of the hidden layer; by default the width of the states.
        activation: Name of the hidden layer's activation, or a function.
        symmetric: Whether sender and receiver may be exchanged.
        use_bias: Whether the two layers have biases.

    Input shape:
        states: float [G, N, C].
        batch: A batch (see `keras_bandgnn.batch`); it reads `batch["edge"]`, which
            batches of a compact schedule lack.

    Output shape:
        float [G, E, D], in the order of the batch's edges. Rows of padding edges, and
        of pairs among target edges, have no meaning.

    Raises:
        ValueError: For widths below 1, unknown kinds of features, or a batch without
            edges or one of the features.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> EdgeReadout(4)(batch["node"]["h"], batch).shape[-1]
    4
    """

    # Devices that share a supergraph number the edges anew.
    splits_sequences = False
    rows = ("edge", "sender")

    def __init__(
        self,
        units: int,
        inputs: Mapping | None = None,
        hidden: int | None = None,
        activation: Activation = "silu",
        symmetric: bool = False,
        use_bias: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        inputs = optional(mapping, "inputs", inputs) or {}
        self.inputs = {n: NodeEncoder.spec_of(n, spec) for n, spec in inputs.items()}
        self.hidden = optional(positive_int, "hidden", hidden)
        self.activation = keras.activations.get(activation)
        self.symmetric = boolean("symmetric", symmetric)
        self.use_bias = boolean("use_bias", use_bias)
        self.encoder = None

    def build_weights(self, states_shape: Shape) -> None:
        """Build the layers."""
        width = states_shape[-1]
        hidden = self.hidden or width
        options = {"use_bias": self.use_bias, "dtype": self.dtype_policy}
        self.receiver_dense = FlatDense(hidden, name="receiver", **options)
        self.output_dense = FlatDense(self.units, name="output", **options)
        options["use_bias"] = False
        self.sender_dense = FlatDense(hidden, name="sender", **options)
        for layer in (self.sender_dense, self.receiver_dense):
            layer.build((None, None, width))
        self.output_dense.build((None, None, hidden))
        if self.inputs:
            self.encoder = NodeEncoder(
                hidden, self.inputs, dtype=self.dtype_policy, name="features"
            )
            self.encoder.level = "edge"
            self.encoder.build()

    def check(self, part: FlatGraphs) -> None:
        """Raise a ValueError if graphs lack a feature, or have other values."""
        if self.encoder is not None:
            types = part.edge_type
            if "target" in part.edge:
                types = np.maximum(part.edge["target"] - 1, 0)
            self.encoder.check({**part.edge, "type": types})

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return one vector per edge."""
        edge = target_edges(batch_part(batch, "edge"))
        # Padding edges have the receiver N.
        last = ops.shape(states)[1] - 1
        ends = edge["sender"], ops.minimum(edge["receiver"], last)
        maps = self.sender_dense(states), self.receiver_dense(states)
        # Both directions of an edge, if they are alike.
        pairs = [ends, ends[::-1]] if self.symmetric else [ends]
        totals = [self._sum_of_rows(maps, pair, edge) for pair in pairs]
        if totals[0] is None:
            features = 0.0 if self.encoder is None else self.encoder(edge)
            totals = [self._sum_of_ends(maps, pair) + features for pair in pairs]
        hidden = [self.activation(total) for total in totals]
        if self.symmetric:
            hidden = [0.5 * (hidden[0] + hidden[1])]
        return self.output_dense(hidden[0])

    def _sum_of_ends(self, maps, ends):
        """Return the sum of the maps of both ends of each edge."""
        sent, received = (
            graph_ops.batched_gather(values, ids)
            for values, ids in zip(maps, ends, strict=True)
        )
        return sent + received

    def _sum_of_rows(self, maps, ends, edge):
        """Return the sum of states and features at once where that is faster."""
        if maps[0].shape[0] != 1:
            return None
        features = [] if self.encoder is None else self.encoder.tables(edge)
        if features is None:
            return None
        rows = [(values[0], ids) for values, ids in zip(maps, ends, strict=True)]
        return sum_of_rows([*rows, *features])

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "units": self.units,
            "inputs": self.inputs or None,
            "hidden": self.hidden,
            "activation": keras.activations.serialize(self.activation),
            "symmetric": self.symmetric,
            "use_bias": self.use_bias,
        }
