"""`MPEUInteraction`: a step that updates edges, then nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import positive_int
from keras_bandgnn.layers.batch_layer import BatchLayer, batch_part, check_width
from keras_bandgnn.layers.continuous_filter import ContinuousFilter
from keras_bandgnn.layers.dense import FlatDense, dense_kernel, shifted_softplus
from keras_bandgnn.layers.edge_geometry import message_factors
from keras_bandgnn.layers.schnet_interaction import SchNetInteraction
from keras_bandgnn.ops.batched import flat_matmul
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class MPEUInteraction(BatchLayer):
    """One step of message passing with edge updates, without biases.

        e' = W_b s(W_a [h_j, h_i, e])  for each edge j -> i
        m_i = sum or mean over the edges into i of (W_1 h_j) * s(W_3 s(W_2 e'))
        h_i' = h_i + W_5 s(W_4 m_i)

    with s the shifted softplus. The hidden layer of the edge update has width 2 C. Its
    products with h_j and h_i are computed per node, before the gather to the edges.

    Args:
        units: Width C of the states of nodes and of the new states of edges.

    Input shape:
        states: float [G, N, C].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E].
        edges: float [G, E, K], radial basis (first step) or states of edges.
        degree: float [G, N] in-degrees (`in_degrees`) for the mean, or None for the
            sum.

    Output shape:
        Two arrays: new states of nodes, float [G, N, C], and of edges, float
        [G, E, C]. The states of padded edges are undefined.

    Raises:
        ValueError: If the states are not C wide.

    Reference:
        Jorgensen et al. 2018; Speckhard et al. 2025, Eqs. 2 to 5.

    Example:
    >>> import numpy as np
    >>> edge = {"sender": np.array([[1, 0]]), "receiver": np.array([[0, 1]])}
    >>> layer = MPEUInteraction(4)
    >>> states, edges = layer(np.ones((1, 3, 4)), {"edge": edge}, np.ones((1, 2, 8)))
    >>> states.shape[-1], edges.shape[-1]
    (4, 4)
    """

    splits_sequences = False

    def __init__(self, units: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        # === Layers ===
        policy = self.dtype_policy
        self.edge_hidden = FlatDense(
            2 * self.units, use_bias=False, dtype=policy, name="edge_hidden"
        )
        self.edge_output = FlatDense(
            self.units, use_bias=False, dtype=policy, name="edge_output"
        )
        self.filter = ContinuousFilter(self.units, dtype=policy, name="filter")
        self.interaction = SchNetInteraction(
            self.units, dtype=policy, name="interaction"
        )

    def build(self, states_shape: Shape, edges_shape: Shape) -> None:
        """Build all layers."""
        check_width("states", states_shape, self.units)
        new = (None, None, self.units)
        self.edge_hidden.build((None, None, 2 * self.units + edges_shape[-1]))
        self.edge_output.build((None, None, 2 * self.units))
        self.filter.build(new)
        self.interaction.build(states_shape, new)
        self.built = True

    def _new_edges(self, states, edges, edge):
        kernel = dense_kernel(self.edge_hidden)
        width = self.units
        of_sender = flat_matmul(states, kernel[:width])
        of_receiver = flat_matmul(states, kernel[width : 2 * width])
        # Padded edges have the receiver N.
        of_receiver = ops.pad(of_receiver, ((0, 0), (0, 1), (0, 0)))
        hidden = (
            graph_ops.batched_gather(of_sender, edge["sender"])
            + graph_ops.batched_gather(of_receiver, edge["receiver"])
            + flat_matmul(edges, kernel[2 * width :])
        )
        return self.edge_output(shifted_softplus(hidden))

    def call(
        self, states: Tensor, batch: Batch, edges: Tensor, degree: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the new states of nodes and edges."""
        edges = self._new_edges(states, edges, batch_part(batch, "edge"))
        filters = self.filter(edges, message_factors(batch))
        return self.interaction(states, batch, filters, degree), edges

    def compute_output_shape(
        self, states_shape: Shape, edges_shape: Shape
    ) -> Shape | tuple[Shape, ...]:
        """[G, N, C] and [G, E, C]."""
        return tuple(states_shape), (*edges_shape[:-1], self.units)
