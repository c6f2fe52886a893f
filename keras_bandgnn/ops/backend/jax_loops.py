"""Loops over chunks of rows in JAX."""

import jax
import jax.numpy as jnp


def scan_chunks(step, carry, rows, size):
    """Scan `step` over chunks of rows; see `ops.loops`."""
    count = jax.tree.leaves(rows)[0].shape[0]
    pieces = count // size
    if not pieces:
        return step(carry, rows)

    def once(carry, number):
        # Slicing reads the arrays in place: padding them to whole chunks would copy
        # all of them, and scanning over reshaped rows would copy every chunk.
        piece = {
            name: jax.lax.dynamic_slice_in_dim(array, number * size, size)
            for name, array in rows.items()
        }
        return step(carry, piece)

    carry, out = jax.lax.scan(once, carry, jnp.arange(pieces))
    out = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), out)
    if count % size:
        rest = {name: array[pieces * size :] for name, array in rows.items()}
        carry, last = step(carry, rest)
        out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, last)
    return carry, out


def late_zeros(like):
    """Return zeros that XLA cannot hoist before `like`; see `ops.loops`."""
    bits = jax.lax.bitcast_convert_type(like.reshape(-1)[0], "uint32")
    sign = jax.lax.shift_right_logical(bits, jnp.uint32(31)).astype("int32")
    return jnp.full(like.shape, jnp.minimum(sign, 0).astype(like.dtype))
