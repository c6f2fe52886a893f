"""Operations of eager torch on CPUs: in place and piece by piece."""

import math

import torch

# Rows that are multiplied at a time: they stay in the cache.
_CHUNK = 8192


def _runs(kinds, size):
    """(type, first row, last row) of pieces of rows of one type."""
    types, counts = torch.unique_consecutive(kinds, return_counts=True)
    first = 0
    for kind, count in zip(types.tolist(), counts.tolist(), strict=True):
        last = first + count * size
        for start in range(first, last, _CHUNK):
            yield kind, start, min(start + _CHUNK, last)
        first = last


class GroupedMatmul(torch.autograd.Function):
    """One product per run of groups of the same type, instead of one per group."""

    @staticmethod
    def forward(ctx, x, index, add_up, kinds, kernel):
        """Rows [L, U]; `index` reads them from `x`, `add_up` is its transpose."""
        length = x.shape[0] if index is None else index.shape[0]
        out = x.new_empty(length, kernel.shape[2])
        ctx.runs = list(_runs(kinds, length // kinds.shape[0]))
        room = x.new_empty(min(_CHUNK, length), x.shape[1])
        for kind, a, b in ctx.runs:
            torch.mm(_rows(x, index, a, b, room), kernel[kind], out=out[a:b])
        ctx.save_for_backward(x, index, kernel)
        ctx.add_up = add_up
        return out

    @staticmethod
    def backward(ctx, dy):
        """Gradients of `x` and the kernel."""
        x, index, kernel = ctx.saved_tensors
        dy = dy.contiguous()
        length = dy.shape[0]
        d_rows = x.new_empty(length, x.shape[1])
        d_kernel = torch.zeros_like(kernel)
        room = x.new_empty(min(_CHUNK, length), x.shape[1])
        for kind, a, b in ctx.runs:
            torch.mm(dy[a:b], kernel[kind].t(), out=d_rows[a:b])
            rows = _rows(x, index, a, b, room)
            d_kernel[kind].addmm_(rows.t(), dy[a:b])
        dx = d_rows if index is None else ctx.add_up(d_rows)
        return dx, None, None, None, d_kernel


def _rows(x, index, a, b, room):
    if index is None:
        return x[a:b]
    return torch.index_select(x, 0, index[a:b], out=room[: b - a])


class GatedUpdate(torch.autograd.Function):
    """A GRU in place and piece by piece: memory is what an eager one waits for."""

    @staticmethod
    def forward(ctx, messages, states, kernel, bias, own_kernel, own_bias):
        """New states [N, H]."""
        count, width = states.shape
        gates = states.new_empty(count, 4 * width)
        out = torch.empty_like(states)
        two = 2 * width
        both = bias[:two] + own_bias[:two]
        for a in range(0, count, _CHUNK):
            b = min(a + _CHUNK, count)
            m, h, piece = messages[a:b], states[a:b], gates[a:b]
            switch, n, own_n = piece[:, :two], piece[:, two:-width], piece[:, -width:]
            torch.addmm(both, m, kernel[:, :two], out=switch)
            switch.addmm_(h, own_kernel[:, :two]).sigmoid_()
            torch.addmm(own_bias[two:], h, own_kernel[:, two:], out=own_n)
            torch.addmm(bias[two:], m, kernel[:, two:], out=n)
            n.addcmul_(switch[:, width:], own_n).tanh_()
            torch.lerp(n, h, switch[:, :width], out=out[a:b])
        ctx.save_for_backward(messages, states, kernel, own_kernel, gates)
        return out

    @staticmethod
    def backward(ctx, d_out):
        """Gradients of all arguments."""
        messages, states, kernel, own_kernel, gates = ctx.saved_tensors
        count, width = states.shape
        two = 2 * width
        d_messages, d_states = torch.empty_like(messages), torch.empty_like(states)
        # Order n, z, r, n of the old state: each side is three neighbours.
        swapped = torch.cat([kernel[:, two:], kernel[:, :two]], dim=1)
        d_swapped, d_own = torch.zeros_like(kernel), torch.zeros_like(own_kernel)
        d_bias = kernel.new_zeros(4 * width)
        room = states.new_empty(min(_CHUNK, count), 4 * width)
        spare = states.new_empty(min(_CHUNK, count), width)
        for a in range(0, count, _CHUNK):
            b = min(a + _CHUNK, count)
            m, h, d, piece = messages[a:b], states[a:b], d_out[a:b], gates[a:b]
            z, r, n, own_n = piece.split(width, dim=1)
            grads, t = room[: b - a], spare[: b - a]
            g_n, g_z, g_r, g_own = grads.split(width, dim=1)
            # out = n + z (h - n)
            torch.sub(h, n, out=t)
            torch.mul(d, t, out=g_z)
            own_d = d_states[a:b]
            torch.mul(d, z, out=own_d)
            torch.sub(d, own_d, out=t)
            torch.ops.aten.tanh_backward.grad_input(t, n, grad_input=g_n)
            torch.mul(g_n, own_n, out=g_r)
            torch.mul(g_n, r, out=g_own)
            switch = grads[:, width : 3 * width]
            gate = piece[:, :two]
            torch.ops.aten.sigmoid_backward.grad_input(switch, gate, grad_input=switch)
            given, own = grads[:, : 3 * width], grads[:, width:]
            torch.mm(given, swapped.t(), out=d_messages[a:b])
            own_d.addmm_(own, own_kernel.t())
            d_swapped.addmm_(m.t(), given)
            d_own.addmm_(h.t(), own)
            d_bias += grads.sum(dim=0)
        d_kernel = torch.cat([d_swapped[:, width:], d_swapped[:, :width]], dim=1)
        given = torch.cat([d_bias[width : 3 * width], d_bias[:width]])
        return d_messages, d_states, d_kernel, given, d_own, d_bias[width:]


# Edges whose filters are made at a time.
_EDGES = 2048


class FilteredSum(torch.autograd.Function):
    """Filters of edges, messages and their sums, a piece of the edges at a time.

    Two arrays of a row per edge are kept for the gradient, the hidden rows and the
    filters. There is no gradient of `edges` and `factor`.
    """

    @staticmethod
    def forward(
        ctx, sent, kernel, bias, last, last_bias, edges, factor, ends, size, activate
    ):
        """Sums [size, F]; see `ops.filters`."""
        count = edges.shape[0]
        hidden = edges.new_empty(count, kernel.shape[1])
        filters = edges.new_empty(count, last.shape[1])
        first = kernel.new_zeros(kernel.shape[1]) if bias is None else bias
        # The shift of the hidden rows' softplus moves into the next bias.
        shift = -math.log(2.0) * last.sum(dim=0)
        shift = shift if last_bias is None else shift + last_bias
        out = sent.new_zeros(size, last.shape[1])
        for a in range(0, count, _EDGES):
            piece = slice(a, a + _EDGES)
            row = torch.addmm(first, edges[piece], kernel, out=hidden[piece])
            torch._C._nn.softplus(row, out=row)
            weights = torch.addmm(shift, row, last, out=filters[piece])
            if activate:
                torch._C._nn.softplus(weights, out=weights)
                weights -= math.log(2.0)
            part = sent.index_select(0, ends[0][piece]).mul_(weights)
            if factor is not None:
                part *= factor[piece, None]
            out.index_add_(0, ends[1][piece], part)
        ctx.save_for_backward(sent, kernel, last, edges, factor, *ends, hidden, filters)
        ctx.facts = bias is not None, last_bias is not None, activate
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):
        """Gradients of `sent`, the kernels and the biases."""
        sent, kernel, last, edges, factor, *ends, hidden, filters = ctx.saved_tensors
        biased, last_biased, activate = ctx.facts
        d_sent, d_kernel = torch.zeros_like(sent), torch.zeros_like(kernel)
        d_last = torch.zeros_like(last)
        d_bias = kernel.new_zeros(kernel.shape[1])
        d_last_bias = last.new_zeros(last.shape[1])
        for a in range(0, edges.shape[0], _EDGES):
            piece = slice(a, a + _EDGES)
            weights, row = filters[piece], hidden[piece]
            d = d_out.index_select(0, ends[1][piece])
            if factor is not None:
                d *= factor[piece, None]
            d_sent.index_add_(0, ends[0][piece], d * weights)
            d *= sent.index_select(0, ends[0][piece])
            if activate:
                # The slope of a softplus y is 1 - exp(-y).
                d.addcmul_(d, torch.exp(-weights), value=-0.5)
            d_last_bias += d.sum(dim=0)
            d_last.addmm_(row.t(), d)
            d = d @ last.t()
            d.addcmul_(d, torch.exp(-row), value=-1.0)
            d_bias += d.sum(dim=0)
            d_kernel.addmm_(edges[piece].t(), d)
        d_last -= math.log(2.0) * d_last_bias
        return (
            d_sent,
            d_kernel,
            d_bias if biased else None,
            d_last,
            d_last_bias if last_biased else None,
            *[None] * 5,
        )
