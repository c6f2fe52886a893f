"""`CharacterEncoder`: a label as the maximum over a small character convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import positive_int
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor


@serializable
class CharacterEncoder(keras_bases.Layer):
    """Embeds the characters of a label, convolves and takes the maximum.

    Args:
        units: Width of the result.
        num_characters: Number of character codes; code 0 is padding.
        embedding_dim: Width of a character.
        kernel_size: Characters under one filter.

    Input shape:
        int32 [..., L] character codes.

    Output shape:
        float [..., units].

    Example:
    >>> import numpy as np
    >>> codes = np.array([[7, 4, 11, 11, 14, 0]])
    >>> tuple(CharacterEncoder(units=4)(codes).shape)
    (1, 4)
    """

    splits_sequences = True

    # Codes of `programs.node_text.encode_characters`.
    num_codes = 70

    def __init__(
        self,
        units: int,
        num_characters: int = num_codes,
        embedding_dim: int = 16,
        kernel_size: int = 3,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.num_characters = positive_int("num_characters", num_characters)
        self.embedding_dim = positive_int("embedding_dim", embedding_dim)
        self.kernel_size = positive_int("kernel_size", kernel_size)
        # === Layers ===
        policy = self.dtype_policy
        self.embedding = keras.layers.Embedding(
            self.num_characters, self.embedding_dim, dtype=policy
        )
        self.convolution = keras.layers.Dense(self.units, dtype=policy)

    def build(self, input_shape: Shape) -> None:
        """Build the embedding and the filters."""
        if input_shape[-1] is None or input_shape[-1] < self.kernel_size:
            raise ValueError(
                f"Expected at least kernel_size={self.kernel_size} characters. "
                f"Received: shape {tuple(input_shape)}."
            )
        self.embedding.build(input_shape)
        width = self.kernel_size * self.embedding_dim
        self.convolution.build((*input_shape[:-1], width))
        self.built = True

    def call(self, codes: Tensor) -> Tensor:
        """Return one vector per label."""
        letters = self.embedding(codes) * ops.cast(
            ops.expand_dims(codes > 0, -1), self.compute_dtype
        )
        size = codes.shape[-1] - self.kernel_size + 1
        windows = ops.concatenate(
            [letters[..., i : i + size, :] for i in range(self.kernel_size)], axis=-1
        )
        return ops.max(ops.relu(self.convolution(windows)), axis=-2)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """[..., units]."""
        return (*input_shape[:-1], self.units)
