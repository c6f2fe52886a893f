"""`GRUUpdate`: the node update of the GGNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import fraction, positive_int
from keras_bandgnn.layers.dense import dense_kernel
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor


class _Orthogonal(keras.initializers.Orthogonal):
    """The same weights at half precision, in which no backend factorises."""

    def __call__(self, shape, dtype=None):
        dtype = dtype or keras.config.floatx()
        wide = keras.backend.result_type(dtype, "float32")
        return ops.cast(super().__call__(shape, wide), dtype)


@serializable
class GRUUpdate(keras_bases.Layer):
    """New node states from incoming messages and old states, by a gated recurrent unit.

    With m the messages and h the states:

        z = sigmoid(m W_z + b_z + h U_z + c_z)
        r = sigmoid(m W_r + b_r + h U_r + c_r)
        n = tanh(m W_n + b_n + r * (h U_n + c_n))
        h' = (1 - z) * n + z * h

    The reset gate acts after the recurrent product (Keras' `reset_after=True`, which
    torch and cuDNN share); Balog et al. do not say which variant they use. Dropout
    acts on the new state, as a state dropout of the cell.

    Args:
        units: Width H of a state.
        dropout: Dropout rate of the new states.

    Input shape:
        messages: float [..., U].
        states: float [..., H].

    Output shape:
        float [..., H].

    Reference:
        Cho et al. 2014; Li et al. 2016 (GGNN); Balog et al. 2019, Eq. 1.

    Example:
    >>> import numpy as np
    >>> GRUUpdate(8)(np.ones((1, 5, 4)), np.zeros((1, 5, 8))).shape[-1]
    8
    """

    splits_sequences = True

    def __init__(
        self, units: int, dropout: float = 0.0, **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.dropout = fraction("dropout", dropout)
        # === Layers ===
        policy = self.dtype_policy
        self.input_dense = keras.layers.Dense(
            3 * self.units, dtype=policy, name="input"
        )
        self.state_dense = keras.layers.Dense(
            3 * self.units,
            kernel_initializer=_Orthogonal(),
            dtype=policy,
            name="recurrent",
        )
        self.dropout_layer = Dropout(self.dropout, dtype=policy)

    def build(self, messages_shape: Shape, states_shape: Shape) -> None:
        """Build the two products."""
        if states_shape[-1] != self.units:
            raise ValueError(
                f"Expected `states` with {self.units} channels, as units={self.units}. "
                f"Received: shape {tuple(states_shape)}."
            )
        self.input_dense.build(messages_shape)
        self.state_dense.build(states_shape)
        self.built = True

    def call(self, messages: Tensor, states: Tensor, training: bool = False) -> Tensor:
        """Return the new states."""
        weights = [
            weight
            for dense in (self.input_dense, self.state_dense)
            for weight in (dense_kernel(dense), ops.convert_to_tensor(dense.bias))
        ]
        new = graph_ops.gated_update(messages, states, *weights)
        return self.dropout_layer(new, training=training)

    def compute_output_shape(self, messages_shape: Shape, states_shape: Shape) -> Shape:
        """[..., H]."""
        return tuple(states_shape)
