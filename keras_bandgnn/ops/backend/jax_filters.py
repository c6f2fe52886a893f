"""Continuous-filter convolutions on CPUs in JAX, chunk by chunk.

Filters, messages and sums of a chunk of edges stay in the CPU cache. XLA would write
all of them and read them again, and would compute gathered rows once for each product
of the gradient that reads them.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from keras_bandgnn.ops.backend.jax_loops import scan_chunks

# Edges per chunk.
_EDGES = 4096


def _softplus(x):
    # The absolute error of the logarithm is that of 1 in float32.
    return jnp.maximum(x, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(x)))


def _picked(x, ids):
    return x.at[ids].get(mode="promise_in_bounds")


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


@functools.cache
def _filtered_sum(num_rows: int, activate: bool):
    def summed(chunk, ends, sent, edges, factor, *kernels):
        """Return the sums, and the hidden rows and filters of all edges."""

        def step(out, c):
            hidden, filters = _rows(kernels, c["e"], activate)
            rows = _picked(sent, c["s"]) * filters
            rows = rows * c["f"][:, None] if "f" in c else rows
            out = out.at[c["r"]].add(
                rows, mode="promise_in_bounds", indices_are_sorted=True
            )
            return out, (hidden, filters)

        out = jnp.zeros((num_rows, sent.shape[1]), sent.dtype)
        chunk = chunk or len(edges) + 1
        return scan_chunks(step, out, _scanned(ends, edges, factor), chunk)

    def gradient(chunk, kept, slope):
        """Return the gradients of `sent` and of the kernels and biases."""
        ends, sent, edges, factor, kernels, hidden, filters = kept
        last = kernels[2]

        def step(carry, c):
            d_sent, d_kernel, d_bias, d_last, d_last_bias = carry
            d = _picked(slope, c["r"])
            d = d * c["f"][:, None] if "f" in c else d
            d_sent = d_sent.at[c["s"]].add(d * c["w"], mode="promise_in_bounds")
            d = d * _picked(sent, c["s"])
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
        return d_sent, d_kernel, d_bias, d_last, d_last_bias

    def by_platform(function, *arguments):
        return jax.lax.platform_dependent(
            *arguments,
            cpu=functools.partial(function, _EDGES),
            default=functools.partial(function, None),
        )

    @jax.custom_vjp
    def run(ends, sent, edges, factor, *kernels):
        return by_platform(summed, ends, sent, edges, factor, *kernels)[0]

    def forward(*given):
        values = jax.tree.map(lambda leaf: leaf.value, given)
        _, _, edges, factor, *_ = given
        ends, sent, *rest = values
        if any(leaf.perturbed for leaf in jax.tree.leaves((edges, factor))):
            # Of forces: what JAX derives can be differentiated again.
            return jax.vjp(
                lambda *tensors: summed(None, ends, *tensors)[0], sent, *rest
            )
        out, (hidden, filters) = by_platform(summed, *values)
        edges, factor, *kernels = rest
        return out, (ends, sent, edges, factor, tuple(kernels), hidden, filters)

    def backward(kept, slope):
        if isinstance(slope, SymbolicZero):
            slope = jnp.zeros(slope.shape, slope.dtype)
        if not isinstance(kept, tuple):
            return None, *kept(slope)
        d_sent, *d_kernels = by_platform(gradient, kept, slope)
        return None, d_sent, None, None, *d_kernels

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run


def filtered_sum(sent, edges, factor, weights, ends, num_rows, activate):
    """Compute `ops.sparse.filtered_sum` of flat rows."""
    kernel, bias, last, last_bias = weights
    bias = jnp.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias
    if last_bias is None:
        last_bias = jnp.zeros(last.shape[1], last.dtype)
    run = _filtered_sum(num_rows, activate)
    return run(ends, sent, edges, factor, kernel, bias, last, last_bias)
