"""`GraphTransformerLayer`: attention and a feed-forward network."""

import keras

from keras_bandgnn.checks import fraction, positive_int
from keras_bandgnn.layers.dual_interleaved_attention import DualInterleavedAttention


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphTransformerLayer(keras.layers.Layer):
    """One pre-norm block of a graph transformer.

        h' = h + attend(norm(h))
        h'' = h' + W_2 gelu(W_1 norm(h'))

    with `DualInterleavedAttention`; tokens, if there are any, go through the same maps.

    Args:
        num_heads: K.
        key_dim: d, width of a head.
        ffn_dim: Width of the feed-forward network.
        dropout: Share of what each branch adds that is dropped.
        **attention: `pattern`, `self_loops`, `max_length`, `fused` and, as
            `attention_dropout`, `dropout` of `DualInterleavedAttention`.

    Input shape:
        As `DualInterleavedAttention`.

    Output shape:
        As `DualInterleavedAttention`.

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Zhang et al. 2024 (TorchGT); Ying et al. 2021, Eqs. 8 and 9.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        ffn_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        pattern: str = "sparse",
        self_loops: bool = True,
        max_length: int | None = None,
        fused: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.ffn_dim = positive_int("ffn_dim", ffn_dim)
        self.dropout = fraction("dropout", dropout)
        # === Layers ===
        policy = self.dtype_policy
        self.attention = DualInterleavedAttention(
            num_heads,
            key_dim,
            pattern,
            self_loops,
            attention_dropout,
            max_length,
            fused,
            dtype=policy,
            name="attention",
        )
        self.attention_norm, self.ffn_norm = (
            keras.layers.LayerNormalization(epsilon=1e-5, dtype=policy, name=name)
            for name in ("attention_norm", "ffn_norm")
        )
        self.inner_dense = keras.layers.Dense(
            self.ffn_dim, activation="gelu", dtype=policy, name="inner"
        )
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=policy)

    def build(self, states_shape, *args, **kwargs):
        """Makes the weights of both branches."""
        width = states_shape[-1]
        rows = (None, None, width)
        self.outer_dense = keras.layers.Dense(
            width, dtype=self.dtype_policy, name="outer"
        )
        for layer in (self.attention, self.attention_norm, self.ffn_norm):
            layer.build(rows)
        self.inner_dense.build(rows)
        self.outer_dense.build((None, None, self.ffn_dim))
        self.built = True

    def call(
        self,
        states,
        x,
        edge_bias=None,
        self_bias=None,
        token_bias=None,
        tokens=None,
        training=False,
    ):
        """Returns the new states, and the new tokens if there are any."""
        biases = (edge_bias, self_bias, token_bias)
        normed = None if tokens is None else self.attention_norm(tokens)
        out = self.attention(
            self.attention_norm(states), x, *biases, normed, training=training
        )
        if tokens is None:
            return self._rest(states, out, training)
        return (
            self._rest(states, out[0], training),
            self._rest(tokens, out[1], training),
        )

    def _rest(self, states, attended, training):
        states = states + self.dropout_layer(attended, training=training)
        out = self.outer_dense(self.inner_dense(self.ffn_norm(states)))
        return states + self.dropout_layer(out, training=training)

    def compute_output_shape(
        self,
        states_shape,
        x_shape=None,
        edge_bias_shape=None,
        self_bias_shape=None,
        token_bias_shape=None,
        tokens_shape=None,
    ):
        """[G, N, H], and that of the tokens."""
        if tokens_shape is None:
            return tuple(states_shape)
        return tuple(states_shape), tuple(tokens_shape)

    def get_config(self):
        """Returns the arguments of the constructor."""
        own = self.attention.get_config()
        names = ("num_heads", "key_dim", "pattern", "self_loops", "max_length", "fused")
        return {
            **super().get_config(),
            **{name: own[name] for name in names},
            "ffn_dim": self.ffn_dim,
            "dropout": self.dropout,
            "attention_dropout": own["dropout"],
        }
