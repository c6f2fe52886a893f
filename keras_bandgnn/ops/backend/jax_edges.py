"""Fused messages of edges on CPUs in JAX, summed chunk by chunk.

No array with a row of channels per edge is stored; XLA would write and read it for each
operation. The rows of a chunk stay in the CPU cache, and the gradient recomputes
them. The ends of edges are senders and receivers, int32 [E], sorted by receiver,
with N for padding.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from keras_bandgnn.ops.backend.jax_fused import fused_operation
from keras_bandgnn.ops.backend.jax_loops import (
    gather_rows,
    scan_chunks,
    scatter_add,
    segment_add_sorted,
)

# Edges per chunk.
_EDGES = 8192


def ends(sender, receiver, count):
    """Return the ends of edges between `count` nodes."""
    del count
    return sender.astype("int32"), receiver.astype("int32")


def _received(x):
    """Append a row of zeros for padding: rows [N + 1, H] to gather by receiver."""
    return jnp.pad(x, ((0, 1), (0, 0)))


def _room(x):
    return jnp.zeros((x.shape[0] + 1, x.shape[1]), x.dtype)


def _scan(chunked, step, carry, ends, **rows):
    """Scan over the ends of edges and other rows of edges, if any."""
    sender, receiver = ends
    rows = {name: value for name, value in rows.items() if value is not None}
    rows |= {"s": sender, "r": receiver}
    return scan_chunks(step, carry, rows, _EDGES if chunked else len(sender) + 1)


# Sums of relu(x[sender] + e), with e by edge [E, H], or rows of a table [C, H] by id
# [E], which is then the third of the ends.


def _split(e, ends):
    """Return the ends, and arrays of edges from which `_edge_rows` reads."""
    ends, ids = ends[:2], ends[2:]
    return ends, {"id": ids[0]} if ids else {"e": e}


def _edge_rows(e, c):
    return gather_rows(e, c["id"]) if "id" in c else c["e"]


def _relu_sum(chunked, x, e, ends):
    ends, rows = _split(e, ends)

    def step(out, c):
        return segment_add_sorted(
            out, c["r"], jax.nn.relu(gather_rows(x, c["s"]) + _edge_rows(e, c))
        ), None

    return _scan(chunked, step, _room(x), ends, **rows)[0][:-1], None


def _relu_sum_gradient(chunked, slope, _, x, e, ends):
    slope = _received(slope)
    ends, rows = _split(e, ends)

    def step(carry, c):
        d_x, d_e = carry
        rows = gather_rows(x, c["s"]) + _edge_rows(e, c)
        d = jnp.where(rows > 0, gather_rows(slope, c["r"]), 0.0)
        d_x = scatter_add(d_x, c["s"], d)
        if "id" in c:
            return (d_x, scatter_add(d_e, c["id"], d)), None
        return (d_x, None), d

    room = jnp.zeros_like(e) if "id" in rows else None
    (d_x, d_table), d_e = _scan(chunked, step, (jnp.zeros_like(x), room), ends, **rows)
    return d_x, d_table if "id" in rows else d_e


_relu_sum = fused_operation(_relu_sum, _relu_sum_gradient)


def relu_sum(x, e, ids, ends):
    """Compute `ops.edges.relu_sum` of flat rows."""
    return _relu_sum(x, e, ends if ids is None else (*ends, ids))


# Sums of gates and of gated messages: `both` [N, 2 U] holds the senders' parts of the
# logits of gates, and their messages.


def _gate_rows(sent, received, c):
    logits = gather_rows(sent, c["s"]) + gather_rows(received, c["r"])
    # Logits are an output: they are 0 for padding.
    real = (c["r"] < len(received) - 1)[:, None]
    return jnp.where(real, logits + c["e"] if "e" in c else logits, 0.0), real


def _gated_sum(chunked, both, received, e, ends):
    (sent, messages), read = jnp.split(both, 2, axis=1), _received(received)

    def step(out, c):
        logits, _ = _gate_rows(sent, read, c)
        gates = jax.nn.sigmoid(logits)
        rows = gates, gates * gather_rows(messages, c["s"])
        out = tuple(map(segment_add_sorted, out, (c["r"], c["r"]), rows))
        return out, logits if "e" in c else None

    out, logits = _scan(chunked, step, (_room(received),) * 2, ends, e=e)
    return (jnp.concatenate(out, axis=1)[:-1], logits), None


def _gated_sum_gradient(chunked, slopes, _, both, received, e, ends):
    slope, d_logits = slopes
    sent, messages = jnp.split(both, 2, axis=1)
    slope, message_slope = jnp.split(_received(slope), 2, axis=1)
    read = _received(received)

    def step(carry, c):
        d_sent, d_messages, d_received = carry
        logits, real = _gate_rows(sent, read, c)
        gates, d = jax.nn.sigmoid(logits), gather_rows(message_slope, c["r"])
        d_gates = gather_rows(slope, c["r"]) + d * gather_rows(messages, c["s"])
        d_gates = d_gates * gates * (1.0 - gates)
        if "d" in c:
            d_gates = d_gates + jnp.where(real, c["d"], 0.0)
        d_sent = scatter_add(d_sent, c["s"], d_gates)
        d_messages = scatter_add(d_messages, c["s"], d * gates)
        carry = d_sent, d_messages, segment_add_sorted(d_received, c["r"], d_gates)
        return carry, d_gates if "e" in c else None

    carry = jnp.zeros_like(sent), jnp.zeros_like(sent), _room(received)
    carry, d_e = _scan(chunked, step, carry, ends, e=e, d=d_logits)
    *d_both, d_received = carry
    return jnp.concatenate(d_both, axis=1), d_received[:-1], d_e


gated_sum = fused_operation(_gated_sum, _gated_sum_gradient)


# Scores of attention, and sums weighted by shares.


def _by_head(kernel):
    """Return the kernel [K, D] as a block-diagonal matrix [K D, K]."""
    heads, width = kernel.shape
    columns = kernel[:, :, None] * jnp.eye(heads, dtype=kernel.dtype)[:, None]
    return columns.reshape(heads * width, heads)


def _product(rows, columns):
    return jnp.matmul(rows, columns, precision="highest")


@functools.cache
def _scores(slope: float):
    def logits(sent, read, c):
        rows = gather_rows(sent, c["s"]) + gather_rows(read, c["r"])
        return rows + c["e"] if "e" in c else rows

    def forward(chunked, sent, received, e, kernel, ends):
        read, columns = _received(received), _by_head(kernel)

        def step(_, c):
            rows = jax.nn.leaky_relu(logits(sent, read, c), slope)
            real = c["r"] < len(received)
            return None, jnp.where(real[:, None], _product(rows, columns), 0.0)

        return _scan(chunked, step, None, ends, e=e)[1], None

    def backward(chunked, d_out, _, sent, received, e, kernel, ends):
        read, flat = _received(received), kernel.reshape(1, -1)

        def step(carry, c):
            d_sent, d_received, d_kernel = carry
            rows = logits(sent, read, c)
            # The score of padding is 0 for any rows.
            d = jnp.where((c["r"] < len(received))[:, None], c["d"], 0.0)
            d = jnp.repeat(d, kernel.shape[1], axis=1)
            part = d * jax.nn.leaky_relu(rows, slope)
            d = d * flat * jnp.where(rows >= 0, 1.0, slope)
            d_kernel = d_kernel + jnp.sum(part, axis=0)
            carry = (
                scatter_add(d_sent, c["s"], d),
                segment_add_sorted(d_received, c["r"], d),
                d_kernel,
            )
            return carry, d if "e" in c else None

        carry = jnp.zeros_like(sent), _room(received), jnp.zeros(flat.shape[1])
        carry, d_e = _scan(chunked, step, carry, ends, e=e, d=d_out)
        d_sent, d_received, d_kernel = carry
        return d_sent, d_received[:-1], d_e, d_kernel.reshape(kernel.shape)

    return fused_operation(forward, backward)


def scores(sent, received, e, kernel, ends, slope):
    """Compute `ops.edges.scores` of flat rows."""
    return _scores(slope)(sent, received, e, kernel, ends)


def _share_sum(chunked, shares, x, ends):
    def step(out, c):
        rows = gather_rows(x, c["s"])
        heads = rows.reshape(*c["shares"].shape, -1) * c["shares"][:, :, None]
        return segment_add_sorted(out, c["r"], heads.reshape(rows.shape)), None

    return _scan(chunked, step, _room(x), ends, shares=shares)[0][:-1], None


def _share_sum_gradient(chunked, slope, _, shares, x, ends):
    count = shares.shape[1]
    slope, columns = _received(slope), np.ones((count, x.shape[1] // count), x.dtype)
    columns = _by_head(jnp.asarray(columns))

    def step(d_x, c):
        rows, d = gather_rows(x, c["s"]), gather_rows(slope, c["r"])
        heads = d.reshape(*c["shares"].shape, -1) * c["shares"][:, :, None]
        d_x = scatter_add(d_x, c["s"], heads.reshape(d.shape))
        return d_x, _product(rows * d, columns)

    d_x, d_shares = _scan(chunked, step, jnp.zeros_like(x), ends, shares=shares)
    return d_shares, d_x


share_sum = fused_operation(_share_sum, _share_sum_gradient)
