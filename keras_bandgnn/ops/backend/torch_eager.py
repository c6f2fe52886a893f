"""Operations of eager torch on CPUs, in place and chunk by chunk."""

import torch

from keras_bandgnn.config import products_by_onednn
from keras_bandgnn.ops.backend.torch_steps import check_recordable

# Rows per product, so that they stay in the CPU cache.
_CHUNK = 4096
# Rows of products by type, and less than the last: oneDNN makes a program for each
# number of rows, which takes longer than most products.
_LENGTHS = (_CHUNK, 2048, 1024, 512)


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


def _runs(kinds, size, dtype):
    """Yield (type, start, end) of chunks of rows of one type."""
    # The runs are those of one batch, which a recording would notice at its end only.
    check_recordable("runs of groups")
    types, counts = torch.unique_consecutive(kinds, return_counts=True)
    by_onednn = products_by_onednn() or dtype == torch.bfloat16
    lengths = _LENGTHS if by_onednn else _LENGTHS[:1]
    first = 0
    for kind, count in zip(types.tolist(), counts.tolist(), strict=True):
        last = first + count * size
        while first < last:
            rest = last - first
            length = next((each for each in lengths if each <= rest), rest)
            yield kind, first, first + length
            first += length


class GroupedMatmul(torch.autograd.Function):
    """One product per run of groups of the same type, instead of one per group."""

    @staticmethod
    def forward(ctx, x, index, add_up, kinds, kernel):
        """Return rows [L, U] of `x[index]`; `add_up` is the transpose of the gather."""
        length = x.shape[0] if index is None else index.shape[0]
        out = x.new_empty(length, kernel.shape[2])
        ctx.runs = list(_runs(kinds, length // kinds.shape[0], x.dtype))
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


def _tanh(x):
    """Replace numbers by their hyperbolic tangent."""
    if x.dtype != torch.float32:
        return x.tanh_()
    # A fifth of the time of torch's tanh. What this rounds, by 2e-7, becomes part of
    # states of size one.
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


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
            _tanh(n.addcmul_(switch[:, width:], state_n))
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
