"""Continuous-filter convolutions on CPUs in torch.

Filters are functions of distances, and many edges have equal distances: both directions
of a pair, and neighbours in a crystal. Each filter is computed once for all edges of
equal distance, chunk by chunk. The gradient stores the hidden rows and the filters of
all distances. Ends of edges are as in `torch_edges`.
"""

import math

import torch
from torch import Tensor

from keras_bandgnn import compat
from keras_bandgnn.ops.backend.torch_edges import EdgeSums, Rows
from keras_bandgnn.ops.backend.torch_fused import fused_operation, operation
from keras_bandgnn.ops.backend.torch_lookups import bag

# Filters, and edges, per chunk.
_ROWS = 2048


@operation
def equal_values(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the groups of equal entries of x [E], for `filtered_sum`.

    Returns:
        The group of each entry, int64 [E], numbered by first occurrence; the order of
        entries by group, int64 [E]; and the row pointers of groups, int64 [U + 1].
    """
    # Integers sort faster, and the order of values does not matter.
    values, order = torch.sort(x.contiguous().view(torch.int32), stable=True)
    ends = torch.ones(len(x) + 1, dtype=torch.bool)
    torch.ne(values[1:], values[:-1], out=ends[1:-1])
    starts = torch.nonzero(ends).reshape(-1)
    counts = starts.diff()
    # By first occurrence, filters of neighbouring edges are neighbours in memory.
    by_first = torch.argsort(order[starts[:-1]])
    rank = torch.empty_like(by_first)
    rank[by_first] = torch.arange(len(by_first))
    number = torch.empty_like(order)
    number[order] = rank.repeat_interleave(counts, output_size=len(x))
    order = torch.sort(number, stable=True)[1]
    starts[0] = 0
    torch.cumsum(counts[by_first], 0, out=starts[1:])
    return number, order, starts


def _pieces(count):
    return [(a, min(a + _ROWS, count)) for a in range(0, count, _ROWS)]


def _filtered_sum(
    sent,
    kernel,
    bias,
    last,
    last_bias,
    edges,
    factor: Tensor | None,
    ends: list[Tensor],
    equal: list[Tensor],
    activate: bool,
):
    """Return the sums [N, F], and the hidden rows and filters of all groups."""
    (s, _, p), (number, order, starts) = ends, equal
    count, width = len(starts) - 1, last.shape[1]
    hidden = edges.new_empty(count, kernel.shape[1])
    filters = edges.new_empty(count, width)
    # Fold the shift of the hidden softplus into the next bias.
    shift = last_bias - math.log(2.0) * last.sum(dim=0)
    first = order[starts[:-1]]
    for a, b in _pieces(count):
        row = torch.addmm(bias, edges[first[a:b]], kernel, out=hidden[a:b])
        compat.softplus_in_place(row)
        rows = torch.addmm(shift, row, last, out=filters[a:b])
        if activate:
            compat.softplus_in_place(rows)
            rows -= math.log(2.0)
    sums = EdgeSums(sent.new_zeros(len(p) - 1, width), ends)
    gathered, weights = Rows(sent, s), Rows(filters, number, "weights")
    for a, b in _pieces(len(s)):
        rows = gathered(a, b).mul_(weights(a, b))
        sums.add(rows, a, b, None if factor is None else factor[a:b])
    return sums.out, hidden, filters


def _filtered_sum_gradient(
    d_out, sent, kernel, last, edges, factor, ends, equal, hidden, filters, activate
):
    (s, r, _), (_, order, starts) = ends, equal
    d_sent, d_kernel, d_last = map(torch.zeros_like, (sent, kernel, last))
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
        shared = len(d) > b - a
        spread = weights
        if shared:
            places = torch.arange(b - a).repeat_interleave(
                counts[a:b], output_size=len(d)
            )
            spread = weights.index_select(0, places)
        d_sent.index_add_(0, s[piece], d * spread)
        d *= sent.index_select(0, s[piece])
        if shared:
            rows = torch.arange(len(d))
            d = bag(d, rows, starts[a : b + 1] - bounds[a])
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


def _filtered_sum_reference(
    sent, kernel, bias, last, last_bias, edges, factor, ends, activate
):
    def shifted_softplus(rows):
        return torch.nn.functional.softplus(rows) - math.log(2.0)

    s, r, p = ends
    filters = shifted_softplus(edges @ kernel + bias) @ last + last_bias
    filters = shifted_softplus(filters) if activate else filters
    rows = sent.index_select(0, s) * filters
    rows = rows if factor is None else rows * factor[:, None]
    return sent.new_zeros(len(p) - 1, last.shape[1]).index_add(0, r, rows)


# `edges` and `factor` get no gradient.
filtered_sum = fused_operation(
    _filtered_sum,
    _filtered_sum_gradient,
    _filtered_sum_reference,
    variables=5,
    results=("out", "hidden", "filters"),
)
