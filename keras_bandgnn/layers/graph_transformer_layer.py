"""`GraphTransformerLayer`: attention and a feed-forward network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import boolean, fraction, positive_int
from keras_bandgnn.layers.batch_layer import BatchLayer
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.layers.dual_interleaved_attention import DualInterleavedAttention
from keras_bandgnn.layers.layer_normalization import LayerNormalization
from keras_bandgnn.ops.remat import by_rows, checkpoint
from keras_bandgnn.ops.sequence import same_on_devices

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, Config, LayerOptions, Shape, Tensor


def _norm(layer, rows: Tensor, again: bool) -> Tensor:
    """Normalise rows; a norm stores four times its input unless computed again."""
    return checkpoint(layer, rows) if again else layer(rows)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphTransformerLayer(BatchLayer):
    """One pre-norm block of a graph transformer.

        h' = h + attend(norm(h))
        h'' = h' + W_2 gelu(W_1 norm(h'))

    with `DualInterleavedAttention`; optional tokens go through the same maps.

    Args:
        num_heads: K.
        key_dim: d, width of a head.
        ffn_dim: Width of the feed-forward network.
        dropout: Dropout rate of the residual branches.
        attention_dropout: `dropout` of `DualInterleavedAttention`.
        pattern, self_loops, max_length, fused: Those of `DualInterleavedAttention`.
        remat: Whether training checkpoints each branch, storing only its input for the
            gradient (JAX and torch).

    Input shape:
        As `DualInterleavedAttention`.

    Output shape:
        As `DualInterleavedAttention`.

    Raises:
        ValueError: For arguments out of range, and for `remat` on TensorFlow.

    Reference:
        Zhang et al. 2024 (TorchGT); Ying et al. 2021, Eqs. 8 and 9.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0] * 4] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> layer = GraphTransformerLayer(num_heads=2, key_dim=4, ffn_dim=16)
    >>> layer(batch["node"]["h"], batch).shape[-1]
    8
    """

    splits_sequences = True

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
        remat: bool = False,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.remat = boolean("remat", remat)
        if self.remat and keras.backend.backend() == "tensorflow":
            raise ValueError(
                "Expected JAX or torch for remat=True. Received: tensorflow, which "
                "would lose the gradients of the biases."
            )
        self.ffn_dim = positive_int("ffn_dim", ffn_dim)
        self.dropout = fraction("dropout", dropout)
        # === Layers ===
        policy = self.dtype_policy
        self.attention = DualInterleavedAttention(
            num_heads,
            key_dim,
            pattern,
            self_loops,
            fraction("attention_dropout", attention_dropout),
            max_length,
            fused,
            dtype=policy,
            name="attention",
        )
        self.attention_norm, self.ffn_norm = (
            LayerNormalization(epsilon=1e-5, dtype=policy, name=name)
            for name in ("attention_norm", "ffn_norm")
        )
        self.inner_dense = FlatDense(
            self.ffn_dim, activation="gelu", dtype=policy, name="inner"
        )
        self.dropout_layer = Dropout(self.dropout, dtype=policy)

    def build(
        self, states_shape: Shape, *args: Shape | None, **kwargs: Shape | None
    ) -> None:
        """Build the weights of both branches."""
        width = states_shape[-1]
        rows = (None, None, width)
        self.outer_dense = FlatDense(width, dtype=self.dtype_policy, name="outer")
        for layer in (self.attention, self.attention_norm, self.ffn_norm):
            layer.build(rows)
        self.inner_dense.build(rows)
        self.outer_dense.build((None, None, self.ffn_dim))
        self.built = True

    def queries_and_keys(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries and keys [..., K d] of rows [..., H]."""
        rows = self.attention_norm(rows)
        return self.attention.query_dense(rows), self.attention.key_dense(rows)

    def _network(self, rows: Tensor, again: bool) -> Tensor:
        """Return the output of the feed-forward network for rows [..., H]."""
        return self.outer_dense(self.inner_dense(_norm(self.ffn_norm, rows, again)))

    def call(
        self,
        states: Tensor,
        batch: Batch,
        edge_bias: Tensor | None = None,
        self_bias: Tensor | None = None,
        token_bias: Tensor | None = None,
        tokens: Tensor | None = None,
        training: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the new states, and the new tokens if there are any.

        Args:
            states: float [G, N, H].
            batch: A batch.
            edge_bias: As for `DualInterleavedAttention`, as are `self_bias` and
                `token_bias`.
            self_bias: See `edge_bias`.
            token_bias: See `edge_bias`.
            tokens: float [G, B, H] or None, states of the tokens.
            training: Whether dropout is on.
        """
        biases = (edge_bias, self_bias, token_bias)
        count = ops.shape(states)[1]
        again = self.remat and training

        def attend(rows):
            both = (rows, None)
            if tokens is not None:
                both = (rows[:, :count], rows[:, count:])
            out = self.attention(
                both[0],
                batch,
                *biases,
                both[1],
                training=training,
                norm=lambda rows: _norm(self.attention_norm, rows, again),
            )
            if tokens is not None:
                out = ops.concatenate(out, axis=1)
            return rows + self.dropout_layer(out, training=training)

        def feed(rows):
            out = by_rows(lambda rows: self._network(rows, again), rows)
            return rows + self.dropout_layer(out, training=training)

        # Tokens are the rows after those of the nodes.
        rows = states
        if tokens is not None:
            rows = ops.concatenate([states, tokens], axis=1)
        for branch in (attend, feed):
            rows = checkpoint(branch, rows, [self]) if again else branch(rows)
        if tokens is None:
            return rows
        # Each device has drawn a different dropout mask.
        tokens = same_on_devices(rows[:, count:]) if training else rows[:, count:]
        return rows[:, :count], tokens

    # Those of the attention between the same nodes and tokens.
    compute_output_shape = DualInterleavedAttention.compute_output_shape

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        attention = self.attention.get_config()
        names = ("num_heads", "key_dim", "pattern", "self_loops", "max_length", "fused")
        return {
            **super().get_config(),
            **{name: attention[name] for name in names},
            "ffn_dim": self.ffn_dim,
            "dropout": self.dropout,
            "remat": self.remat,
            "attention_dropout": attention["dropout"],
        }
