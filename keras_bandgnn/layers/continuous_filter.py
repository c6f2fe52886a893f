"""`ContinuousFilter`: the filters of SchNet, as functions of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.layers.dense import FlatDense, shifted_softplus
from keras_bandgnn.ops.sparse import filtered_sum
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class ContinuousFilter(keras_bases.Layer):
    """One filter per edge, from two layers.

        w_e = f_e s(W_3 s(W_2 e))

    with s the shifted softplus and f_e an optional factor, such as a cutoff.

    Args:
        units: Width F of a filter.
        use_bias: Whether the two layers have biases.
        activate_output: Whether s follows the second layer too, as in the papers;
            SchNetPack and torch_geometric leave it out.

    Input shape:
        edges: float [G, E, K], radial basis or edge states.
        factor: float [G, E], or None for 1.

    Output shape:
        float [G, E, F].

    Raises:
        ValueError: For a width below 1.

    Reference:
        Schuett et al. 2017, section 4; Speckhard et al. 2025, Eq. 4.

    Example:
    >>> import numpy as np
    >>> ContinuousFilter(8)(np.ones((1, 5, 3))).shape[-1]
    8
    """

    splits_sequences = False

    def __init__(
        self,
        units: int,
        use_bias: bool = False,
        activate_output: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        self.use_bias = boolean("use_bias", use_bias)
        self.activate_output = boolean("activate_output", activate_output)
        # === Layers ===
        options = {"use_bias": self.use_bias, "dtype": self.dtype_policy}
        self.hidden_dense = FlatDense(
            self.units, shifted_softplus, name="hidden", **options
        )
        self.output_dense = FlatDense(
            self.units,
            shifted_softplus if self.activate_output else None,
            name="output",
            **options,
        )

    def build(self, edges_shape: Shape) -> None:
        """Build the two layers."""
        self.hidden_dense.build(edges_shape)
        self.output_dense.build((None, None, self.units))
        self.built = True

    def call(self, edges: Tensor, factor: Tensor | None = None) -> Tensor:
        """Return one filter per edge."""
        filters = self.output_dense(self.hidden_dense(edges))
        if factor is None:
            return filters
        return filters * ops.expand_dims(factor, -1)

    def convolve(
        self,
        sent: Tensor,
        edges: Tensor,
        edge: Batch,
        factor: Tensor | None = None,
        equal: bool | None = None,
    ) -> Tensor:
        """Sum of the filtered states of the senders of each node.

        Args:
            sent: float [G, N, F].
            edges: float [G, E, K].
            edge: `sender` and `receiver`, int32 [G, E], sorted by receiver.
            factor: float [G, E], or None for 1.
            equal: See `ops.sparse.filtered_sum`.

        Returns:
            float [G, N, F].
        """
        layers = (self.hidden_dense, self.output_dense)
        if not any(d.quantization_mode or d.lora_enabled for d in layers):
            weights = [w for d in layers for w in (d.kernel, d.bias)]
            weights = [None if w is None else ops.convert_to_tensor(w) for w in weights]
            activate = self.activate_output
            out = filtered_sum(sent, edges, factor, weights, edge, activate, equal)
            if out is not None:
                return out
        messages = graph_ops.batched_gather(sent, edge["sender"])
        messages = messages * self(edges, factor)
        return graph_ops.batched_segment_sum(
            messages, edge["receiver"], ops.shape(sent)[1], is_sorted=True
        )

    def compute_output_shape(self, edges_shape: Shape) -> Shape:
        """[G, E, F]."""
        return (*edges_shape[:-1], self.units)
