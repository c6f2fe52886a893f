"""Messages of edges on CPUs in JAX, chunk by chunk and summed at once.

No array with a row of channels per edge is stored, which XLA would write and read again
for each operation: a chunk of them stays in the CPU cache, and the gradient computes
it again. Edges are sorted by receiver, with N for padding. On other devices the same
operations are those of all edges.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from keras_bandgnn.ops.backend import jax_filters
from keras_bandgnn.ops.backend.jax_loops import picked, scan_chunks, spread, summed

# Edges per chunk.
_EDGES = 8192


def _received(x):
    """Return rows [N + 1, H] to pick by receiver: those of padding are 0."""
    return jnp.pad(x, ((0, 1), (0, 0)))


def _room(x):
    return jnp.zeros((x.shape[0] + 1, x.shape[1]), x.dtype)


def _fused(whole, chunked, gradient):
    """Return an operation of `(ends, *tensors)` with a gradient of its own.

    Args:
        whole: The operation on all edges at once, differentiable.
        chunked: The same, chunk by chunk.
        gradient: Takes `(ends, tensors, slopes)`, returns gradients of the tensors.
    """

    @jax.custom_vjp
    def run(ends, *tensors):
        return jax.lax.platform_dependent(ends, *tensors, cpu=chunked, default=whole)

    def forward(ends, *tensors):
        return run(ends, *tensors), (ends, tensors)

    def of_whole(ends, tensors, slopes):
        return jax.vjp(lambda *given: whole(ends, *given), *tensors)[1](slopes)

    def backward(kept, slopes):
        slopes = jax.lax.platform_dependent(
            *kept, slopes, cpu=gradient, default=of_whole
        )
        return None, *slopes

    run.defvjp(forward, backward)
    return run


def _rows(ends, **others):
    """Return what scans read: the ends of edges and other rows of edges, if any."""
    sender, receiver = ends
    others = {name: value for name, value in others.items() if value is not None}
    return {"s": sender, "r": receiver, **others}


# Sums of relu(x[sender] + edges).


def _relu_sum(ends, x, e):
    def step(out, c):
        return summed(out, c["r"], jax.nn.relu(picked(x, c["s"]) + c["e"])), None

    return scan_chunks(step, _room(x), _rows(ends, e=e), _EDGES)[0][:-1]


def _relu_sum_whole(ends, x, e):
    rows = jax.nn.relu(picked(x, ends[0]) + e)
    return summed(_room(x), ends[1], rows)[:-1]


def _relu_sum_gradient(ends, tensors, slope):
    x, e = tensors
    slope = _received(slope)

    def step(d_x, c):
        rows = picked(x, c["s"]) + c["e"]
        d = jnp.where(rows > 0, picked(slope, c["r"]), 0.0)
        return spread(d_x, c["s"], d), d

    return scan_chunks(step, jnp.zeros_like(x), _rows(ends, e=e), _EDGES)


# Sums of messages behind gates.


def _gate_rows(sent, received, c):
    logits = picked(sent, c["s"]) + picked(received, c["r"])
    # Logits are an output, so that those of padding are 0.
    real = (c["r"] < len(received) - 1)[:, None]
    return jnp.where(real, logits + c["e"] if "e" in c else logits, 0.0), real


def _gated_step(both, received):
    (sent, messages), received = jnp.split(both, 2, axis=1), _received(received)

    def step(out, c):
        logits, _ = _gate_rows(sent, received, c)
        gates = jax.nn.sigmoid(logits)
        rows = gates, gates * picked(messages, c["s"])
        out = tuple(map(summed, out, (c["r"], c["r"]), rows))
        return out, logits if "e" in c else None

    return step


def _gated_sum(ends, both, received, e):
    step, rows = _gated_step(both, received), _rows(ends, e=e)
    out, logits = scan_chunks(step, (_room(received),) * 2, rows, _EDGES)
    return jnp.concatenate(out, axis=1)[:-1], logits


def _gated_sum_whole(ends, both, received, e):
    step, rows = _gated_step(both, received), _rows(ends, e=e)
    out, logits = step((_room(received),) * 2, rows)
    return jnp.concatenate(out, axis=1)[:-1], logits


def _gated_sum_gradient(ends, tensors, slopes):
    both, received, e = tensors
    slope, d_logits = slopes
    sent, messages = jnp.split(both, 2, axis=1)
    slope, message_slope = jnp.split(_received(slope), 2, axis=1)
    read = _received(received)

    def step(carry, c):
        d_sent, d_messages, d_received = carry
        logits, real = _gate_rows(sent, read, c)
        gates, d = jax.nn.sigmoid(logits), picked(message_slope, c["r"])
        own = picked(slope, c["r"]) + d * picked(messages, c["s"])
        own = own * gates * (1.0 - gates)
        if "d" in c:
            own = own + jnp.where(real, c["d"], 0.0)
        d_sent = spread(d_sent, c["s"], own)
        d_messages = spread(d_messages, c["s"], d * gates)
        carry = d_sent, d_messages, summed(d_received, c["r"], own)
        return carry, own if "e" in c else None

    carry = jnp.zeros_like(sent), jnp.zeros_like(sent), _room(received)
    rows = _rows(ends, e=e, d=d_logits)
    (*d_both, d_received), d_e = scan_chunks(step, carry, rows, _EDGES)
    return jnp.concatenate(d_both, axis=1), d_received[:-1], d_e


# Scores of attention, and sums by their shares.


def _by_head(kernel):
    """Return the kernel [K, D] as columns [K D, K], for a product by head."""
    heads, width = kernel.shape
    columns = kernel[:, :, None] * jnp.eye(heads, dtype=kernel.dtype)[:, None]
    return columns.reshape(heads * width, heads)


def _product(rows, columns):
    return jnp.matmul(rows, columns, precision="highest")


@functools.cache
def _scores(slope: float):
    def logits(sent, wanted, c):
        rows = picked(sent, c["s"]) + picked(wanted, c["r"])
        return rows + c["e"] if "e" in c else rows

    def scored(wanted, sent, kernel):
        wanted, columns = _received(wanted), _by_head(kernel)

        def step(_, c):
            rows = jax.nn.leaky_relu(logits(sent, wanted, c), slope)
            real = c["r"] < len(wanted) - 1
            return None, jnp.where(real[:, None], _product(rows, columns), 0.0)

        return step

    def chunked(ends, sent, wanted, e, kernel):
        step = scored(wanted, sent, kernel)
        return scan_chunks(step, None, _rows(ends, e=e), _EDGES)[1]

    def whole(ends, sent, wanted, e, kernel):
        return scored(wanted, sent, kernel)(None, _rows(ends, e=e))[1]

    def gradient(ends, tensors, d_out):
        sent, wanted, e, kernel = tensors
        read, flat = _received(wanted), kernel.reshape(1, -1)

        def step(carry, c):
            d_sent, d_wanted, d_kernel = carry
            rows = logits(sent, read, c)
            # Padding has a score of 0, whatever its rows.
            given = jnp.where((c["r"] < len(wanted))[:, None], c["d"], 0.0)
            given = jnp.repeat(given, kernel.shape[1], axis=1)
            part = given * jax.nn.leaky_relu(rows, slope)
            d = given * flat * jnp.where(rows >= 0, 1.0, slope)
            d_kernel = d_kernel + jnp.sum(part, axis=0)
            carry = spread(d_sent, c["s"], d), summed(d_wanted, c["r"], d), d_kernel
            return carry, d if "e" in c else None

        carry = jnp.zeros_like(sent), _room(wanted), jnp.zeros(flat.shape[1])
        rows = _rows(ends, e=e, d=d_out)
        (d_sent, d_wanted, d_kernel), d_e = scan_chunks(step, carry, rows, _EDGES)
        return d_sent, d_wanted[:-1], d_e, d_kernel.reshape(kernel.shape)

    return _fused(whole, chunked, gradient)


def _shared_step(x):
    def step(out, c):
        rows, shares = picked(x, c["s"]), c["shares"]
        heads = rows.reshape(*shares.shape, -1) * shares[:, :, None]
        return summed(out, c["r"], heads.reshape(rows.shape)), None

    return step


def _share_sum(ends, shares, x):
    rows = _rows(ends, shares=shares)
    return scan_chunks(_shared_step(x), _room(x), rows, _EDGES)[0][:-1]


def _share_sum_whole(ends, shares, x):
    return _shared_step(x)(_room(x), _rows(ends, shares=shares))[0][:-1]


def _share_sum_gradient(ends, tensors, slope):
    shares, x = tensors
    count = shares.shape[1]
    slope, columns = _received(slope), np.ones((count, x.shape[1] // count), x.dtype)
    columns = _by_head(jnp.asarray(columns))

    def step(d_x, c):
        rows, d = picked(x, c["s"]), picked(slope, c["r"])
        heads = d.reshape(*c["shares"].shape, -1) * c["shares"][:, :, None]
        d_x = spread(d_x, c["s"], heads.reshape(d.shape))
        return d_x, _product(rows * d, columns)

    rows = _rows(ends, shares=shares)
    d_x, d_shares = scan_chunks(step, jnp.zeros_like(x), rows, _EDGES)
    return d_shares, d_x


_relu = _fused(_relu_sum_whole, _relu_sum, _relu_sum_gradient)
_gated = _fused(_gated_sum_whole, _gated_sum, _gated_sum_gradient)
_shared = _fused(_share_sum_whole, _share_sum, _share_sum_gradient)


class FusedEdges:
    """The operations of `ops.edges`, of rows without the axis G."""

    ids = "int32"
    # Compiled, the operations one by one are as fast.
    score_attention = None

    def __init__(self, apply_to):
        self.apply_to = apply_to

    @staticmethod
    def pointer(receiver, num_nodes):
        """Return None: sums are by receiver."""

    @staticmethod
    def relu_sum(x, e, sender, receiver, pointer):
        """See `ops.edges`."""
        return _relu((sender, receiver), x, e)

    @staticmethod
    def gated_sum(both, received, e, sender, receiver, pointer):
        """See `ops.edges`."""
        return _gated((sender, receiver), both, received, e)

    @staticmethod
    def scores(sent, wanted, e, kernel, slope, sender, receiver, pointer):
        """See `ops.edges`."""
        return _scores(slope)((sender, receiver), sent, wanted, e, kernel)

    @staticmethod
    def share_sum(shares, x, sender, receiver, pointer):
        """See `ops.edges`."""
        return _shared((sender, receiver), shares, x)

    @staticmethod
    def vector_sum(sent, vectors, rows, directions, kernel, sender, receiver, pointer):
        """See `ops.edges`."""
        tensors = sent, vectors, rows, directions, kernel
        return jax_filters.vector_sum(*tensors, sender, receiver)
