"""Loops over pieces of long arrays, and gradients that are written by hand."""

import keras

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.context import is_portable


def with_gradient(forward, backward, *tensors):
    """Values of a function whose gradient is given.

    Args:
        forward: Takes the tensors; returns a tuple of outputs, and a tuple of what the
            gradient needs, tensors or None. Second derivatives go through it.
        backward: Takes what the gradient needs and the gradients of the outputs;
            returns a gradient, or None, for each tensor.
        *tensors: The arguments.

    Returns:
        The outputs.
    """
    if is_portable():
        return forward(*tensors)[0]
    return backend.with_gradient(forward, backward, tensors)


def scan_chunks(step, carry, rows, size: int):
    """Carries a value through pieces of equally long arrays, one after the other.

    On JAX this is one loop in the compiled program.

    Args:
        step: `step(carry, piece)` returns the next value and rows, or None.
        carry: The first value.
        rows: Dict of arrays [E, ...].
        size: Rows of a piece.

    Returns:
        The last value, and the rows of all pieces, [E, ...], or None.
    """
    if is_portable():
        return step(carry, rows)
    return backend.scan_chunks(step, carry, rows, size)


def late_zeros(like):
    """Zeros of the shape and type of a tensor, made once that is known.

    A compiler otherwise makes all the zeros of a program at its start and keeps them.
    """
    if is_portable():
        return keras.ops.zeros_like(like)
    return backend.late_zeros(like)


def map_pieces(function, pieces, shared):
    """Applies a function to entry after entry of axis 0.

    For gradients each entry is computed again, so memory is that of one entry.

    Args:
        function: Takes one entry of each array and the shared tensors; returns a
            tuple of tensors. Gradients reach what it is given, nothing else.
        pieces: Arrays with the same axis 0.
        shared: Tensors.

    Returns:
        Tuple of tensors with that axis in front.
    """
    if is_portable():
        outs = [
            function(*[p[i] for p in pieces], *shared) for i in range(len(pieces[0]))
        ]
        return tuple(keras.ops.stack(parts) for parts in zip(*outs, strict=True))
    return backend.map_pieces(function, pieces, shared)


def numbered_dropout(x, rate: float, seed, number):
    """Dropout inside `map_pieces`: the same mask whenever the piece is computed.

    Args:
        x: float, any shape.
        rate: Share that is dropped.
        seed: `keras.random.SeedGenerator().next()`, drawn outside of the loop.
        number: Of the piece, int32.
    """
    return backend.numbered_dropout(x, rate, seed, number)


def index_add(out, ids, rows):
    """Adds rows to those with the given ids, perhaps in place and without a gradient.

    Args:
        out: [N, ...], not used afterwards.
        ids: int32 [E] in [0, N).
        rows: [E, ...].
    """
    if is_portable():
        return out + backend.segment_sum(rows, ids, keras.ops.shape(out)[0])
    return backend.index_add(out, ids, rows)
