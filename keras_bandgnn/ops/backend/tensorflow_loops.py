"""TensorFlow implementations of `ops.loops`."""

import tensorflow as tf

# Pieces of a loop that is written out.
_MOST = 8


def with_gradient(forward, backward, tensors):
    """`forward(*tensors)`, with `backward` as its gradient; see `ops.loops`."""

    @tf.custom_gradient
    def run(*tensors):
        out, kept = forward(*tensors)
        return tuple(out), lambda *slopes: list(backward(kept, *slopes))

    return run(*tensors)


def fold(step, carry, rows, size):
    """Folds `step` over pieces of rows; see `ops.loops`."""
    count = next(iter(rows.values())).shape[0]
    if count is None or count <= size:
        return step(carry, rows)
    size = max(size, -(-count // _MOST))
    found = []
    for a in range(0, count, size):
        carry, out = step(carry, {k: v[a : a + size] for k, v in rows.items()})
        found.append(out)
    return carry, None if found[0] is None else tf.concat(found, axis=0)


def zeros_after(like):
    """Zeros; see `ops.loops`."""
    return tf.zeros_like(like)


@tf.custom_gradient
def _last_gradient(x):
    """`x`; what its gradient is used for has no gradient, and says so."""

    @tf.custom_gradient
    def slope(dy):
        def none(*_):
            raise NotImplementedError(
                "Expected no second derivative of what is computed again for its "
                "gradient on TensorFlow: remat=True, and full attention of large "
                "supergraphs. Received: one. Use KERAS_BACKEND=jax or torch, which "
                "have it."
            )

        return tf.identity(dy), none

    return tf.identity(x), slope


def recomputed(function):
    """`function` of tensors, computed again for its gradient."""
    again = tf.recompute_grad(function)

    def run(*given):
        moving = (
            _last_gradient(x) if tf.as_dtype(x.dtype).is_floating else x for x in given
        )
        return again(*moving)

    return run


def map_pieces(function, pieces, shared):
    """`function` of each piece along axis 0, keeping nothing inside for gradients."""
    safe = recomputed(function)
    count = pieces[0].shape[0]
    outs = [safe(*[p[i] for p in pieces], *shared) for i in range(count)]
    return tuple(tf.stack(parts) for parts in zip(*outs, strict=True))


def numbered_dropout(x, rate, seed, number):
    """Dropout whose mask follows from a seed and a number."""
    seed = tf.cast(tf.reshape(seed, (-1,))[:2], "int32")
    # Calls count their seeds up by one: numbers of pieces are added to random ones.
    seed = tf.random.stateless_uniform([2], seed, None, None, "int32")
    seed = seed + tf.stack([0, tf.cast(number, "int32")])
    return tf.nn.experimental.stateless_dropout(x, rate, seed)


def add_rows(out, ids, rows):
    """`out` with rows added at ids; see `ops.loops`."""
    return tf.tensor_scatter_nd_add(out, tf.expand_dims(ids, -1), rows)
