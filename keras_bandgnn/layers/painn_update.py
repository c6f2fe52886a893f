"""`PaiNNUpdate`: scalar and vector states of a node update each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import positive_int, positive_number
from keras_bandgnn.layers.batch_layer import check_width
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor


@serializable
class PaiNNUpdate(keras_bases.Layer):
    """Update of each node from its scalar and vector states.

        [V v, U v] = W v                                     (no bias)
        |V v| = sqrt(sum over the three axes of (V v)^2 + epsilon)
        [a_ss, a_vv, a_sv] = W_2 silu(W_1 [s, |V v|] + b_1) + b_2
        s' = s + a_ss + a_sv <U v, V v>
        v' = v + a_vv U v

    Norms and inner products use at least float32.

    Args:
        units: Width C of the states.
        epsilon: Keeps the gradient of the norm finite at 0.

    Input shape:
        states: float [G, N, C].
        vectors: float [G, N, 3, C].

    Output shape:
        Two arrays: new states, float [G, N, C], and vectors, float [G, N, 3, C].

    Raises:
        ValueError: If the states are not C wide.

    Reference:
        Schuett et al. 2021, Eqs. 9 and 10; Speckhard et al. 2025, Eqs. 6 and 7.

    Example:
    >>> import numpy as np
    >>> layer = PaiNNUpdate(4)
    >>> states, vectors = layer(np.ones((1, 2, 4)), np.ones((1, 2, 3, 4)))
    >>> tuple(states.shape), tuple(vectors.shape)
    ((1, 2, 4), (1, 2, 3, 4))
    """

    splits_sequences = True

    def __init__(
        self, units: int, epsilon: float = 1e-8, **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.epsilon = positive_number("epsilon", epsilon)
        # === Layers ===
        policy = self.dtype_policy
        self.mix = FlatDense(2 * self.units, use_bias=False, dtype=policy, name="mix")
        self.context_hidden = FlatDense(
            self.units, "silu", dtype=policy, name="context_hidden"
        )
        self.context_output = FlatDense(
            3 * self.units, dtype=policy, name="context_output"
        )

    def build(self, states_shape: Shape, vectors_shape: Shape) -> None:
        """Build the three layers."""
        check_width("states", states_shape, self.units)
        check_width("vectors", vectors_shape, self.units)
        self.mix.build(vectors_shape)
        self.context_hidden.build((None, None, 2 * self.units))
        self.context_output.build((None, None, self.units))
        self.built = True

    def call(self, states: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new states and vectors."""
        compute = self.compute_dtype
        wide = keras.backend.result_type(compute, "float32")
        first, second = ops.split(self.mix(vectors), 2, axis=-1)
        broad = ops.cast(first, wide)
        norm = ops.sqrt(ops.sum(broad * broad, axis=2) + self.epsilon)
        inner = ops.sum(broad * ops.cast(second, wide), axis=2)
        context = ops.concatenate([states, ops.cast(norm, compute)], axis=-1)
        context = self.context_output(self.context_hidden(context))
        scalar, gate, product = ops.split(context, 3, axis=-1)
        states = states + scalar + product * ops.cast(inner, compute)
        return states, vectors + ops.expand_dims(gate, 2) * second

    def compute_output_shape(
        self, states_shape: Shape, vectors_shape: Shape
    ) -> Shape | tuple[Shape, ...]:
        """[G, N, C] and [G, N, 3, C]."""
        return tuple(states_shape), tuple(vectors_shape)
