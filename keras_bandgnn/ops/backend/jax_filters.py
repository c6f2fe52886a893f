"""Continuous-filter convolutions and PaiNN's messages on CPUs in JAX, chunk by chunk.

Filters, messages and sums of a chunk of edges stay in the CPU cache. XLA would write
and read all of them, and gather rows again for every product of the gradient that reads
them.
"""

import functools
import math

import jax
import jax.numpy as jnp

from keras_bandgnn.ops.backend.jax_fused import fused_operation
from keras_bandgnn.ops.backend.jax_loops import (
    gather_rows,
    scan_chunks,
    scatter_add,
    segment_add_sorted,
)

# Edges per chunk.
_EDGES = 4096


def _softplus(x):
    # The absolute error of the logarithm is that of 1 in float32.
    return jnp.maximum(x, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(x)))


def _rows(kernels, edges, activate):
    """Return the hidden rows, without the shift, and the filters, float [E, F]."""
    kernel, bias, last, last_bias = kernels
    hidden = _softplus(edges @ kernel + bias)
    # The shift of the hidden softplus is part of the next bias.
    filters = hidden @ last + (last_bias - math.log(2.0) * jnp.sum(last, axis=0))
    if activate:
        filters = _softplus(filters) - math.log(2.0)
    return hidden, filters


def _scan(size, step, carry, ends, **rows):
    """Scan over the ends of edges and further rows; at once if size is 0 or False."""
    rows = {name: value for name, value in rows.items() if value is not None}
    rows |= {"s": ends[0], "r": ends[1]}
    return scan_chunks(step, carry, rows, size or len(ends[0]) + 1)


@functools.cache
def _filtered_sum(num_rows: int, activate: bool):
    def forward(chunked, sent, edges, factor, *kernels_and_ends):
        """Return the sums, and hidden rows and filters of all edges as residuals."""
        *kernels, ends = kernels_and_ends

        def step(out, c):
            hidden, filters = _rows(kernels, c["e"], activate)
            rows = gather_rows(sent, c["s"]) * filters
            rows = rows * c["f"][:, None] if "f" in c else rows
            return segment_add_sorted(out, c["r"], rows), (hidden, filters)

        out = jnp.zeros((num_rows, sent.shape[1]), sent.dtype)
        return _scan(chunked and _EDGES, step, out, ends, e=edges, f=factor)

    def backward(chunked, slope, residuals, sent, edges, factor, *kernels_and_ends):
        *kernels, ends = kernels_and_ends
        (hidden, filters), last = residuals, kernels[2]

        def step(carry, c):
            d_sent, d_kernel, d_bias, d_last, d_last_bias = carry
            d = gather_rows(slope, c["r"])
            d = d * c["f"][:, None] if "f" in c else d
            d_sent = scatter_add(d_sent, c["s"], d * c["w"])
            d = d * gather_rows(sent, c["s"])
            if activate:
                # The derivative of a softplus with value y is 1 - exp(-y).
                d = d * (1.0 - 0.5 * jnp.exp(-c["w"]))
            d_last_bias = d_last_bias + jnp.sum(d, axis=0)
            d_last = d_last + c["h"].T @ d
            d = (d @ last.T) * (1.0 - jnp.exp(-c["h"]))
            d_bias = d_bias + jnp.sum(d, axis=0)
            d_kernel = d_kernel + c["e"].T @ d
            return (d_sent, d_kernel, d_bias, d_last, d_last_bias), None

        carry = tuple(map(jnp.zeros_like, (sent, *kernels)))
        rows = {"e": edges, "f": factor, "h": hidden, "w": filters}
        carry, _ = _scan(chunked and _EDGES, step, carry, ends, **rows)
        d_sent, d_kernel, d_bias, d_last, d_last_bias = carry
        d_last = d_last - math.log(2.0) * d_last_bias
        return d_sent, None, None, d_kernel, d_bias, d_last, d_last_bias

    return fused_operation(forward, backward, fixed=(1, 2))


def filtered_sum(sent, edges, factor, weights, ends, num_rows, activate):
    """Compute `ops.sparse.filtered_sum` of flat rows."""
    kernel, bias, last, last_bias = weights
    bias = jnp.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias
    if last_bias is None:
        last_bias = jnp.zeros(last.shape[1], last.dtype)
    run = _filtered_sum(num_rows, activate)
    return run(sent, edges, factor, kernel, bias, last, last_bias, ends)


# Sums of scalar and vector messages.

# Elements of a chunk, for each of the three parts of a filter.
_NUMBERS = 1 << 16


def _chunk(kernel):
    return min(_EDGES, max(256, _NUMBERS // (kernel.shape[1] // 3)))


def _vector_sum(chunked, sent, vectors, rows, directions, kernel, ends):
    def step(out, c):
        messages = gather_rows(sent, c["s"]) * (c["e"] @ kernel)
        scalar, radial, carried = jnp.split(messages, 3, axis=1)
        parts = [radial * c["d"][:, axis : axis + 1] for axis in range(3)]
        if vectors is not None:
            old = jnp.split(gather_rows(vectors, c["s"]), 3, axis=1)
            parts = [p + carried * v for p, v in zip(parts, old, strict=True)]
        return segment_add_sorted(
            out, c["r"], jnp.concatenate([scalar, *parts], axis=1)
        ), None

    # An extra row for padding.
    out = jnp.zeros((len(sent) + 1, kernel.shape[1] // 3 * 4), sent.dtype)
    size = chunked and _chunk(kernel)
    return _scan(size, step, out, ends, e=rows, d=directions)[0][:-1], None


def _vector_sum_gradient(
    chunked, slope, _, sent, vectors, rows, directions, kernel, ends
):
    slope = jnp.pad(slope, ((0, 1), (0, 0)))

    def step(carry, c):
        d_sent, d_vectors, d_kernel = carry
        filters, part = c["e"] @ kernel, gather_rows(sent, c["s"])
        d_scalar, *d = jnp.split(gather_rows(slope, c["r"]), 4, axis=1)
        d_radial = sum(d[axis] * c["d"][:, axis : axis + 1] for axis in range(3))
        d_carried = jnp.zeros_like(d_scalar)
        if vectors is not None:
            old = jnp.split(gather_rows(vectors, c["s"]), 3, axis=1)
            d_carried = sum(a * v for a, v in zip(d, old, strict=True))
            carried = jnp.split(part, 3, axis=1)[2] * jnp.split(filters, 3, axis=1)[2]
            d_old = jnp.concatenate([axis * carried for axis in d], axis=1)
            d_vectors = scatter_add(d_vectors, c["s"], d_old)
        d_part = jnp.concatenate([d_scalar, d_radial, d_carried], axis=1)
        d_sent = scatter_add(d_sent, c["s"], d_part * filters)
        return (d_sent, d_vectors, d_kernel + c["e"].T @ (d_part * part)), None

    carry = jax.tree.map(jnp.zeros_like, (sent, vectors, kernel))
    size = chunked and _chunk(kernel)
    carry, _ = _scan(size, step, carry, ends, e=rows, d=directions)
    return *carry[:2], None, None, carry[2]


vector_sum = fused_operation(_vector_sum, _vector_sum_gradient, fixed=(2, 3))
