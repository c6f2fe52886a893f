"""Operations of eager torch on CPUs: in place and piece by piece."""

import math
import warnings

import torch

from keras_bandgnn import compat

# Attention along edges in eager torch on CPUs: sparse products, head by head.


def _head(x, number, width):
    """The columns [N, d] of a head: products want them in one piece."""
    return x[:, number * width : (number + 1) * width].contiguous()


class _Pattern:
    """The places of the edges in a matrix of receivers by senders, and transposed."""

    def __init__(self, sender, receiver, num_receivers, num_senders):
        self.shape = num_receivers, num_senders
        self.sender = sender.to(torch.int32)
        self.pointer = self._pointer(receiver, num_receivers)
        self.order = torch.argsort(sender, stable=True)
        self.back_column = receiver.index_select(0, self.order).to(torch.int32)
        by_sender = sender.index_select(0, self.order)
        self.back_pointer = self._pointer(by_sender, num_senders)

    @staticmethod
    def _pointer(ids, count):
        edges = torch.arange(count + 1, dtype=ids.dtype)
        return torch.searchsorted(ids, edges, out_int32=True)

    def matrix(self, values):
        """The matrix with a value per edge."""
        return _csr(self.pointer, self.sender, values, self.shape)

    def product(self, values, x, factor=1.0):
        """Sums of `values` [K, E] times the senders' rows of x [M, K d]: [N, K d]."""
        facts = self.pointer, self.sender, self.shape
        return _products(*facts, values, x, factor)

    def back_product(self, values, x, factor=1.0):
        """The same with senders and receivers exchanged."""
        facts = self.back_pointer, self.back_column, self.shape[::-1]
        return _products(*facts, values, x, factor, self.order)

    def dots(self, receivers, senders, num_heads, factor=1.0):
        """Dot products, times a factor, of the rows of both ends of edges: [K, E]."""
        zeros = torch.zeros(self.sender.shape[0])
        found = torch.empty(num_heads, self.sender.shape[0])
        width = receivers.shape[1] // num_heads
        for number in range(num_heads):
            a, b = (_head(x, number, width) for x in (receivers, senders))
            matrix = self.matrix(zeros)
            found[number] = torch.sparse.sampled_addmm(
                matrix, a, b.t(), beta=0.0, alpha=factor
            ).values()
        return found


def _products(pointer, column, shape, values, x, factor, order=None):
    """Head by head: memory beyond the result is that of one head."""
    num_heads = values.shape[0]
    width = x.shape[1] // num_heads
    out = torch.empty(shape[0], x.shape[1])
    for number in range(num_heads):
        entries = values[number]
        if order is not None:
            entries = entries.index_select(0, order)
        part = _csr(pointer, column, entries, shape) @ _head(x, number, width)
        out[:, number * width : (number + 1) * width] = part
    return out if factor == 1.0 else out.mul_(factor)


def _csr(pointer, column, values, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR is "in beta".
        return torch.sparse_csr_tensor(
            pointer, column, values, shape, check_invariants=False
        )


class EdgeAttention(torch.autograd.Function):
    """`ops.edge_attention` of flat rows.

    `plain` is the same by operations that torch differentiates.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias, weight, sender, receiver, num_heads, empty, plain):
        """Sums [N, K d] and logarithms [N, K]."""
        pattern = _Pattern(sender, receiver, q.shape[0], k.shape[0])
        scale = (q.shape[1] // num_heads) ** -0.5
        scores = pattern.dots(q, k, num_heads, scale)
        ctx.alone = bias.dim() == 1
        if ctx.alone:
            scores.masked_fill_(~bias, empty)
        else:
            scores += bias.t()
        lengths = pattern.pointer.long()
        top = torch.segment_reduce(
            scores.t().contiguous(), "max", offsets=lengths, axis=0
        ).t()
        # Receivers without edges have no largest score.
        top = torch.where((top > 0.5 * empty) & torch.isfinite(top), top, 0.0)
        receiver = receiver.long()
        shift = top.index_select(1, receiver)
        left_out = scores <= 0.5 * empty
        share = scores.sub_(shift).exp_().masked_fill_(left_out, 0.0)
        del shift, left_out
        ones = torch.ones(k.shape[0], 1)
        total = torch.cat([pattern.matrix(s) @ ones for s in share], dim=1).t()
        some = total > 0
        total = torch.where(some, total, 1.0)
        share /= total.index_select(1, receiver)
        used = share if weight is None else share * weight.t()
        out = pattern.product(used, v)
        ctx.pattern, ctx.scale, ctx.receiver = pattern, scale, receiver
        ctx.plain, ctx.sender = plain, sender
        ctx.save_for_backward(q, k, v, bias, out, share, weight)
        logs = torch.where(some, top + torch.log(total), empty)
        return out, logs.t()

    @staticmethod
    def backward(ctx, d_out, d_logs):
        """Gradients of `q`, `k`, `v` and `bias`."""
        q, k, v, bias, out, share, weight = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(*given):
                return ctx.plain(*given, ctx.sender, ctx.receiver, weight)[0]

            found = plain_gradients(plain, (q, k, v, bias), (d_out, d_logs))
            return *found, *[None] * 6
        pattern, num_heads = ctx.pattern, share.shape[0]
        rest = (d_out * out).view(len(out), num_heads, -1).sum(dim=2)
        rest = (d_logs - rest).t()
        d_score = pattern.dots(d_out, v, num_heads)
        used = share
        if weight is not None:
            d_score *= weight.t()
            used = share * weight.t()
        d_score += rest.index_select(1, ctx.receiver)
        d_score *= share
        d_v = pattern.back_product(used, d_out)
        d_q = pattern.product(d_score, k, ctx.scale)
        d_k = pattern.back_product(d_score, q, ctx.scale)
        return d_q, d_k, d_v, None if ctx.alone else d_score.t(), *[None] * 6


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
            compat.softplus_in_place(row)
            weights = torch.addmm(shift, row, last, out=filters[piece])
            if activate:
                compat.softplus_in_place(weights)
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
