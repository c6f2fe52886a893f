"""Operations of eager torch on CPUs, in place and chunk by chunk."""

import warnings

import torch

# Edge attention as sparse products, one per head.


def _head(x, number, width):
    """Return the columns [N, d] of a head, contiguous for the products."""
    return x[:, number * width : (number + 1) * width].contiguous()


class _Pattern:
    """Sparsity pattern of the edges, receivers by senders, and its transpose."""

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
        """Return the matrix with one value per edge."""
        return _csr(self.pointer, self.sender, values, self.shape)

    def product(self, values, x, factor=1.0):
        """Sum `values` [K, E] times the senders' rows of x [M, K d]: [N, K d]."""
        matrix = self.pointer, self.sender, self.shape
        return _products(*matrix, values, x, factor)

    def back_product(self, values, x, factor=1.0):
        """Compute `product` with senders and receivers exchanged."""
        matrix = self.back_pointer, self.back_column, self.shape[::-1]
        return _products(*matrix, values, x, factor, self.order)

    def dots(self, receivers, senders, num_heads, factor=1.0):
        """Return scaled dot products of the rows at both ends of each edge, [K, E]."""
        zeros = torch.zeros(self.sender.shape[0])
        products = torch.empty(num_heads, self.sender.shape[0])
        width = receivers.shape[1] // num_heads
        for number in range(num_heads):
            a, b = (_head(x, number, width) for x in (receivers, senders))
            matrix = self.matrix(zeros)
            products[number] = torch.sparse.sampled_addmm(
                matrix, a, b.t(), beta=0.0, alpha=factor
            ).values()
        return products


def _products(pointer, column, shape, values, x, factor, order=None):
    """Multiply head by head, so temporary memory is that of one head."""
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

    `plain` is the same function written in differentiable operations.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias, weight, sender, receiver, num_heads, empty, plain):
        """Return attention [N, K d] and log-sum-exp [N, K]."""
        pattern = _Pattern(sender, receiver, q.shape[0], k.shape[0])
        scale = (q.shape[1] // num_heads) ** -0.5
        scores = pattern.dots(q, k, num_heads, scale)
        ctx.unbiased = bias.dim() == 1
        if ctx.unbiased:
            scores.masked_fill_(~bias, empty)
        else:
            scores += bias.t()
        lengths = pattern.pointer.long()
        top = torch.segment_reduce(
            scores.t().contiguous(), "max", offsets=lengths, axis=0
        ).t()
        # Receivers without edges have no maximum.
        top = torch.where((top > 0.5 * empty) & torch.isfinite(top), top, 0.0)
        receiver = receiver.long()
        shift = top.index_select(1, receiver)
        masked = scores <= 0.5 * empty
        share = scores.sub_(shift).exp_().masked_fill_(masked, 0.0)
        del shift, masked
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
        """Return the gradients of `q`, `k`, `v` and `bias`."""
        q, k, v, bias, out, share, weight = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(*arguments):
                return ctx.plain(*arguments, ctx.sender, ctx.receiver, weight)[0]

            gradients = plain_gradients(plain, (q, k, v, bias), (d_out, d_logs))
            return *gradients, *[None] * 6
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
        return d_q, d_k, d_v, None if ctx.unbiased else d_score.t(), *[None] * 6


# Rows per product, so that they stay in the CPU cache.
_CHUNK = 8192


def plain_gradients(function, arguments, cotangents):
    """Return differentiable gradients, for second derivatives in `backward`.

    Custom gradients are not differentiable, so this differentiates plain operations
    instead, at their cost in time and memory.

    Args:
        function: Computes the outputs by differentiable operations.
        arguments: Its arguments, tensors or None; not all require a gradient.
        cotangents: Gradients of the outputs.

    Returns:
        A gradient, or None, for each argument.
    """
    # Views: an argument may be computed from another one, which is not meant here.
    arguments = [
        t.view_as(t) if t is not None and t.requires_grad else t for t in arguments
    ]
    inputs = [t for t in arguments if t is not None and t.requires_grad]
    gradients = torch.autograd.grad(
        function(*arguments), inputs, cotangents, create_graph=True, allow_unused=True
    )
    gradients = iter(gradients)
    return [
        next(gradients) if t is not None and t.requires_grad else None
        for t in arguments
    ]


def _runs(kinds, size):
    """Yield (type, start, end) of chunks of rows of one type."""
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
        """Return rows [L, U] of `x[index]`; `add_up` is the transpose of the gather."""
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
        """Return the gradients of `x` and the kernel."""
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


def gated_rows(messages, states, kernel, bias, state_kernel, state_bias):
    """Return new states of a GRU, by unfused operations."""
    message_z, message_r, message_n = (messages @ kernel + bias).chunk(3, dim=-1)
    state_z, state_r, state_n = (states @ state_kernel + state_bias).chunk(3, dim=-1)
    update = torch.sigmoid(message_z + state_z)
    reset = torch.sigmoid(message_r + state_r)
    candidate = torch.tanh(message_n + reset * state_n)
    return candidate + update * (states - candidate)


class GatedUpdate(torch.autograd.Function):
    """A GRU in place and chunk by chunk, as eager torch is bound by memory traffic."""

    @staticmethod
    def forward(ctx, messages, states, kernel, bias, state_kernel, state_bias):
        """Return the new states [N, H]."""
        count, width = states.shape
        gates = states.new_empty(count, 4 * width)
        out = torch.empty_like(states)
        two = 2 * width
        both = bias[:two] + state_bias[:two]
        for a in range(0, count, _CHUNK):
            b = min(a + _CHUNK, count)
            m, h, piece = messages[a:b], states[a:b], gates[a:b]
            switch, n, state_n = piece[:, :two], piece[:, two:-width], piece[:, -width:]
            torch.addmm(both, m, kernel[:, :two], out=switch)
            switch.addmm_(h, state_kernel[:, :two]).sigmoid_()
            torch.addmm(state_bias[two:], h, state_kernel[:, two:], out=state_n)
            torch.addmm(bias[two:], m, kernel[:, two:], out=n)
            n.addcmul_(switch[:, width:], state_n).tanh_()
            torch.lerp(n, h, switch[:, :width], out=out[a:b])
        arguments = messages, states, kernel, bias, state_kernel, state_bias
        ctx.save_for_backward(*arguments, gates)
        return out

    @staticmethod
    def backward(ctx, d_out):
        """Return the gradients of all arguments."""
        *arguments, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(plain_gradients(gated_rows, arguments, d_out))
        messages, states, kernel, _, state_kernel, _ = arguments
        count, width = states.shape
        two = 2 * width
        d_messages, d_states = torch.empty_like(messages), torch.empty_like(states)
        # In the order n, z, r, n (states), the gates of either input are contiguous.
        swapped = torch.cat([kernel[:, two:], kernel[:, :two]], dim=1)
        d_swapped = torch.zeros_like(kernel)
        d_state_kernel = torch.zeros_like(state_kernel)
        d_bias = kernel.new_zeros(4 * width)
        room = states.new_empty(min(_CHUNK, count), 4 * width)
        spare = states.new_empty(min(_CHUNK, count), width)
        for a in range(0, count, _CHUNK):
            b = min(a + _CHUNK, count)
            m, h, d, piece = messages[a:b], states[a:b], d_out[a:b], gates[a:b]
            z, r, n, state_n = piece.split(width, dim=1)
            grads, t = room[: b - a], spare[: b - a]
            g_n, g_z, g_r, g_state_n = grads.split(width, dim=1)
            # out = n + z (h - n)
            torch.sub(h, n, out=t)
            torch.mul(d, t, out=g_z)
            d_h = d_states[a:b]
            torch.mul(d, z, out=d_h)
            torch.sub(d, d_h, out=t)
            torch.ops.aten.tanh_backward.grad_input(t, n, grad_input=g_n)
            torch.mul(g_n, state_n, out=g_r)
            torch.mul(g_n, r, out=g_state_n)
            switch = grads[:, width : 3 * width]
            gate = piece[:, :two]
            torch.ops.aten.sigmoid_backward.grad_input(switch, gate, grad_input=switch)
            g_message, g_state = grads[:, : 3 * width], grads[:, width:]
            torch.mm(g_message, swapped.t(), out=d_messages[a:b])
            d_h.addmm_(g_state, state_kernel.t())
            d_swapped.addmm_(m.t(), g_message)
            d_state_kernel.addmm_(h.t(), g_state)
            d_bias += grads.sum(dim=0)
        d_kernel = torch.cat([d_swapped[:, width:], d_swapped[:, :width]], dim=1)
        d_message_bias = torch.cat([d_bias[width : 3 * width], d_bias[:width]])
        d_state_bias = d_bias[width:]
        return (
            d_messages,
            d_states,
            d_kernel,
            d_message_bias,
            d_state_kernel,
            d_state_bias,
        )
