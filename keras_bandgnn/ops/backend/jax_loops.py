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
    if count <= size:
        return step(carry, rows)
    pieces = -(-count // size)

    def cut(array):
        # The last row once more: pieces are equally long, and what it adds is cut off
        # by its weight of 0, which `ops.loops.fold` asks for.
        width = [(0, pieces * size - count)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, width).reshape(pieces, size, *array.shape[1:])

    carry, out = jax.lax.scan(step, carry, jax.tree.map(cut, rows))
    return carry, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:count], out)


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
