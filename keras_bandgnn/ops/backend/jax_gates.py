"""The gates of a GRU in JAX, chunk by chunk on CPUs."""

import functools

import jax
import jax.numpy as jnp

from keras_bandgnn.ops.backend.jax_loops import scan_chunks

# Rows per chunk, whose values stay in the CPU cache.
ROWS = 1024


def in_chunks(rows: int) -> bool:
    """Return whether there are enough rows for a loop over chunks."""
    return rows >= 4 * ROWS


def gated(messages, states, kernel, bias, state_kernel, state_bias):
    """Compute a GRU for rows, and the residuals of its gradient.

    Args:
        messages: [R, U].
        states: [R, H].
        kernel: [U, 3 H], of the update gate z, the reset gate r and the candidate n.
        bias: [3 H].
        state_kernel: [H, 3 H].
        state_bias: [3 H].

    Returns:
        (new states [R, H], z and r [R, 2 H], the state's part of n [R, H], n [R, H]).
    """
    width = states.shape[-1]
    gates = 2 * width
    message_part = messages @ kernel + bias
    state_part = states @ state_kernel + state_bias
    switches = jax.nn.sigmoid(message_part[..., :gates] + state_part[..., :gates])
    update, reset = switches[..., :width], switches[..., width:]
    state_n = state_part[..., gates:]
    candidate = jnp.tanh(message_part[..., gates:] + reset * state_n)
    new = candidate + update * (states - candidate)
    return new, switches, state_n, candidate


def _gradients(slope, messages, states, switches, state_n, candidate, weights):
    """Return the gradients of messages and states, and those of the weights."""
    kernel, _, state_kernel, _ = weights
    width = states.shape[-1]
    update, reset = switches[:, :width], switches[:, width:]
    of_n = slope * (1 - update) * (1 - candidate * candidate)
    of_z = slope * (states - candidate) * update * (1 - update)
    of_r = of_n * state_n * reset * (1 - reset)
    of_state_n = of_n * reset
    of_messages = jnp.concatenate([of_z, of_r, of_n], axis=1)
    of_states = jnp.concatenate([of_z, of_r, of_state_n], axis=1)
    bias = of_messages.sum(axis=0)
    state_bias = jnp.concatenate([bias[: 2 * width], of_state_n.sum(axis=0)])
    rows = (of_messages @ kernel.T, of_states @ state_kernel.T + slope * update)
    of_weights = (
        messages.T @ of_messages,
        bias,
        states.T @ of_states,
        state_bias,
    )
    return rows, of_weights


def _by_name(*rows):
    return {str(number): array for number, array in enumerate(rows)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gated_by_chunks(size, messages, states, *weights):
    """Compute the new states of `gated` by chunks, with a custom gradient.

    Args:
        size: Rows of a chunk.
        messages: [R, U].
        states: [R, H].
        *weights: As of `gated`.
    """

    def step(carry, rows):
        return carry, gated(*rows.values(), *weights)[0]

    return scan_chunks(step, (), _by_name(messages, states), size, messages)[1]


def _forward(size, messages, states, *weights):
    def step(carry, rows):
        return carry, gated(*rows.values(), *weights)

    rows = _by_name(messages, states)
    new, *gates = scan_chunks(step, (), rows, size, messages)[1]
    return new, (messages, states, gates, weights)


def _backward(size, residuals, slope):
    messages, states, gates, weights = residuals

    def step(total, rows):
        of_rows, more = _gradients(*rows.values(), weights)
        return [a + b for a, b in zip(total, more, strict=True)], of_rows

    total = [jnp.zeros_like(weight) for weight in weights]
    rows = _by_name(slope, messages, states, *gates)
    total, of_rows = scan_chunks(step, total, rows, size, slope)
    return *of_rows, *total


gated_by_chunks.defvjp(_forward, _backward)
