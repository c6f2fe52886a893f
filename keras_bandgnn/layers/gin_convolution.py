"""`GINConvolution`: the layer of a GIN, with or without edge states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import primitives
from keras_bandgnn.batch import MESSAGE_WEIGHT
from keras_bandgnn.checks import boolean, number, optional, positive_int
from keras_bandgnn.layers.batch_layer import receiver_rows
from keras_bandgnn.layers.batch_normalization import MaskedBatchNormalization
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.layers.graph_convolution import EdgeConvolution
from keras_bandgnn.ops.edges import relu_sum
from keras_bandgnn.ops.lookup import rows_of
from keras_bandgnn.primitives.plan import is_prepared
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, LayerOptions, Shape, Tensor


@serializable
class GINConvolution(EdgeConvolution):
    """A network with one hidden layer over a node's state and the sum of its messages.

        s[n] = (1 + eps) h[n] + sum over j of m[j, n]
        out[n] = W_2 activation(norm(W_1 s[n] + b_1)) + b_2

    with messages m[j, n] = h[j] (Xu et al. 2019, Eq. 4.1), or with edge states
    m[j, n] = activation(h[j] + e[j, n]) (Hu et al. 2020, Eq. A.1, GINE). Under a loader
    with `edge_weight` they have the weight of the edge as a factor. Without edge states
    the plan in the batch carries the sum out. Edge types count alike.

    Args:
        units: Width U of the new states.
        hidden: Width of the hidden layer; U by default.
        activation: Name of the activation, or a function.
        epsilon: First value of eps, which may be negative.
        train_epsilon: Whether eps is learned.
        batch_norm: Whether norm is a `MaskedBatchNormalization`; otherwise it is the
            identity.
        num_edge_types: P, types of edges that graphs may have; all count alike.

    Input shape:
        states: float [G, N, H].
        batch: A batch (see `keras_bandgnn.batch`), or the result of `prepare`.
        edge_states: float [G, E, H], a `LookedUp`, or None.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Xu et al. 2019, https://arxiv.org/abs/1810.00826; Hu et al. 2020,
        https://arxiv.org/abs/1905.12265.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> GINConvolution(8)(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = False
    takes_lookups = True
    uses_edge_weight = True
    reads = {
        "edge": ("sender", "receiver", MESSAGE_WEIGHT),
        "node": ("mask",),
        "plan": None,
    }

    def __init__(
        self,
        units: int,
        hidden: int | None = None,
        activation: Activation = "relu",
        epsilon: float = 0.0,
        train_epsilon: bool = True,
        batch_norm: bool = False,
        num_edge_types: int = 1,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.hidden = optional(positive_int, "hidden", hidden)
        self.activation = keras.activations.get(activation)
        self.epsilon = number("epsilon", epsilon)
        self.train_epsilon = boolean("train_epsilon", train_epsilon)
        self.batch_norm = boolean("batch_norm", batch_norm)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        # === Layers ===
        options = {"dtype": self.dtype_policy}
        self.hidden_dense = FlatDense(
            self.hidden or self.units, name="hidden", **options
        )
        self.output_dense = FlatDense(self.units, name="output", **options)
        self.norm = None
        if self.batch_norm:
            self.norm = MaskedBatchNormalization(name="norm", **options)

    def build_weights(
        self, states_shape: Shape, edge_states_shape: Shape | None = None
    ) -> None:
        """Build W_1 [H, hidden], W_2 [hidden, U], their biases and eps."""
        hidden = (None, None, self.hidden_dense.units)
        self.hidden_dense.build(states_shape)
        self.output_dense.build(hidden)
        if self.norm is not None:
            self.norm.build(hidden)
        self.eps = self.add_weight(
            name="epsilon",
            shape=(),
            initializer=keras.initializers.Constant(self.epsilon),
            trainable=self.train_epsilon,
        )

    def prepare(self, batch: Batch) -> Batch:
        """Precompute the part of a batch that layers without edge states share."""
        return self.sums_prepared(batch)

    def call(
        self,
        states: Tensor,
        batch: Batch,
        edge_states: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the new states."""
        self_rows = receiver_rows(states, batch) * (
            1.0 + ops.cast(self.eps, states.dtype)
        )
        if edge_states is None:
            if not is_prepared(batch["plan"]):
                batch = self.prepare(batch)
            # The map of the sums is that of the messages: the plan applies it.
            kernel = ops.cast(self.hidden_dense.kernel, self.compute_dtype)
            kernel = ops.broadcast_to(kernel, (self.num_edge_types, *kernel.shape))
            hidden = primitives.propagate(batch["plan"], states, kernel, own=self_rows)
            hidden = hidden + ops.cast(self.hidden_dense.bias, hidden.dtype)
        else:
            edges = EdgeMessages.of(batch, states, weighted=True)
            total = None
            if self.activation is keras.activations.relu:
                total = edges.fused_sum(relu_sum, states, edge_states)
            if total is None:
                messages = self.activation(edges.sent(states) + rows_of(edge_states))
                total = edges.total(messages)
            hidden = self.hidden_dense(self_rows + total)
        if self.norm is not None:
            hidden = self.norm(hidden, batch, training=training)
        return self.output_dense(self.activation(hidden))
