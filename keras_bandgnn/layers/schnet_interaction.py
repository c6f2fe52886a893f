"""`SchNetInteraction`: messages through filters, and the update of the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.layers.batch_layer import BatchLayer, batch_part, check_width
from keras_bandgnn.layers.dense import FlatDense, shifted_softplus
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class SchNetInteraction(BatchLayer):
    """One step of SchNet: a continuous-filter convolution and a residual update.

        m_i = sum or mean over the edges e (j -> i) of (W_1 h_j) * w_e
        h_i' = h_i + W_5 s(W_4 m_i)

    with the filters w_e of `ContinuousFilter` and s the shifted softplus. Padded edges
    add nothing.

    Args:
        units: Width C of a state.
        use_bias: Whether W_4 and W_5 have biases; W_1 has none.

    Input shape:
        states: float [G, N, C].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E].
        filters: float [G, E, F].
        degree: float [G, N] in-degrees (`in_degrees`) for the mean, or None for the
            sum.

    Output shape:
        float [G, N, C].

    Raises:
        ValueError: If the states are not C wide.

    Reference:
        Schuett et al. 2017, Eq. 2; Speckhard et al. 2025, Eqs. 1, 4 and 5.

    Example:
    >>> import numpy as np
    >>> edge = {"sender": np.array([[1, 0]]), "receiver": np.array([[0, 1]])}
    >>> layer = SchNetInteraction(4)
    >>> layer(np.ones((1, 3, 4)), {"edge": edge}, np.ones((1, 2, 8))).shape[-1]
    4
    """

    splits_sequences = False

    def __init__(
        self, units: int, use_bias: bool = False, **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.use_bias = boolean("use_bias", use_bias)

    def build(self, states_shape: Shape, filters_shape: Shape) -> None:
        """Build the three layers."""
        check_width("states", states_shape, self.units)
        width, policy = filters_shape[-1], self.dtype_policy
        self.send_dense = FlatDense(width, use_bias=False, dtype=policy, name="send")
        options = {"use_bias": self.use_bias, "dtype": policy}
        self.hidden_dense = FlatDense(
            self.units, shifted_softplus, name="hidden", **options
        )
        self.output_dense = FlatDense(self.units, name="output", **options)
        self.send_dense.build(states_shape)
        self.hidden_dense.build((None, None, width))
        self.output_dense.build((None, None, self.units))
        self.built = True

    def call(
        self,
        states: Tensor,
        batch: Batch,
        filters: Tensor,
        degree: Tensor | None = None,
    ) -> Tensor:
        """Return the new states."""
        edge = batch_part(batch, "edge")
        sent = graph_ops.batched_gather(self.send_dense(states), edge["sender"])
        messages = graph_ops.batched_segment_sum(
            sent * filters, edge["receiver"], ops.shape(states)[1], is_sorted=True
        )
        return self.update(states, messages, degree)

    def update(
        self, states: Tensor, messages: Tensor, degree: Tensor | None = None
    ) -> Tensor:
        """Return the new states from sums of messages, float [G, N, F]."""
        if degree is not None:
            messages = messages / ops.expand_dims(degree, -1)
        return states + self.output_dense(self.hidden_dense(messages))

    def compute_output_shape(
        self, states_shape: Shape, filters_shape: Shape | None = None
    ) -> Shape:
        """[G, N, C]."""
        return tuple(states_shape)
