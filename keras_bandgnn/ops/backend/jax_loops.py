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


def fold(step, carry, rows, size):
    """Folds `step` over pieces of rows; see `ops.loops`."""
    count = jax.tree.leaves(rows)[0].shape[0]
    pieces = count // size
    if not pieces:
        return step(carry, rows)

    def once(carry, number):
        # Arrays are read where they are: padding them to whole pieces would copy
        # every one. Rows that took their place would be copied for each piece.
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
