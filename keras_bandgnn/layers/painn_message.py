"""`PaiNNMessage`: equivariant messages of scalars and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import positive_int
from keras_bandgnn.layers.batch_layer import BatchLayer, batch_part, check_width
from keras_bandgnn.layers.dense import FlatDense, dense_kernel
from keras_bandgnn.ops.batched import flat_matmul
from keras_bandgnn.ops.edges import vector_sum
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class PaiNNMessage(BatchLayer):
    """Messages between scalar and vector states.

        [a_e, b_e, c_e] = (W_2 silu(W_1 s_j + b_1) + b_2) * f_e (W_3 e + b_3)
        s_i' = s_i + sum over the edges e (j -> i) of a_e
        v_i' = v_i + sum over the edges e (j -> i) of (b_e r_e + c_e v_j)

    with e the radial basis of an edge, f_e its cutoff factor and r_e its direction, a
    unit vector from i to j. Padded edges add nothing.

    Args:
        units: Width C of the states.

    Input shape:
        states: float [G, N, C].
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["sender"]` and `["receiver"]`, int32 [G, E].
        vectors: float [G, N, 3, C]; None if all are 0, which skips their computation.
        basis: float [G, E, K].
        factor: float [G, E].
        directions: float [G, E, 3].

    Output shape:
        Two arrays: new states, float [G, N, C], and vectors, float [G, N, 3, C].

    Raises:
        ValueError: If the states are not C wide.

    Reference:
        Schuett et al. 2021, Eqs. 7 and 8.

    Example:
    >>> import numpy as np
    >>> edge = {"sender": np.array([[1, 0]]), "receiver": np.array([[0, 1]])}
    >>> directions = np.array([[[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]])
    >>> states, vectors = PaiNNMessage(4)(
    ...     np.ones((1, 3, 4)), {"edge": edge}, vectors=np.ones((1, 3, 3, 4)),
    ...     basis=np.ones((1, 2, 20)), factor=np.ones((1, 2)), directions=directions,
    ... )
    >>> tuple(vectors.shape)
    (1, 3, 3, 4)
    """

    splits_sequences = False

    def __init__(self, units: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        # === Config ===
        self.units = positive_int("units", units)
        # === Layers ===
        policy = self.dtype_policy
        self.context_hidden = FlatDense(
            self.units, "silu", dtype=policy, name="context_hidden"
        )
        self.context_output = FlatDense(
            3 * self.units, dtype=policy, name="context_output"
        )
        self.filter = FlatDense(3 * self.units, dtype=policy, name="filter")

    def build(
        self,
        states_shape: Shape,
        vectors_shape: Shape | None = None,
        basis_shape: Shape | None = None,
    ) -> None:
        """Build the three layers."""
        check_width("states", states_shape, self.units)
        self.context_hidden.build(states_shape)
        self.context_output.build(states_shape)
        self.filter.build(basis_shape)
        self.built = True

    def _filter_product(self, basis, factor):
        """Return rows and a kernel whose product is f_e (W_3 e + b_3)."""
        factor = ops.expand_dims(factor, -1)
        rows = ops.concatenate([basis * factor, factor], axis=-1)
        bias = ops.expand_dims(ops.convert_to_tensor(self.filter.bias), 0)
        return rows, ops.concatenate([dense_kernel(self.filter), bias], axis=0)

    def call(
        self,
        states: Tensor,
        batch: Batch,
        vectors: Tensor,
        basis: Tensor,
        factor: Tensor | None,
        directions: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the new states and vectors."""
        edge = batch_part(batch, "edge")
        ends = edge["sender"], edge["receiver"]
        context = self.context_output(self.context_hidden(states))
        rows, kernel = self._filter_product(basis, factor)
        sums = vector_sum(context, vectors, rows, kernel, directions, *ends)
        if sums is None:
            filters = flat_matmul(rows, kernel)
            sums = self._sums(context, vectors, filters, directions, *ends)
        scalars, change = sums
        return states + scalars, change if vectors is None else vectors + change

    def _sums(self, context, vectors, filters, directions, sender, receiver):
        """Return the sums of scalars and of vectors over the edges into nodes."""
        num_nodes = ops.shape(context)[1]

        def total(messages):
            return graph_ops.batched_segment_sum(
                messages, receiver, num_nodes, is_sorted=True
            )

        sent = graph_ops.batched_gather(context, sender) * filters
        scalar, radial, carried = ops.split(sent, 3, axis=-1)
        sums = []
        # One axis at a time avoids a temporary of [E, 3, C].
        for axis in range(3):
            messages = radial * directions[..., axis : axis + 1]
            if vectors is not None:
                old = graph_ops.batched_gather(vectors[:, :, axis], sender)
                messages = messages + carried * old
            sums.append(total(messages))
        return total(scalar), ops.stack(sums, axis=2)

    def compute_output_shape(
        self,
        states_shape: Shape,
        vectors_shape: Shape | None = None,
        basis_shape: Shape | None = None,
    ) -> Shape | tuple[Shape, ...]:
        """[G, N, C] and [G, N, 3, C]."""
        groups, nodes, width = states_shape
        return (groups, nodes, width), (groups, nodes, 3, width)
