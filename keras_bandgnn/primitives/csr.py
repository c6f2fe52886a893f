"""CSR and CSC index arrays of sparse matrices in batches."""

from collections.abc import Mapping

import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops import CSR, CSRPair, RowIndex
from keras_bandgnn.primitives.edges import Edges, pad


def pointer_of(ids: np.ndarray, length: int) -> np.ndarray:
    """Return row pointers, int32 [length + 1], of sorted ids in [0, length)."""
    out = np.zeros(length + 1, np.int32)
    np.cumsum(np.bincount(ids, minlength=length)[:length], out=out[1:])
    return out


def transposed(
    row: np.ndarray, column: np.ndarray, shape: tuple[int, int], length: int, what: str
) -> dict[str, np.ndarray]:
    """Return the entries of a sparse matrix by column, for the gradient.

    Args:
        row: int32 [n] in [0, shape[0]).
        column: int32 [n] in [0, shape[1]).
        shape: Rows and columns.
        length: Static number of entries.
        what: Name of the resource, for errors.

    Returns:
        `row` int32 [length]: columns of the matrix, sorted, `shape[1]` where padded;
        `column` its rows; `pointer` int32 [shape[1] + 1]; `order` int [n].
    """
    from scipy.sparse import csr_array

    # A transposition is a stable counting sort.
    count = len(row)
    positions = np.arange(count + 1, dtype=np.int32)
    entries = csr_array((row, column, positions), shape=(count, shape[1])).tocsc()
    ids = np.arange(shape[1], dtype=np.int32)
    return {
        "row": pad(ids.repeat(np.diff(entries.indptr)), length, shape[1], what),
        "column": pad(entries.data, length, 0, what),
        "pointer": entries.indptr,
        "order": entries.indices,
    }


def back_arrays(row, edges: Edges, shape, length: int, what: str, column=None) -> dict:
    """Return the transpose of the matrix that `prepare` builds from the edges.

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


def csr_pair(arrays: Mapping, row, column, num_rows: int, num_columns: int) -> CSRPair:
    """Return the matrix of a primitive's arrays and its transpose.

    Args:
        arrays: Optionally `weight` and the result of `back_arrays`.
        row: int32 [G, E].
        column: int32 [G, E].
        num_rows: N.
        num_columns: M.
    """
    matrix = CSR(row, column, arrays.get("pointer"), arrays.get("weight"))
    if "back_row" not in arrays:
        return graph_ops.with_transpose(matrix, num_rows, num_columns)
    return CSRPair(matrix, _csr(arrays, "back", arrays.get("back_weight")))


def row_index(arrays: Mapping, num_rows: int) -> RowIndex:
    """Return the gather of a dict with `index`, and its transpose.

    Args:
        arrays: `index` int32 [G, L], and optionally `back_row`, `back_column` and
            `back_pointer`.
        num_rows: M, number of rows to gather from.
    """
    if "back_row" in arrays:
        return RowIndex(arrays["index"], _csr(arrays, "back"))
    return graph_ops.with_scatter_index(arrays["index"], num_rows)


def _csr(arrays: Mapping, prefix: str, weight=None) -> CSR:
    names = ("row", "column", "pointer")
    return CSR(*(arrays[f"{prefix}_{name}"] for name in names), weight)


def row_sums(matrix: CSR):
    """Return the sum of each row of a sparse matrix, float32 [G, rows]."""
    if matrix.weight is None:
        return row_counts(matrix.pointer)
    return graph_ops.batched_segment_sum(
        ops.cast(matrix.weight, "float32"),
        matrix.row,
        ops.shape(matrix.pointer)[1] - 1,
        is_sorted=True,
    )


def row_counts(pointer):
    """Return the entries per row, float32 [G, rows], from int32 row pointers."""
    # In float32 the pointers themselves are rounded above 2^24.
    return ops.cast(pointer[:, 1:] - pointer[:, :-1], "float32")
