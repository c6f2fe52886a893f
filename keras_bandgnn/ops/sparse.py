"""Batched sparse products and gathers, one flat call for all supergraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from keras_bandgnn.host_keras import keras, ops
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import (
    batched_gather,
    batched_segment_sum,
    offset_ids,
)
from keras_bandgnn.ops.context import is_portable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor


class CSR(NamedTuple):
    """A sparse matrix of N rows and M columns for each of G supergraphs.

    Args:
        row: int32 [G, E], sorted; N where padded.
        column: int32 [G, E]; 0 where padded.
        pointer: int32 [G, N + 1], row pointers; None until `with_pointer`.
        weight: Entries [G, E]; ones if None.
    """

    row: Any
    column: Any
    pointer: Any = None
    weight: Any = None


class CSRPair(NamedTuple):
    """A sparse matrix and its transpose, so that the gradient is a sorted sum, too.

    Args:
        forward: The matrix.
        backward: Its transpose; None if the backend does not use it.
    """

    forward: CSR
    backward: CSR | None = None


class RowIndex(NamedTuple):
    """Rows to gather, and the matrix of the scatter-add, the gradient of the gather.

    Args:
        index: int32 [G, L] in [0, M).
        backward: M rows and L columns; None if the backend does not use it.
    """

    index: Any
    backward: CSR | None = None


# Fused continuous-filter convolution.


def equal_values(values):
    """Return the groups of edges with equal values, for `filtered_sum`.

    Args:
        values: float [G, E].

    Returns:
        The argument `equal` of `filtered_sum`; None if the backend does not use it.
    """
    if backend.equal_values is None or is_portable():
        return None
    if isinstance(values, keras.KerasTensor):
        return None
    return backend.equal_values(ops.reshape(values, (-1,)))


def filtered_sum(sent, edges, factor, weights, edge, activate, equal=None):
    """Compute a continuous-filter convolution in one fused operation, if available.

        out[i] = sum over edges e (j -> i) of sent[j] * f_e (s(e W_1 + b_1) W_2 + b_2)

    where s is the shifted softplus; `activate` applies it to the second layer, too.

    Args:
        sent: float [G, N, F].
        edges: float [G, E, K].
        factor: f, float [G, E], or None for 1.
        weights: W_1 [K, F], b_1 [F] or None, W_2 [F, F], b_2 [F] or None.
        edge: `sender` and `receiver`, int32 [G, E].
        activate: Whether the second layer has the activation.
        equal: `equal_values` of numbers that determine the rows of `edges`, whose
            filters are then computed once; or None.

    Returns:
        float [G, N, F]; None if the backend or the device has no fused operation, or
        if gradients of the edges are required.
    """
    if backend.filtered_sum is None:
        return None
    groups, count, width = ops.shape(sent)
    ends = (
        ops.reshape(offset_ids(ops.convert_to_tensor(edge[name]), size), (-1,))
        # Padded edges have the receiver N.
        for name, size in (("sender", count), ("receiver", count + 1))
    )
    out = backend.filtered_sum(
        ops.reshape(sent, (-1, width)),
        ops.reshape(edges, (-1, ops.shape(edges)[-1])),
        None if factor is None else ops.reshape(factor, (-1,)),
        weights,
        tuple(ends),
        equal,
        groups * (count + 1),
        activate,
    )
    if out is None:
        return None
    return ops.reshape(out, (groups, count + 1, -1))[:, :count]


# Grouped matmuls.


def grouped_matmul(rows: Tensor, kinds: Tensor, kernel: Tensor) -> Tensor:
    """Multiply each group of rows by the kernel of its type.

    Args:
        rows: [G, L, H], contiguous groups of equal size.
        kinds: int32 [G, groups], type of each group.
        kernel: [P, H, U].

    Returns:
        [G, L, U].
    """
    _, length, width = ops.shape(rows)
    out = backend.flat_grouped_matmul(
        ops.reshape(rows, (-1, length // ops.shape(kinds)[1], width)),
        ops.reshape(kinds, (-1,)),
        kernel,
    )
    return ops.reshape(out, (-1, length, ops.shape(kernel)[2]))


def gathered_grouped_matmul(
    x: Tensor, rows: RowIndex, kinds: Tensor, kernel: Tensor
) -> Tensor:
    """Compute `grouped_matmul` of rows gathered from `x`.

    Args:
        x: [G, M, H].
        rows: Result of `with_scatter_index`.
        kinds: int32 [G, groups].
        kernel: [P, H, U].

    Returns:
        [G, L, U].
    """
    groups, size, width = ops.shape(x)
    single = isinstance(groups, int) and groups == 1
    if not single or is_half(x) or is_portable():
        return grouped_matmul(gather_rows(rows, x), kinds, kernel)
    length = ops.shape(rows.index)[1]
    out = backend.flat_gathered_grouped_matmul(
        ops.reshape(x, (size, width)),
        ops.reshape(rows.index, (-1,)),
        _flat_backward(rows.backward, size + 1, length, single),
        ops.reshape(kinds, (-1,)),
        kernel,
    )
    return ops.reshape(out, (1, *ops.shape(out)))


def is_half(x) -> bool:
    """Return whether a tensor is bfloat16 or float16."""
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")


def uses_transpose() -> bool:
    """Return whether products use the transpose for their gradient."""
    return backend.USES_TRANSPOSE and not is_portable()


def _flat(ids, size):
    return ops.reshape(offset_ids(ids, size), (-1,))


def _flat_pointer(pointer, length, single):
    """Return the row pointers of the flattened matrix of all supergraphs."""
    if single:
        return ops.reshape(pointer, (-1,))
    # The padding of a supergraph is its last row.
    end = ops.reshape(length * ops.shape(pointer)[0], (1,))
    return ops.concatenate([_flat(pointer, length), ops.cast(end, pointer.dtype)])


def _flat_csr(matrix: CSR, row_size, column_size, single) -> CSR:
    """Return one block-diagonal matrix for all supergraphs."""
    pointer = _flat_pointer(matrix.pointer, ops.shape(matrix.row)[1], single)
    weight = matrix.weight
    return CSR(
        _flat(matrix.row, row_size),
        _flat(matrix.column, column_size),
        pointer,
        None if weight is None else ops.reshape(weight, (-1,)),
    )


def _flat_backward(matrix: CSR | None, row_size, column_size, single) -> CSR | None:
    if not backend.USES_TRANSPOSE:
        return None
    return _flat_csr(matrix, row_size, column_size, single)


def _pointer(ids, size):
    """Return the row pointers, int32 [G, size + 1], of sorted ids [G, E]."""
    ones = ops.ones(ops.shape(ids), "int32")
    counts = batched_segment_sum(ones, ids, size, is_sorted=True)
    return ops.pad(ops.cumsum(counts, axis=1), ((0, 0), (1, 0)))


def with_pointer(matrix: CSR, num_rows: int) -> CSR:
    """Add the row pointers to a matrix that lacks them."""
    if matrix.pointer is not None:
        return matrix
    return matrix._replace(pointer=_pointer(matrix.row, num_rows))


def _sorted(ids, size):
    """Return the stable order of ids [G, E] in [0, size), and the ids in that order."""
    if backend.sorted_ids is not None:
        result = backend.sorted_ids(ids, size)
        if result is not None:
            return result
    order = ops.argsort(ids, axis=1)
    return order, ops.take_along_axis(ids, order, axis=1)


def with_transpose(matrix: CSR, num_rows: int, num_columns: int) -> CSRPair:
    """Add the row pointers and the transpose to a matrix that lacks them.

    Args:
        matrix: The matrix.
        num_rows: N.
        num_columns: M.

    Returns:
        The argument of `sparse_matmul`.
    """
    matrix = with_pointer(matrix, num_rows)
    if not uses_transpose():
        return CSRPair(matrix)
    key = ops.where(matrix.row < num_rows, matrix.column, num_columns)
    order, row = _sorted(key, num_columns + 1)
    column = ops.take_along_axis(matrix.row, order, axis=1)
    weight = matrix.weight
    if weight is not None:
        weight = ops.take_along_axis(weight, order, axis=1)
    backward = CSR(row, ops.where(row < num_columns, column, 0), None, weight)
    return CSRPair(matrix, with_pointer(backward, num_columns))


def with_scatter_index(index: Tensor, num_rows: int) -> RowIndex:
    """Add the matrix of the scatter-add, the gradient of a gather of rows.

    Args:
        index: int32 [G, L], the rows to gather.
        num_rows: M, number of rows to gather from.
    """
    if not uses_transpose():
        return RowIndex(index)
    order, row = _sorted(index, num_rows)
    backward = CSR(row, ops.cast(order, "int32"))
    return RowIndex(index, with_pointer(backward, num_rows))


def sparse_matmul(matrix: CSRPair, x: Tensor) -> Tensor:
    """Multiply a sparse matrix by dense rows, per supergraph.

    Half precision accumulates in float32: in bfloat16 a sum of ones saturates at 256.

    Args:
        matrix: Result of `with_transpose`.
        x: [G, M, H].

    Returns:
        [G, N, H], N the rows of the matrix.
    """
    if is_half(x):
        return ops.cast(sparse_matmul(matrix, ops.cast(x, "float32")), x.dtype)
    groups, size, width = ops.shape(x)
    forward, backward = matrix
    num_rows = ops.shape(forward.pointer)[1] - 1
    if is_portable():
        sent = batched_gather(x, forward.column)
        if forward.weight is not None:
            sent = sent * ops.expand_dims(ops.cast(forward.weight, x.dtype), -1)
        return batched_segment_sum(sent, forward.row, num_rows, is_sorted=True)
    single = isinstance(groups, int) and groups == 1
    if not single:
        x = ops.pad(x, ((0, 0), (0, 1), (0, 0)))
    flat = ops.reshape(x, (-1, width))
    # One extra row absorbs the padding of each supergraph.
    sizes = (num_rows, size) if single else (num_rows + 1, size + 1)
    out = backend.flat_sparse_matmul(
        _flat_csr(forward, num_rows + 1, sizes[1], single),
        _flat_backward(backward, size + 1, sizes[0], single),
        flat,
    )
    out = ops.reshape(out, (-1, sizes[0], width))
    return out if single else out[:, :num_rows]


def gather_rows(rows: RowIndex, x: Tensor) -> Tensor:
    """Gather rows of each supergraph.

    Args:
        rows: Result of `with_scatter_index`.
        x: [G, M, H].

    Returns:
        [G, L, H].
    """
    if is_half(x):
        return ops.cast(gather_rows(rows, ops.cast(x, "float32")), x.dtype)
    if is_portable():
        return batched_gather(x, rows.index)
    groups, size, width = ops.shape(x)
    length = ops.shape(rows.index)[1]
    single = isinstance(groups, int) and groups == 1
    if not single:
        x = ops.pad(x, ((0, 0), (0, 1), (0, 0)))
    index = _flat(rows.index, size if single else size + 1)
    backward = _flat_backward(rows.backward, size + 1, length, single)
    out = backend.flat_gather_rows(index, backward, ops.reshape(x, (-1, width)))
    return ops.reshape(out, (-1, length, width))
