"""Continuous-filter convolutions and PaiNN's messages on CPUs in JAX, chunk by chunk.

Filters, messages and sums of a chunk of edges stay in the CPU cache. XLA would write
all of them and read them again, and would compute gathered rows once for each product
of the gradient that reads them.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from keras_bandgnn.ops.backend.jax_loops import picked, scan_chunks, spread, summed

# Edges per chunk.
_EDGES = 4096


def _softplus(x):
    # The absolute error of the logarithm is that of 1 in float32.
    return jnp.maximum(x, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(x)))


def _rows(kernels, edges, activate):
    """Return hidden rows, without their shift, and filters, float [E, F]."""
    kernel, bias, last, last_bias = kernels
    hidden = _softplus(edges @ kernel + bias)
    # The shift of the hidden softplus is part of the next bias.
    filters = hidden @ last + (last_bias - math.log(2.0) * jnp.sum(last, axis=0))
    if activate:
        filters = _softplus(filters) - math.log(2.0)
    return hidden, filters


def _scanned(ends, edges, factor, **others):
    rows = {"s": ends[0], "r": ends[1], "e": edges, "f": factor, **others}
    return {name: value for name, value in rows.items() if value is not None}


def _filtered(sums, gradient, fixed):
    """Return an operation of `(ends, *tensors)` with a gradient of its own.

    Args:
        sums: `sums(chunk, ends, *tensors)` returns the output and what the gradient
            keeps of it; without a chunk, of all edges at once.
        gradient: `gradient(chunk, ends, tensors, kept, slope)` returns the gradients of
            the tensors.
        fixed: Places of the tensors without a gradient there. Gradients of forces go
            through them: those, JAX derives.
    """

    def by_platform(function, *arguments):
        return jax.lax.platform_dependent(
            *arguments,
            cpu=functools.partial(function, _EDGES),
            default=functools.partial(function, None),
        )

    @jax.custom_vjp
    def run(ends, *tensors):
        return by_platform(sums, ends, *tensors)[0]

    def forward(*given):
        ends, *tensors = jax.tree.map(lambda leaf: leaf.value, given)
        constants = [given[1 + place] for place in fixed]
        if any(leaf.perturbed for leaf in jax.tree.leaves(constants)):
            # What JAX derives can be differentiated again.
            return jax.vjp(lambda *t: sums(None, ends, *t)[0], *tensors)
        out, kept = by_platform(sums, ends, *tensors)
        return out, (ends, tensors, kept)

    def backward(kept, slope):
        if isinstance(slope, SymbolicZero):
            slope = jnp.zeros(slope.shape, slope.dtype)
        if not isinstance(kept, tuple):
            return None, *kept(slope)
        slopes = by_platform(gradient, *kept, slope)
        return None, *slopes

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run


@functools.cache
def _filtered_sum(num_rows: int, activate: bool):
    def sums(chunk, ends, sent, edges, factor, *kernels):
        """Return the sums, and the hidden rows and filters of all edges."""

        def step(out, c):
            hidden, filters = _rows(kernels, c["e"], activate)
            rows = picked(sent, c["s"]) * filters
            rows = rows * c["f"][:, None] if "f" in c else rows
            return summed(out, c["r"], rows), (hidden, filters)

        out = jnp.zeros((num_rows, sent.shape[1]), sent.dtype)
        chunk = chunk or len(edges) + 1
        return scan_chunks(step, out, _scanned(ends, edges, factor), chunk)

    def gradient(chunk, ends, tensors, kept, slope):
        sent, edges, factor, *kernels = tensors
        (hidden, filters), last = kept, kernels[2]

        def step(carry, c):
            d_sent, d_kernel, d_bias, d_last, d_last_bias = carry
            d = picked(slope, c["r"])
            d = d * c["f"][:, None] if "f" in c else d
            d_sent = spread(d_sent, c["s"], d * c["w"])
            d = d * picked(sent, c["s"])
            if activate:
                # The derivative of a softplus with value y is 1 - exp(-y).
                d = d * (1.0 - 0.5 * jnp.exp(-c["w"]))
            d_last_bias = d_last_bias + jnp.sum(d, axis=0)
            d_last = d_last + c["h"].T @ d
            d = (d @ last.T) * (1.0 - jnp.exp(-c["h"]))
            d_bias = d_bias + jnp.sum(d, axis=0)
            d_kernel = d_kernel + c["e"].T @ d
            return (d_sent, d_kernel, d_bias, d_last, d_last_bias), None

        carry = tuple(jnp.zeros_like(each) for each in (sent, *kernels))
        rows = _scanned(ends, edges, factor, h=hidden, w=filters)
        carry, _ = scan_chunks(step, carry, rows, chunk or len(edges) + 1)
        d_sent, d_kernel, d_bias, d_last, d_last_bias = carry
        d_last = d_last - math.log(2.0) * d_last_bias
        return d_sent, None, None, d_kernel, d_bias, d_last, d_last_bias

    return _filtered(sums, gradient, (1, 2))


def filtered_sum(sent, edges, factor, weights, ends, num_rows, activate):
    """Compute `ops.sparse.filtered_sum` of flat rows."""
    kernel, bias, last, last_bias = weights
    bias = jnp.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias
    if last_bias is None:
        last_bias = jnp.zeros(last.shape[1], last.dtype)
    run = _filtered_sum(num_rows, activate)
    return run(ends, sent, edges, factor, kernel, bias, last, last_bias)


# Sums of scalar and vector messages.

# Numbers in the rows of a chunk, for each of the parts of a filter.
_NUMBERS = 1 << 16


def _chunk(kernel):
    return min(_EDGES, max(256, _NUMBERS // (kernel.shape[1] // 3)))


def _vector_sums(chunk, ends, sent, vectors, rows, directions, kernel):
    chunk = chunk and _chunk(kernel)

    def step(out, c):
        messages = picked(sent, c["s"]) * (c["e"] @ kernel)
        scalar, radial, carried = jnp.split(messages, 3, axis=1)
        parts = [radial * c["d"][:, axis : axis + 1] for axis in range(3)]
        if vectors is not None:
            old = jnp.split(picked(vectors, c["s"]), 3, axis=1)
            parts = [p + carried * v for p, v in zip(parts, old, strict=True)]
        return summed(out, c["r"], jnp.concatenate([scalar, *parts], axis=1)), None

    # One more row, for padding.
    out = jnp.zeros((len(sent) + 1, kernel.shape[1] // 3 * 4), sent.dtype)
    scanned = {"s": ends[0], "r": ends[1], "e": rows, "d": directions}
    out, _ = scan_chunks(step, out, scanned, chunk or len(rows) + 1)
    return out[:-1], None


def _vector_gradient(chunk, ends, tensors, kept, slope):
    sent, vectors, rows, directions, kernel = tensors
    chunk, slope = chunk and _chunk(kernel), jnp.pad(slope, ((0, 1), (0, 0)))

    def step(carry, c):
        d_sent, d_vectors, d_kernel = carry
        filters, own = c["e"] @ kernel, picked(sent, c["s"])
        d_scalar, *d = jnp.split(picked(slope, c["r"]), 4, axis=1)
        d_radial = sum(d[axis] * c["d"][:, axis : axis + 1] for axis in range(3))
        d_carried = jnp.zeros_like(d_scalar)
        if vectors is not None:
            old = jnp.split(picked(vectors, c["s"]), 3, axis=1)
            d_carried = sum(a * v for a, v in zip(d, old, strict=True))
            carried = jnp.split(own, 3, axis=1)[2] * jnp.split(filters, 3, axis=1)[2]
            parts = jnp.concatenate([part * carried for part in d], axis=1)
            d_vectors = spread(d_vectors, c["s"], parts)
        part = jnp.concatenate([d_scalar, d_radial, d_carried], axis=1)
        d_sent = spread(d_sent, c["s"], part * filters)
        return (d_sent, d_vectors, d_kernel + c["e"].T @ (part * own)), None

    carry = jax.tree.map(jnp.zeros_like, (sent, vectors, kernel))
    scanned = {"s": ends[0], "r": ends[1], "e": rows, "d": directions}
    carry, _ = scan_chunks(step, carry, scanned, chunk or len(rows) + 1)
    return *carry[:2], None, None, carry[2]


_vectors = _filtered(_vector_sums, _vector_gradient, (2, 3))


def vector_sum(sent, vectors, rows, directions, kernel, sender, receiver):
    """Compute `ops.edges.vector_sum` of flat rows."""
    return _vectors((sender, receiver), sent, vectors, rows, directions, kernel)
