"""Continuous-filter convolutions on CPUs in torch.

Filters are functions of distances, which many edges share: both directions of a pair,
and the neighbours in a crystal. A filter is computed once for all edges of equal
distances, chunk by chunk.
"""

import math

import torch

from keras_bandgnn import compat
from keras_bandgnn.ops.backend.torch_eager import plain_gradients
from keras_bandgnn.ops.backend.torch_edges import EdgeSums, pointer
from keras_bandgnn.ops.backend.torch_library import operation

# Filters, and edges, per chunk.
_ROWS = 2048


@operation("equal_values(Tensor x) -> (Tensor, Tensor, Tensor)")
def equal_values(x):
    """Return which entries of x [E] are equal, for `FilteredSum`.

    Returns:
        The number of each entry's value, int64 [E], values counted as they first occur;
        the entries in the order of these numbers, int64 [E]; and where the entries of
        each value begin there, and the last end, int64 [U + 1].
    """
    # Integers are sorted faster, and order does not matter.
    values, order = torch.sort(x.contiguous().view(torch.int32), stable=True)
    ends = torch.ones(len(x) + 1, dtype=torch.bool)
    torch.ne(values[1:], values[:-1], out=ends[1:-1])
    starts = torch.nonzero(ends).reshape(-1)
    counts = starts.diff()
    # Of neighbouring edges, filters are neighbours in memory.
    by_first = torch.argsort(order[starts[:-1]])
    rank = torch.empty_like(by_first)
    rank[by_first] = torch.arange(len(by_first))
    number = torch.empty_like(order)
    number[order] = rank.repeat_interleave(counts, output_size=len(x))
    order = torch.sort(number, stable=True)[1]
    starts[0] = 0
    torch.cumsum(counts[by_first], 0, out=starts[1:])
    return number, order, starts


def _filtered_rows(
    sent, kernel, bias, last, last_bias, edges, factor, s, r, size, activate
):
    """Compute `FilteredSum` by unfused operations."""

    def shifted_softplus(rows):
        return torch.nn.functional.softplus(rows) - math.log(2.0)

    hidden = edges @ kernel
    hidden = shifted_softplus(hidden if bias is None else hidden + bias)
    filters = hidden @ last
    filters = filters if last_bias is None else filters + last_bias
    filters = shifted_softplus(filters) if activate else filters
    part = sent.index_select(0, s) * filters
    part = part if factor is None else part * factor[:, None]
    return sent.new_zeros(size, last.shape[1]).index_add(0, r, part)


def _pieces(count):
    return [(a, min(a + _ROWS, count)) for a in range(0, count, _ROWS)]


@operation(
    "filtered_sum(Tensor sent, Tensor kernel, Tensor? bias, Tensor last,"
    " Tensor? last_bias, Tensor edges, Tensor? factor, Tensor s, Tensor r, Tensor p,"
    " Tensor number, Tensor order, Tensor starts, bool activate)"
    " -> (Tensor, Tensor, Tensor)"
)
def _filtered_sum(
    sent,
    kernel,
    bias,
    last,
    last_bias,
    edges,
    factor,
    s,
    r,
    p,
    number,
    order,
    starts,
    activate,
):
    """Return the sums, and the hidden rows and the filters of all values."""
    count, width = len(starts) - 1, last.shape[1]
    hidden = edges.new_empty(count, kernel.shape[1])
    filters = edges.new_empty(count, width)
    bias = kernel.new_zeros(kernel.shape[1]) if bias is None else bias
    # Fold the shift of the hidden softplus into the next bias.
    shift = -math.log(2.0) * last.sum(dim=0)
    shift = shift if last_bias is None else shift + last_bias
    first = order[starts[:-1]]
    for a, b in _pieces(count):
        row = torch.addmm(bias, edges[first[a:b]], kernel, out=hidden[a:b])
        compat.softplus_in_place(row)
        rows = torch.addmm(shift, row, last, out=filters[a:b])
        if activate:
            compat.softplus_in_place(rows)
            rows -= math.log(2.0)
    out = sent.new_zeros(len(p) - 1, width)
    rooms = sent.new_empty(2, min(_ROWS, len(s)), width)
    sums = EdgeSums(out, r, p)
    for a, b in _pieces(len(s)):
        rows, weights = rooms[:, : b - a]
        torch.index_select(sent, 0, s[a:b], out=rows)
        rows *= torch.index_select(filters, 0, number[a:b], out=weights)
        sums.add(rows, a, b, None if factor is None else factor[a:b])
    return out, hidden, filters


@operation(
    "filtered_sum_gradient(Tensor d_out, Tensor sent, Tensor kernel, Tensor last,"
    " Tensor edges, Tensor? factor, Tensor s, Tensor r, Tensor order, Tensor starts,"
    " Tensor hidden, Tensor filters, bool activate)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _filtered_sum_gradient(
    d_out,
    sent,
    kernel,
    last,
    edges,
    factor,
    s,
    r,
    order,
    starts,
    hidden,
    filters,
    activate,
):
    d_sent, d_kernel = torch.zeros_like(sent), torch.zeros_like(kernel)
    d_last = torch.zeros_like(last)
    d_bias = kernel.new_zeros(kernel.shape[1])
    d_last_bias = last.new_zeros(last.shape[1])
    first, bounds = order[starts[:-1]], starts.tolist()
    counts = starts.diff()
    # Edges in the order of their filters.
    s, r = s[order], r[order]
    factor = None if factor is None else factor[order, None]
    count = len(counts)
    # Chunks with as many edges on average.
    size = max(1, _ROWS * count // max(len(s), 1))
    for a in range(0, count, size):
        b = min(a + size, count)
        piece = slice(bounds[a], bounds[b])
        weights, row = filters[a:b], hidden[a:b]
        d = d_out.index_select(0, r[piece])
        if factor is not None:
            d *= factor[piece]
        alone = len(d) == b - a
        spread = weights
        if not alone:
            places = torch.arange(b - a).repeat_interleave(
                counts[a:b], output_size=len(d)
            )
            spread = weights.index_select(0, places)
        d_sent.index_add_(0, s[piece], d * spread)
        d *= sent.index_select(0, s[piece])
        if not alone:
            rows = torch.arange(len(d))
            d = torch.embedding_bag(
                d, rows, starts[a : b + 1] - bounds[a], False, 0, False, None, True
            )[0]
        if activate:
            # The derivative of a softplus with value y is 1 - exp(-y).
            d.addcmul_(d, torch.exp(-weights), value=-0.5)
        d_last_bias += d.sum(dim=0)
        d_last.addmm_(row.t(), d)
        d = d @ last.t()
        d.addcmul_(d, torch.exp(-row), value=-1.0)
        d_bias += d.sum(dim=0)
        d_kernel.addmm_(edges[first[a:b]].t(), d)
    d_last -= math.log(2.0) * d_last_bias
    return d_sent, d_kernel, d_bias, d_last, d_last_bias


class FilteredSum(torch.autograd.Function):
    """Continuous-filter convolution, one chunk at a time.

    The gradient stores the hidden rows and the filters of all distances. `edges` and
    `factor` get no gradient.
    """

    @staticmethod
    def forward(
        ctx,
        sent,
        kernel,
        bias,
        last,
        last_bias,
        edges,
        factor,
        s,
        r,
        equal,
        size,
        activate,
    ):
        """Return the sums [size, F]; see `ops.sparse.filtered_sum`."""
        weights = kernel, bias, last, last_bias
        if equal is None:
            number = torch.arange(len(s))
            equal = number, number, torch.arange(len(s) + 1)
        ends = s, r, pointer(r, size)
        out, *rows = _filtered_sum(
            sent, *weights, edges, factor, *ends, *equal, activate
        )
        ctx.save_for_backward(sent, *weights, edges, factor, s, r, *equal[1:], *rows)
        ctx.activate = activate
        return out

    @staticmethod
    def backward(ctx, d_out):
        """Return the gradients of `sent`, the kernels and the biases."""
        saved, activate = ctx.saved_tensors, ctx.activate
        arguments, (edges, factor, s, r, *rest) = saved[:5], saved[5:]
        if torch.is_grad_enabled():

            def plain(*arguments):
                constants = edges, factor, s, r, len(d_out), activate
                return _filtered_rows(*arguments, *constants)

            return *plain_gradients(plain, arguments, d_out), *[None] * 7
        sent, kernel, bias, last, last_bias = arguments
        d_sent, d_kernel, d_bias, d_last, d_last_bias = _filtered_sum_gradient(
            d_out.contiguous(), sent, kernel, last, edges, factor, s, r, *rest, activate
        )
        return (
            d_sent,
            d_kernel,
            None if bias is None else d_bias,
            d_last,
            None if last_bias is None else d_last_bias,
            *[None] * 7,
        )
