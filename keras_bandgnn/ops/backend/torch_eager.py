"""Operations of eager torch on CPUs: in place and piece by piece."""

import math

import torch

# Rows that are multiplied at a time: they stay in the cache.
_CHUNK = 8192


def plain_gradients(function, given, slopes):
    """Gradients that have gradients themselves, for `backward` in second derivatives.

    A gradient written by hand has none: that of plain operations takes its place. It
    takes their time and memory.

    Args:
        function: Computes the outputs by operations that torch differentiates.
        given: Its arguments: tensors, some with a gradient, or None.
        slopes: Gradients of the outputs.

    Returns:
        A gradient, or None, for each argument.
    """
    moving = [t for t in given if t is not None and t.requires_grad]
    found = torch.autograd.grad(
        function(*given), moving, slopes, create_graph=True, allow_unused=True
    )
    found = iter(found)
    return [next(found) if t is not None and t.requires_grad else None for t in given]


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
        ctx.save_for_backward(x, index, kinds, kernel)
        ctx.add_up = add_up
        return out

    @staticmethod
    def backward(ctx, dy):
        """Gradients of `x` and the kernel."""
        x, index, kinds, kernel = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(x, kernel):
                rows = x if index is None else x.index_select(0, index)
                rows = rows.reshape(kinds.shape[0], -1, x.shape[1])
                return torch.bmm(rows, kernel.index_select(0, kinds)).flatten(0, 1)

            dx, d_kernel = plain_gradients(plain, (x, kernel), dy)
            return dx, None, None, None, d_kernel
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


def gated_rows(messages, states, kernel, bias, own_kernel, own_bias):
    """New states of a GRU, by operations one by one."""
    given_z, given_r, given_n = (messages @ kernel + bias).chunk(3, dim=-1)
    own_z, own_r, own_n = (states @ own_kernel + own_bias).chunk(3, dim=-1)
    update = torch.sigmoid(given_z + own_z)
    reset = torch.sigmoid(given_r + own_r)
    candidate = torch.tanh(given_n + reset * own_n)
    return candidate + update * (states - candidate)


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
        given = messages, states, kernel, bias, own_kernel, own_bias
        ctx.save_for_backward(*given, gates)
        return out

    @staticmethod
    def backward(ctx, d_out):
        """Gradients of all arguments."""
        *given, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(plain_gradients(gated_rows, given, d_out))
        messages, states, kernel, _, own_kernel, _ = given
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


def _filtered_rows(
    sent, kernel, bias, last, last_bias, edges, factor, ends, size, activate
):
    """`FilteredSum` by operations one by one."""

    def shifted_softplus(rows):
        return torch.nn.functional.softplus(rows) - math.log(2.0)

    hidden = edges @ kernel
    hidden = shifted_softplus(hidden if bias is None else hidden + bias)
    filters = hidden @ last
    filters = filters if last_bias is None else filters + last_bias
    filters = shifted_softplus(filters) if activate else filters
    part = sent.index_select(0, ends[0]) * filters
    part = part if factor is None else part * factor[:, None]
    return sent.new_zeros(size, last.shape[1]).index_add(0, ends[1], part)


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
        given = sent, kernel, bias, last, last_bias
        ctx.save_for_backward(*given, edges, factor, *ends, hidden, filters)
        ctx.activate = activate
        return out

    @staticmethod
    def backward(ctx, d_out):
        """Gradients of `sent`, the kernels and the biases."""
        given, activate = ctx.saved_tensors[:5], ctx.activate
        edges, factor, *ends, hidden, filters = ctx.saved_tensors[5:]
        if torch.is_grad_enabled():

            def plain(*given):
                return _filtered_rows(*given, edges, factor, ends, len(d_out), activate)

            return *plain_gradients(plain, given, d_out), *[None] * 5
        sent, kernel, bias, last, last_bias = given
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
            None if bias is None else d_bias,
            d_last,
            None if last_bias is None else d_last_bias,
            *[None] * 5,
        )
