"""`GatedGraphConvolution`: the layer of a gated graph convolutional network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn.checks import boolean
from keras_bandgnn.layers.batch_layer import receiver_rows
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.layers.graph_convolution import EdgeConvolution
from keras_bandgnn.ops.edges import gated_sum
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class GatedGraphConvolution(EdgeConvolution):
    """Messages that a gate of each edge lets through, channel by channel.

        c[j, n] = W_r h[n] + W_s h[j] + W_e e[j, n] + b_r
        out[n] = W_own h[n] + sum over j of g[j, n] * (W_m h[j] + b_m) + b

    with gates g = sigmoid(c), divided by their sum over j if `normalize`; * multiplies
    channels. The new edge states are c. Edge types and `batch["plan"]` are ignored.

    Args:
        units: Width U of the new states, and of those of the edges.
        normalize: Whether the gates of each node and channel sum to 1, as in Dwivedi et
            al. 2020, Eq. 18.
        edges_in_messages: Whether messages are W_m h[j] + W_em e[j, n] + b_m, as those
            of torch_geometric.
        use_bias: Whether to add b.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E].
        edge_states: float [G, E, D], or None for none.

    Output shape:
        float [G, N, U] without edge states; otherwise a tuple of it and the new edge
        states, float [G, E, U].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Bresson and Laurent 2017, https://arxiv.org/abs/1711.07553, Eq. 11; Dwivedi et
        al. 2020, https://arxiv.org/abs/2003.00982.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> GatedGraphConvolution(8)(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = False
    updates_edge_states = True
    reads = {"edge": ("sender", "receiver")}

    def __init__(
        self,
        units: int,
        normalize: bool = True,
        edges_in_messages: bool = False,
        use_bias: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.normalize = boolean("normalize", normalize)
        self.edges_in_messages = boolean("edges_in_messages", edges_in_messages)
        self.use_bias = boolean("use_bias", use_bias)
        # === Layers ===
        options = {"dtype": self.dtype_policy}
        self.receiver_dense = FlatDense(self.units, name="receiver", **options)
        self.message_dense = FlatDense(self.units, name="message", **options)
        self.own_dense = FlatDense(
            self.units, use_bias=self.use_bias, name="own", **options
        )
        options["use_bias"] = False
        self.sender_dense = FlatDense(self.units, name="sender", **options)
        # Made in `build` if there are states of edges.
        self.edge_dense = self.edge_message_dense = None

    def build_weights(
        self, states_shape: Shape, edge_states_shape: Shape | None = None
    ) -> None:
        """Build the maps."""
        for layer in (
            self.receiver_dense,
            self.message_dense,
            self.own_dense,
            self.sender_dense,
        ):
            layer.build(states_shape)
        if edge_states_shape is not None:
            options = {"use_bias": False, "dtype": self.dtype_policy}
            self.edge_dense = FlatDense(self.units, name="edge", **options)
            self.edge_dense.build(edge_states_shape)
            if self.edges_in_messages:
                options["name"] = "edge_message"
                self.edge_message_dense = FlatDense(self.units, **options)
                self.edge_message_dense.build(edge_states_shape)

    def call(
        self,
        states: Tensor,
        batch: Batch,
        edge_states: Tensor | None = None,
        training: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the new states, and those of the edges if there are any."""
        edges = EdgeMessages.of(batch, states)
        sent, received, rows = (
            layer(states)
            for layer in (self.sender_dense, self.receiver_dense, self.message_dense)
        )
        mapped = None if edge_states is None else self.edge_dense(edge_states)
        fused = None
        if edge_states is None or not self.edges_in_messages:
            fused = edges.fused(gated_sum, sent, received, rows, mapped)
        if fused is None:
            logits = edges.sent(sent) + edges.received(received)
            logits = logits if mapped is None else logits + mapped
            messages = edges.sent(rows)
            if edge_states is not None and self.edges_in_messages:
                messages = messages + self.edge_message_dense(edge_states)
            gates = ops.sigmoid(logits)
            count = edges.total(gates) if self.normalize else None
            total = edges.total(gates * messages)
        else:
            count, total, logits = fused
            count, total = (values[:, : edges.num_nodes] for values in (count, total))
        if self.normalize:
            total = total / (count + 1e-6)
        out = self.own_dense(receiver_rows(states, batch)) + total
        return out if edge_states is None else (out, logits)
