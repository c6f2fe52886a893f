"""`Segment`: sums by receiver and type, as a sparse product."""

import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.ops.sequence import sequence_axis
from keras_bandgnn.primitives.base import Load, Primitive
from keras_bandgnn.primitives.csr import pointer_of, transposed
from keras_bandgnn.primitives.edges import Edges, pad


class Segment(Primitive):
    """Any edges, as a sparse matrix of N * P rows times the states.

    On CPUs it is a CSR product (torch, JAX) or a product with a `SparseTensor`
    (TensorFlow), and its gradient the product with the transpose; elsewhere a gather
    and a sum of sorted segments.
    """

    name = "segment"
    covers_all = True
    takes_maximum = True
    bipartite = True
    sequence = "exchange"

    def pack(self, edges: Edges, budget: dict[str, int]) -> dict[str, np.ndarray]:
        """Edge ids sorted by receiver and type; padded edges have receiver N."""
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
        """The matrix of rows n * P + p and columns j."""
        matrix = {
            "row": arrays["receiver"] * num_types + arrays["type"],
            "column": arrays["sender"],
            **{name: arrays[name] for name in BACK if name in arrays},
        }
        num_senders = num_nodes
        if "back_pointer" in arrays:
            num_senders = ops.shape(arrays["back_pointer"])[1] - 1
        if "send" in arrays:
            # Senders are numbered as the other devices' rows arrive.
            num_senders = ops.shape(arrays["send"])[1]
        made = graph_ops.complete_matrix(matrix, num_nodes * num_types, num_senders)
        return {**made, "send": arrays["send"]} if "send" in arrays else made

    def typed_sum(self, prepared: dict, x, num_types: int):
        """Sum of the senders' states per receiver and type, [G, N, P * H]."""
        matrix = {name: a for name, a in prepared.items() if name != "send"}
        total = graph_ops.sparse_matmul(matrix, _arrived(prepared, x))
        groups, rows, width = ops.shape(total)
        return ops.reshape(total, (groups, rows // num_types, num_types * width))

    def degree(self, prepared: dict, num_nodes: int, num_types: int):
        """Sum of the weights per receiver and type, [G, N, P]."""
        degree = row_sums(prepared)
        return ops.reshape(degree, (-1, num_nodes, num_types))

    def count(self, prepared: dict, num_nodes: int, num_types: int):
        """Edges per receiver, [G, N]."""
        return row_counts(prepared["pointer"][:, ::num_types])

    def maximum(self, prepared: dict, x, kernel, bias=None):
        """Largest message per receiver and unit, [G, N, U]; 0 where there is none."""
        x = _arrived(prepared, x)
        num_types, width, units = kernel.shape
        flat = ops.reshape(ops.transpose(kernel, (1, 0, 2)), (width, num_types * units))
        rows = ops.matmul(x, flat)
        if bias is not None:
            rows = rows + ops.reshape(bias, (-1,))
        groups, size = ops.shape(x)[:2]
        rows = ops.reshape(rows, (groups, size * num_types, units))
        kind = prepared["row"] % num_types
        return largest(
            prepared,
            graph_ops.batched_gather(rows, prepared["column"] * num_types + kind),
            prepared["row"] // num_types,
            (ops.shape(prepared["pointer"])[1] - 1) // num_types,
        )

    def cost(self, load: Load, hardware) -> float:
        """A sparse product of N * P rows, and the product with the kernel."""
        rows = load.sizes["node"] * load.num_types
        return hardware.sparse_seconds(
            load.sizes[self.key()], rows, load.width
        ) + hardware.matmul_seconds(rows, load.width, load.units)


def _arrived(prepared: dict, x):
    """Rows of the senders, those of other devices where these share a supergraph."""
    if "send" not in prepared:
        return x
    return sequence_axis().exchange(graph_ops.batched_gather(x, prepared["send"]))


# Arrays of a matrix that a plan may bring along.
BACK = ("weight", "pointer", "back_row", "back_column", "back_pointer", "back_weight")


def back_arrays(row, edges: Edges, shape, length: int, what: str, column=None) -> dict:
    """The transpose of the matrix that `prepare` makes of the edges.

    Args:
        row: Row of each edge.
        edges: The edges.
        shape: Rows and columns.
        length: Capacity.
        what: Name of the resource.
        column: Column of each edge; the sender if omitted.
    """
    column = edges.sender if column is None else column
    back = transposed(row, column, shape, length, what)
    arrays = {f"back_{name}": back[name] for name in ("row", "column", "pointer")}
    arrays["pointer"] = pointer_of(row, shape[0])
    if edges.weight is not None:
        arrays["back_weight"] = pad(edges.weight[back["order"]], length, 0, what)
    return arrays


def row_sums(matrix: dict):
    """Sum of each row of a sparse matrix, float32 [G, rows]."""
    if "weight" in matrix:
        shape = (*ops.shape(matrix["back_pointer"]), 1)
        ones = ops.ones((shape[0], shape[1] - 1, 1), "float32")
        return graph_ops.sparse_matmul(matrix, ones)[..., 0]
    return row_counts(matrix["pointer"])


def row_counts(pointer):
    """Entries of each row, float32 [G, rows], from where rows begin, int32."""
    # In float32 the pointers themselves are rounded above 2^24.
    return ops.cast(pointer[:, 1:] - pointer[:, :-1], "float32")


def largest(matrix: dict, messages, receiver, num_nodes: int):
    """Largest of the messages [G, E, U], times their weights, per receiver."""
    if "weight" in matrix:
        messages = messages * ops.expand_dims(
            ops.cast(matrix["weight"], messages.dtype), -1
        )
    return graph_ops.batched_segment_max(messages, receiver, num_nodes)
