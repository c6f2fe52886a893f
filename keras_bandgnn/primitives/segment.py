"""`Segment`: sums by receiver and type, as a sparse product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops import CSR
from keras_bandgnn.ops.sequence import sequence_axis
from keras_bandgnn.primitives.base import Load, Primitive, of_pairs, times
from keras_bandgnn.primitives.csr import back_arrays, csr_pair, row_counts, row_sums
from keras_bandgnn.primitives.edges import Edges

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor
    from keras_bandgnn.planning.cost import Hardware


class Segment(Primitive):
    """Covers any edges, as a sparse matrix of N * P rows times the states.

    On CPUs this is a CSR product (torch, JAX) or a product with a `SparseTensor`
    (TensorFlow), and its gradient the product with the transpose; elsewhere a gather
    and a sorted segment sum.

    Example:
    >>> Segment().key()
    'segment'
    """

    name = "segment"
    covers_all = True
    takes_maximum = True
    bipartite = True
    sequence = "exchange"

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Sort the edges by receiver and type; padded edges have receiver N."""
        key = edges.receiver
        if edges.num_types > 1:
            key = key.astype(np.int64) * edges.num_types + edges.type
        edges = edges.sorted_by(key)
        length, what = budget[self.key()], self.key()
        arrays = edges.padded(length, what)
        if edges.transpose:
            row = edges.receiver * edges.num_types + edges.type
            shape = (edges.num_nodes * edges.num_types, edges.senders)
            arrays |= back_arrays(row, edges, shape, length, what)
        return arrays

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Build the matrix with rows n * P + p and columns j."""
        num_senders = num_nodes
        if "back_pointer" in arrays:
            num_senders = ops.shape(arrays["back_pointer"])[1] - 1
        if "send" in arrays:
            # Sender ids index the rows received from all devices.
            num_senders = ops.shape(arrays["send"])[1]
        row = arrays["receiver"] * num_types + arrays["type"]
        num_rows = num_nodes * num_types
        matrix = csr_pair(arrays, row, arrays["sender"], num_rows, num_senders)
        prepared = {"matrix": matrix}
        if "send" in arrays:
            prepared["send"] = arrays["send"]
        return prepared

    def typed_sum(self, prepared: dict, x: Tensor, num_types: int) -> Tensor:
        """Sum the senders' states per receiver and type, [G, N, P * H]."""
        total = graph_ops.sparse_matmul(prepared["matrix"], _arrived(prepared, x))
        groups, rows, width = ops.shape(total)
        return ops.reshape(total, (groups, rows // num_types, num_types * width))

    def degree(self, prepared: dict, num_nodes: int, num_types: int) -> Tensor:
        """Sum of the weights per receiver and type, [G, N, P]."""
        degree = row_sums(prepared["matrix"].forward)
        return ops.reshape(degree, (-1, num_nodes, num_types))

    def count(self, prepared: dict, num_nodes: int, num_types: int) -> Tensor:
        """Count the edges per receiver, [G, N]."""
        return row_counts(prepared["matrix"].forward.pointer[:, ::num_types])

    def type_count(self, arrays: dict, num_nodes: int, num_types: int) -> Tensor:
        """Count the edges per receiver and type, [G, N, P]."""
        num_rows = num_nodes * num_types
        if "pointer" in arrays:
            counts = row_counts(arrays["pointer"])
        else:
            row = arrays["receiver"] * num_types + arrays["type"]
            ones = ops.ones(ops.shape(row), "int32")
            counts = graph_ops.batched_segment_sum(ones, row, num_rows, is_sorted=True)
        counts = ops.reshape(counts, (-1, num_nodes, num_types))
        return ops.cast(counts, "float32")

    def weigh(self, arrays: dict, factor: Tensor) -> dict:
        """Multiply the weights of edges by a factor of their receiver and type."""
        of_edge = of_pairs(factor, arrays["receiver"], arrays["type"])
        weights = {"weight": times(arrays.get("weight"), of_edge)}
        if "back_row" in arrays:
            _, num_nodes, num_types = ops.shape(factor)
            of_row = ops.reshape(factor, (-1, num_nodes * num_types))
            of_edge = graph_ops.batched_gather(of_row, arrays["back_column"])
            weights["back_weight"] = times(arrays.get("back_weight"), of_edge)
        return {**arrays, **weights}

    def maximum(
        self, prepared: dict, x: Tensor, kernel: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Return the maximum message per receiver and unit, [G, N, U]; 0 if none."""
        x = _arrived(prepared, x)
        num_types, width, units = kernel.shape
        flat = ops.reshape(ops.transpose(kernel, (1, 0, 2)), (width, num_types * units))
        rows = ops.matmul(x, flat)
        if bias is not None:
            rows = rows + ops.reshape(bias, (-1,))
        groups, size = ops.shape(x)[:2]
        rows = ops.reshape(rows, (groups, size * num_types, units))
        matrix = prepared["matrix"].forward
        kind = matrix.row % num_types
        return largest(
            matrix,
            graph_ops.batched_gather(rows, matrix.column * num_types + kind),
            matrix.row // num_types,
            (ops.shape(matrix.pointer)[1] - 1) // num_types,
        )

    @classmethod
    def candidates(cls, num_types: int, block_size: int) -> list[Primitive]:
        """Return the one instance."""
        return (cls(),)

    def cost(self, load: Load, hardware: Hardware) -> float:
        """Estimate a sparse product of N * P rows and the product with the kernel."""
        rows = load.sizes["node"] * load.num_types
        return hardware.sparse_seconds(
            load.sizes[self.key()], rows, load.width
        ) + hardware.matmul_seconds(rows, load.width, load.units)


def _arrived(prepared: dict, x):
    """Return the senders' rows, from all devices that share a supergraph."""
    if "send" not in prepared:
        return x
    return sequence_axis().exchange(graph_ops.batched_gather(x, prepared["send"]))


def largest(matrix: CSR, messages, receiver, num_nodes: int):
    """Return the maximum per receiver of weighted messages [G, E, U]."""
    if matrix.weight is not None:
        weight = ops.cast(matrix.weight, messages.dtype)
        messages = messages * ops.expand_dims(weight, -1)
    return graph_ops.batched_segment_max(messages, receiver, num_nodes)
