"""`SignNet`: encodings of eigenvectors that do not depend on their signs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import positive_int, refuse
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.edge_messages import EdgeMessages
from keras_bandgnn.layers.graph_convolution import Convolution
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Batch, LayerOptions, Shape, Tensor


@serializable
class SignNet(Convolution):
    """Encoding of Laplacian eigenvectors that is the same for v and -v.

        out[n] = rho([phi(v_1) + phi(-v_1), ..., phi(v_k) + phi(-v_k)][n])

    An eigenvector times -1 is an eigenvector, too, and which of both a program computes
    says nothing about the graph. phi is a GIN over the edges of the graph, the same for
    all eigenvectors, so that it sees where signs of neighbours differ; rho is a network
    with one hidden layer. Signs of single nodes do not vanish, as they would with
    absolute values.

    Eigenvectors come from `StructuralEncoding(laplacian=k)`. Those of one eigenvalue
    are one basis of many, of which only the signs are made up for.

    Args:
        units: Width U of the encodings.
        hidden: Width C of phi for each eigenvector.
        num_layers: Layers of phi.
        activation: Name of the activation, or a function.

    Input shape:
        states: float [G, N, k], eigenvectors.
        batch: A batch (see `keras_bandgnn.batch`), of which it reads the edges.

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, or states without a last axis.

    Reference:
        Lim et al. 2022, "Sign and Basis Invariant Networks for Spectral Graph
        Representation Learning", https://arxiv.org/abs/2202.13013.

    Example:
    >>> import keras_bandgnn as kb
    >>> encode = kb.preprocessing.StructuralEncoding(laplacian=2)
    >>> graph = encode(kb.Graph(4, [0, 1, 2], [1, 2, 3]))
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> SignNet(8)(batch["node"]["laplacian"], batch).shape[-1]
    8
    """

    splits_sequences = False

    def __init__(
        self,
        units: int,
        hidden: int = 16,
        num_layers: int = 2,
        activation: Activation = "relu",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.hidden = positive_int("hidden", hidden)
        self.num_layers = positive_int("num_layers", num_layers)
        self.activation = keras.activations.get(activation)

        # === Layers ===
        def dense(size, name):
            return FlatDense(size, dtype=self.dtype_policy, name=name)

        numbers = range(self.num_layers)
        self.inner = [dense(self.hidden, f"inner_{number}") for number in numbers]
        self.outer = [dense(self.hidden, f"outer_{number}") for number in numbers]
        self.rho_inner = dense(self.units, "rho_inner")
        self.rho_outer = dense(self.units, "rho_outer")

    def build_weights(self, states_shape: Shape) -> None:
        """Build phi and rho."""
        if len(states_shape) != 3:
            shape = list(states_shape)
            refuse("states", "eigenvectors of shape [G, N, k]", f"shape {shape}")
        width = 1
        for inner, outer in zip(self.inner, self.outer, strict=True):
            inner.build((None, None, None, width))
            outer.build((None, None, None, self.hidden))
            width = self.hidden
        self.rho_inner.build((None, None, states_shape[-1] * self.hidden))
        self.rho_outer.build((None, None, self.units))

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the encodings."""
        vectors = ops.convert_to_tensor(states)
        count = vectors.shape[-1]
        size, num_nodes = ops.shape(vectors)[:2]
        edges = EdgeMessages.of(batch, vectors)
        # Both signs of all eigenvectors share the sums over edges.
        rows = ops.expand_dims(ops.concatenate([vectors, -vectors], axis=-1), -1)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            shape = (size, num_nodes, 2 * count, rows.shape[-1])
            flat = ops.reshape(rows, (size, num_nodes, 2 * count * rows.shape[-1]))
            rows = rows + ops.reshape(edges.total(edges.sent(flat)), shape)
            rows = self.activation(outer(self.activation(inner(rows))))
        rows = rows[:, :, :count] + rows[:, :, count:]
        rows = ops.reshape(rows, (size, num_nodes, count * self.hidden))
        return self.rho_outer(self.activation(self.rho_inner(rows)))
