"""Sums and products of rows by group on CPUs in torch."""

import torch
from torch import Tensor

from keras_bandgnn.config import products_by_onednn
from keras_bandgnn.ops.backend.torch_fused import fused_operation, operation

# Rows per product, so that they stay in the CPU cache.
_ROWS = 4096
# Rows of products by type, and less than the last: oneDNN makes a program for each
# number of rows, which takes longer than most products.
_LENGTHS = (_ROWS, 2048, 1024, 512)


@operation
def rows_sum(
    pointer: Tensor, column: Tensor, weight: Tensor | None, x: Tensor
) -> Tensor:
    """Return the sums [N, H] of rows of x between pointers [N + 1]: a sparse product.

    The kernel of `embedding_bag` writes no rows but the sums. Columns behind the last
    pointer are padding.
    """
    if len(pointer) and int(pointer[0]):
        # Keras builds models on tensors of ones, which the kernel of half precision
        # refuses.
        return x.new_zeros(len(pointer) - 1, x.shape[1])
    weight = None if weight is None else weight.to(x.dtype)
    return torch.embedding_bag(
        x, column, pointer.to(column.dtype), False, 0, False, weight, True
    )[0]


def _runs(kinds, size, dtype):
    """Yield (type, start, end) of chunks of rows of one type."""
    types, counts = torch.unique_consecutive(kinds, return_counts=True)
    by_onednn = products_by_onednn() or dtype == torch.bfloat16
    lengths = _LENGTHS if by_onednn else _LENGTHS[:1]
    first = 0
    for kind, count in zip(types.tolist(), counts.tolist(), strict=True):
        last = first + count * size
        while first < last:
            length = next((n for n in lengths if n <= last - first), last - first)
            yield kind, first, first + length
            first += length


def _rows(x, index, length):
    """Return a function of chunks of rows `x[index]`."""
    room = x.new_empty(min(_ROWS, length), x.shape[1])

    def rows(a, b):
        if index is None:
            return x[a:b]
        return torch.index_select(x, 0, index[a:b], out=room[: b - a])

    return rows


# One product per run of groups of the same type, instead of one per group. Rows
# `x[index]` never all exist at once; `column` and `pointer` are the transpose of their
# gather.


def _grouped_matmul(
    x,
    kernel,
    kinds,
    index: Tensor | None,
    pointer: Tensor | None,
    column: Tensor | None,
):
    """Return rows [L, U], and the runs."""
    length = x.shape[0] if index is None else index.shape[0]
    out = x.new_empty(length, kernel.shape[2])
    runs = [*_runs(kinds, length // kinds.shape[0], x.dtype)]
    rows = _rows(x, index, length)
    for kind, a, b in runs:
        torch.mm(rows(a, b), kernel[kind], out=out[a:b])
    return out, torch.tensor(runs, dtype=torch.int64)


def _grouped_matmul_gradient(d_out, x, kernel, index, pointer, column, runs):
    length = d_out.shape[0]
    d_rows, d_kernel = x.new_empty(length, x.shape[1]), torch.zeros_like(kernel)
    rows = _rows(x, index, length)
    for kind, a, b in runs.tolist():
        torch.mm(d_out[a:b], kernel[kind].t(), out=d_rows[a:b])
        d_kernel[kind].addmm_(rows(a, b).t(), d_out[a:b])
    if index is None:
        return d_rows, d_kernel
    return rows_sum(pointer, column, None, d_rows), d_kernel


def _grouped_matmul_reference(x, kernel, kinds, index):
    rows = x if index is None else x.index_select(0, index)
    rows = rows.reshape(kinds.shape[0], -1, x.shape[1])
    return torch.bmm(rows, kernel.index_select(0, kinds)).flatten(0, 1)


grouped_matmul = fused_operation(
    _grouped_matmul,
    _grouped_matmul_gradient,
    _grouped_matmul_reference,
    variables=2,
    results=("out", "runs"),
)
