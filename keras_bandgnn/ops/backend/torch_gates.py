"""A GRU on CPUs in torch, in place and chunk by chunk.

Eager torch is bound by memory traffic: the rows of a chunk stay in the CPU cache.
"""

import torch

from keras_bandgnn.ops.backend.torch_fused import fused_operation

# Rows per chunk.
_ROWS = 4096


def _tanh(x):
    """Replace numbers by their hyperbolic tangent.

    It takes a fifth of the time of torch's tanh. Its rounding error of 2e-7 is small
    compared with states of size one.
    """
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def _gated_update(messages, states, kernel, bias, state_kernel, state_bias):
    """Return the new states [N, H], and the gates z, r, n and the state part of n."""
    count, width = states.shape
    gates = states.new_empty(count, 4 * width)
    out = torch.empty_like(states)
    two = 2 * width
    both = bias[:two] + state_bias[:two]
    for a in range(0, count, _ROWS):
        b = min(a + _ROWS, count)
        m, h, piece = messages[a:b], states[a:b], gates[a:b]
        switch, n, state_n = piece[:, :two], piece[:, two:-width], piece[:, -width:]
        torch.addmm(both, m, kernel[:, :two], out=switch)
        switch.addmm_(h, state_kernel[:, :two]).sigmoid_()
        torch.addmm(state_bias[two:], h, state_kernel[:, two:], out=state_n)
        torch.addmm(bias[two:], m, kernel[:, two:], out=n)
        _tanh(n.addcmul_(switch[:, width:], state_n))
        torch.lerp(n, h, switch[:, :width], out=out[a:b])
    return out, gates


def _gated_update_gradient(d_out, messages, states, kernel, state_kernel, gates):
    count, width = states.shape
    two = 2 * width
    d_messages, d_states = torch.empty_like(messages), torch.empty_like(states)
    # In the order n, z, r, n (states), the gates of either input are contiguous.
    swapped = torch.cat([kernel[:, two:], kernel[:, :two]], dim=1)
    d_swapped = torch.zeros_like(kernel)
    d_state_kernel = torch.zeros_like(state_kernel)
    d_bias = kernel.new_zeros(4 * width)
    room = states.new_empty(min(_ROWS, count), 4 * width)
    spare = states.new_empty(min(_ROWS, count), width)
    for a in range(0, count, _ROWS):
        b = min(a + _ROWS, count)
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
    return d_messages, d_states, d_kernel, d_message_bias, d_state_kernel, d_state_bias


def gated_rows(messages, states, kernel, bias, state_kernel, state_bias):
    """Return new states of a GRU, by unfused operations."""
    message_z, message_r, message_n = (messages @ kernel + bias).chunk(3, dim=-1)
    state_z, state_r, state_n = (states @ state_kernel + state_bias).chunk(3, dim=-1)
    update = torch.sigmoid(message_z + state_z)
    reset = torch.sigmoid(message_r + state_r)
    candidate = torch.tanh(message_n + reset * state_n)
    return candidate + update * (states - candidate)


gated_update = fused_operation(
    _gated_update,
    _gated_update_gradient,
    gated_rows,
    variables=6,
    results=("out", "gates"),
)
