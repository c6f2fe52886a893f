"""Sparse products and gathers within each supergraph, in one flat call.

A matrix is a dict of arrays with axis 0 = G: `row` int32 [G, E] (sorted, the number of
rows N where padded), `column` int32 [G, E] (0 where padded), perhaps `weight`, and
what `complete_matrix` adds: `pointer` int32 [G, N + 1], where each row begins, and the
same arrays of the transpose with the prefix `back_`. With both directions a gradient is
a sorted sum like the product itself.
"""

import keras
from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import (
    batched_gather,
    batched_segment_sum,
    offset_ids,
)
from keras_bandgnn.ops.context import is_portable

# Messages that are multiplied with a filter made of their edge, in one pass.


def filtered_sum(sent, edges, factor, weights, edge, activate):
    """Sums of messages through filters of two layers, where that is one operation.

        out[i] = sum over edges e (j -> i) of sent[j] * f_e (s(e W_1 + b_1) W_2 + b_2)

    with s the shifted softplus, which follows the second layer too if `activate`.

    Args:
        sent: float [G, N, F].
        edges: float [G, E, K].
        factor: f, float [G, E], or None for 1.
        weights: W_1 [K, F], b_1 [F] or None, W_2 [F, F], b_2 [F] or None.
        edge: `sender` and `receiver`, int32 [G, E].
        activate: Whether the second layer has the activation.

    Returns:
        float [G, N, F]; None where the backend, the device, or gradients of the edges
        ask for operations one by one.
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
        groups * (count + 1),
        activate,
    )
    if out is None:
        return None
    return ops.reshape(out, (groups, count + 1, -1))[:, :count]


# Products of rows with the kernel of their group.


def grouped_matmul(rows, kinds, kernel):
    """Multiplies each group of rows with the kernel of its type.

    Args:
        rows: [G, L, H], groups of equal size one after the other.
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


def gathered_grouped_matmul(x, arrays, kinds, kernel):
    """`grouped_matmul` of rows that are read from `x`.

    Args:
        x: [G, M, H].
        arrays: What `complete_gather` returned.
        kinds: int32 [G, groups].
        kernel: [P, H, U].

    Returns:
        [G, L, U].
    """
    groups, size, width = ops.shape(x)
    alone = isinstance(groups, int) and groups == 1
    if not alone or is_half(x) or is_portable():
        return grouped_matmul(gather_rows(arrays, x), kinds, kernel)
    back = None
    if backend.USES_TRANSPOSE:
        names = ("row", "column", "pointer")
        back = tuple(ops.reshape(arrays[f"back_{name}"], (-1,)) for name in names)
        back += (None,)
    out = backend.flat_gathered_grouped_matmul(
        ops.reshape(x, (size, width)),
        ops.reshape(arrays["index"], (-1,)),
        back,
        ops.reshape(kinds, (-1,)),
        kernel,
    )
    return ops.reshape(out, (1, *ops.shape(out)))


def is_half(x) -> bool:
    """Whether a tensor has 16 bits per number."""
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")


def uses_transpose() -> bool:
    """Whether products take the transpose for their gradient."""
    return backend.USES_TRANSPOSE and not is_portable()


def _flat(ids, size):
    return ops.reshape(offset_ids(ids, size), (-1,))


def _flat_pointer(pointer, length, alone):
    """Where each row begins and the last one ends, over all supergraphs."""
    if alone:
        return ops.reshape(pointer, (-1,))
    # The padded entries of a supergraph are its last row.
    end = ops.reshape(length * ops.shape(pointer)[0], (1,))
    return ops.concatenate([_flat(pointer, length), ops.cast(end, pointer.dtype)])


def _side(arrays, prefix, row_size, column_size, alone):
    """Row ids, column ids, pointers and entries of one direction, flat over G."""
    row, column = arrays[f"{prefix}row"], arrays[f"{prefix}column"]
    pointer = _flat_pointer(arrays[f"{prefix}pointer"], ops.shape(row)[1], alone)
    weight = arrays.get(f"{prefix}weight")
    return (
        _flat(row, row_size),
        _flat(column, column_size),
        pointer,
        None if weight is None else ops.reshape(weight, (-1,)),
    )


def _pointer(ids, size):
    """Where each id in [0, size) begins in sorted ids [G, E], int32 [G, size + 1]."""
    ones = ops.ones(ops.shape(ids), "int32")
    counts = batched_segment_sum(ones, ids, size, is_sorted=True)
    return ops.pad(ops.cumsum(counts, axis=1), ((0, 0), (1, 0)))


def complete_matrix(matrix, num_rows, num_columns):
    """Adds the pointers and the transpose to a matrix that lacks them.

    Args:
        matrix: `row`, `column` and perhaps `weight`.
        num_rows: N.
        num_columns: M.

    Returns:
        The matrix for `sparse_matmul`.
    """
    row, column = matrix["row"], matrix["column"]
    if "pointer" not in matrix:
        matrix = {**matrix, "pointer": _pointer(row, num_rows)}
    if "back_row" in matrix:
        return matrix
    if not uses_transpose():
        # The shape alone is used.
        zeros = ops.zeros((ops.shape(row)[0], num_columns + 1), "int32")
        return {**matrix, "back_pointer": zeros}
    matrix = dict(matrix)
    key = ops.where(row < num_rows, column, num_columns)
    order = ops.argsort(key, axis=1)
    by_column = ops.take_along_axis(key, order, axis=1)
    matrix["back_row"] = by_column
    matrix["back_column"] = ops.where(
        by_column < num_columns, ops.take_along_axis(row, order, axis=1), 0
    )
    matrix["back_pointer"] = _pointer(by_column, num_columns)
    if "weight" in matrix:
        matrix["back_weight"] = ops.take_along_axis(matrix["weight"], order, axis=1)
    return matrix


def complete_gather(arrays, num_rows):
    """Adds the transpose to a gather of rows that lacks it.

    Args:
        arrays: `index` int32 [G, L].
        num_rows: M, rows that there are.
    """
    if "back_row" in arrays or not uses_transpose():
        return arrays
    index = arrays["index"]
    order = ops.argsort(index, axis=1)
    by_row = ops.take_along_axis(index, order, axis=1)
    return {
        "index": index,
        "back_row": by_row,
        "back_column": ops.cast(order, "int32"),
        "back_pointer": _pointer(by_row, num_rows),
    }


def sparse_matmul(matrix, x):
    """Product of a sparse matrix with dense rows, per supergraph.

    Half precision is added up in float32: in bfloat16 a sum of ones ends at 256.

    Args:
        matrix: What `complete_matrix` returned.
        x: [G, M, H].

    Returns:
        [G, N, H], N the rows of the matrix.
    """
    if is_half(x):
        return ops.cast(sparse_matmul(matrix, ops.cast(x, "float32")), x.dtype)
    groups, size, width = ops.shape(x)
    num_rows = ops.shape(matrix["pointer"])[1] - 1
    if is_portable():
        sent = batched_gather(x, matrix["column"])
        if "weight" in matrix:
            sent = sent * ops.expand_dims(ops.cast(matrix["weight"], x.dtype), -1)
        return batched_segment_sum(sent, matrix["row"], num_rows, is_sorted=True)
    alone = isinstance(groups, int) and groups == 1
    if not alone:
        x = ops.pad(x, ((0, 0), (0, 1), (0, 0)))
    flat = ops.reshape(x, (-1, width))
    # One row more takes the padding of each supergraph.
    sizes = (num_rows, size) if alone else (num_rows + 1, size + 1)
    back = None
    if backend.USES_TRANSPOSE:
        back = _side(matrix, "back_", size + 1, sizes[0], alone)
    forward = _side(matrix, "", num_rows + 1, sizes[1], alone)
    out = backend.flat_sparse_matmul(forward, back, flat)
    out = ops.reshape(out, (-1, sizes[0], width))
    return out if alone else out[:, :num_rows]


def gather_rows(arrays, x):
    """Rows of each supergraph.

    Args:
        arrays: What `complete_gather` returned.
        x: [G, M, H].

    Returns:
        [G, L, H].
    """
    if is_half(x):
        return ops.cast(gather_rows(arrays, ops.cast(x, "float32")), x.dtype)
    if is_portable():
        return batched_gather(x, arrays["index"])
    groups, size, width = ops.shape(x)
    length = ops.shape(arrays["index"])[1]
    alone = isinstance(groups, int) and groups == 1
    if not alone:
        x = ops.pad(x, ((0, 0), (0, 1), (0, 0)))
    back = None
    if backend.USES_TRANSPOSE:
        back = _side(arrays, "back_", size + 1, length, alone)
    index = _flat(arrays["index"], size if alone else size + 1)
    out = backend.flat_gather_rows(index, back, ops.reshape(x, (-1, width)))
    return ops.reshape(out, (-1, length, width))
