"""Loops over chunks of rows in JAX, with gathers and scatters for their steps."""

import jax
import jax.numpy as jnp


def gather_rows(x, ids):
    """Gather rows `x[ids]`; ids must be in range."""
    return x.at[ids].get(mode="promise_in_bounds")


def segment_add_sorted(out, ids, rows):
    """Add rows at sorted ids."""
    return out.at[ids].add(rows, mode="promise_in_bounds", indices_are_sorted=True)


def scatter_add(out, ids, rows):
    """Add rows at ids in any order."""
    return out.at[ids].add(rows, mode="promise_in_bounds")


def scan_chunks(step, carry, rows, size, like=None):
    """Scan `step` over chunks of rows; see `ops.loops`."""
    count = jax.tree.leaves(rows)[0].shape[0]
    pieces = count // size
    if not pieces:
        return step(carry, rows)

    def piece(number):
        # Slicing reads the arrays in place: padding them to whole chunks would copy
        # all of them, and scanning over reshaped rows would copy every chunk.
        return {
            name: jax.lax.dynamic_slice_in_dim(array, number * size, size)
            for name, array in rows.items()
        }

    def once(carry, number):
        return step(carry, piece(number))

    remainder = {name: array[pieces * size :] for name, array in rows.items()}
    if like is None:
        carry, out = jax.lax.scan(once, carry, jnp.arange(pieces))
        out = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), out)
        if count % size:
            carry, last = step(carry, remainder)
            out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, last)
        return carry, out

    def write(both, number):
        carry, out = both
        carry, chunk = once(carry, number)
        return (carry, _written(out, chunk, number * size)), None

    _, shapes = jax.eval_shape(once, carry, 0)
    out = jax.tree.map(
        lambda a: _late_zeros(like, (count, *a.shape[1:]), a.dtype), shapes
    )
    (carry, out), _ = jax.lax.scan(write, (carry, out), jnp.arange(pieces))
    if count % size:
        carry, last = step(carry, remainder)
        out = _written(out, last, pieces * size)
    return carry, out


def _written(out, chunk, start):
    def write(whole, part):
        return jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0)

    return jax.tree.map(write, out, chunk)


def late_zeros(like, after):
    """Return zeros that XLA cannot hoist before `after`; see `ops.loops`."""
    return _late_zeros(after, like.shape, like.dtype)


def _late_zeros(after, shape, dtype):
    first = after.reshape(-1)[0].astype("float32")
    bits = jax.lax.bitcast_convert_type(first, "uint32")
    sign = jax.lax.shift_right_logical(bits, jnp.uint32(31)).astype("int32")
    return jnp.full(shape, jnp.minimum(sign, 0).astype(dtype))


def _merged(floats, values, others):
    """Return the values, in their order, where `floats`, and `others` elsewhere."""
    values = iter(values)
    pairs = zip(floats, others, strict=True)
    return [next(values) if is_float else other for is_float, other in pairs]


def map_rows(function, arrays, closed_over, size):
    """Map a function over chunks of rows; the gradient recomputes each chunk.

    Args:
        function: `function(rows, closed_over)` returns a list of rows [size, ...].
        arrays: Floating-point arrays [R, ...], R at least `size`.
        closed_over: Further arguments; floating-point ones get gradients.
        size: Rows of a chunk. The last chunk overlaps the one before it.
    """
    count = arrays[0].shape[0]
    pieces = -(-count // size)

    def piece(arrays, number):
        # Slices and updates work in place.
        start = jnp.minimum(number * size, count - size)
        return [jax.lax.dynamic_slice_in_dim(a, start, size) for a in arrays], start

    def forward(arrays, closed_over):
        def once(out, number):
            rows, start = piece(arrays, number)
            return _written(out, function(rows, closed_over), start), None

        shapes = jax.eval_shape(lambda: function(piece(arrays, 0)[0], closed_over))
        out = [_late_zeros(arrays[0], (count, *a.shape[1:]), a.dtype) for a in shapes]
        return jax.lax.scan(once, out, jnp.arange(pieces))[0]

    run = jax.custom_vjp(forward)

    def backward(residuals, slopes):
        arrays, closed_over = residuals
        floats = [jnp.issubdtype(c.dtype, jnp.inexact) for c in closed_over]
        learnt = [
            c for c, is_float in zip(closed_over, floats, strict=True) if is_float
        ]

        def of_learnt(rows, learnt):
            return function(rows, _merged(floats, learnt, closed_over))

        def once(carry, number):
            d_arrays, d_learnt = carry
            rows, start = piece(arrays, number)
            slope, _ = piece(slopes, number)
            # Skip rows that the chunk before has counted.
            new = start + jnp.arange(size) >= number * size
            slope = [
                jnp.where(new.reshape(-1, *[1] * (s.ndim - 1)), s, 0) for s in slope
            ]
            d_rows, d_more = jax.vjp(of_learnt, rows, learnt)[1](slope)
            earlier, _ = piece(d_arrays, number)
            d_rows = [a + b for a, b in zip(earlier, d_rows, strict=True)]
            d_learnt = [a + b for a, b in zip(d_learnt, d_more, strict=True)]
            return (_written(d_arrays, d_rows, start), d_learnt), None

        zeros = [_late_zeros(slopes[0], a.shape, a.dtype) for a in arrays]
        carry = zeros, [jnp.zeros_like(c) for c in learnt]
        (d_arrays, d_learnt), _ = jax.lax.scan(once, carry, jnp.arange(pieces))
        return d_arrays, _merged(floats, d_learnt, [None] * len(floats))

    run.defvjp(lambda *arguments: (forward(*arguments), arguments), backward)
    return run(arrays, closed_over)
