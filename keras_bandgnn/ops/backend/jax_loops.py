"""JAX implementations of `ops.loops`."""

import jax
import jax.numpy as jnp


def with_gradient(forward, backward, tensors):
    """`forward(*tensors)`, with `backward` as its gradient; see `ops.loops`."""

    @jax.custom_vjp
    def run(*tensors):
        return forward(*tensors)[0]

    def pull(kept, slopes):
        return tuple(backward(kept, *slopes))

    run.defvjp(forward, pull)
    return run(*tensors)


def fold(step, carry, rows, size, over=None):
    """Folds `step` over pieces of rows; see `ops.loops`."""
    count = jax.tree.leaves(rows)[0].shape[0]
    pieces = count // size

    def once(carry, out, start, length):
        # Arrays are read and written where they are: padding them to whole pieces
        # would copy every one.
        given = {**rows, **({} if over is None else {over: out})}
        piece = {
            name: jax.lax.dynamic_slice_in_dim(array, start, length)
            for name, array in given.items()
        }
        carry, part = step(carry, piece)
        if over is not None:
            out = jax.lax.dynamic_update_slice_in_dim(out, part, start, 0)
        return carry, out

    state = carry, None if over is None else rows[over]
    if pieces:
        state = jax.lax.fori_loop(
            0, pieces, lambda n, state: once(*state, n * size, size), state
        )
    if count % size:
        state = once(*state, pieces * size, count % size)
    return state


def zeros_after(like):
    """Zeros that the compiler cannot make before `like`; see `ops.loops`."""
    bits = jax.lax.bitcast_convert_type(like.reshape(-1)[0], "uint32")
    sign = jax.lax.shift_right_logical(bits, jnp.uint32(31)).astype("int32")
    return jnp.full(like.shape, jnp.minimum(sign, 0).astype(like.dtype))


def map_pieces(function, pieces, shared):
    """`function` of each piece along axis 0, keeping nothing inside for gradients."""
    return jax.lax.map(
        jax.checkpoint(lambda piece: function(*piece, *shared)), tuple(pieces)
    )


def numbered_dropout(x, rate, seed, number):
    """Dropout whose mask follows from a seed and a number."""
    seed = jnp.asarray(seed).astype("uint32").reshape(-1)
    key = jax.random.fold_in(
        jax.random.fold_in(jax.random.key(seed[0]), seed[1]), number
    )
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), 0.0)


def add_rows(out, ids, rows):
    """`out` with rows added at ids; see `ops.loops`."""
    return out.at[ids].add(rows)
