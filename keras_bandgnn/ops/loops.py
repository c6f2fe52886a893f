"""Loops over chunks of long arrays, and custom gradients."""

from keras_bandgnn.host_keras import keras
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.context import is_portable


def with_gradient(forward, backward, *tensors):
    """Call a function that has a custom gradient.

    Args:
        forward: Takes the tensors; returns a tuple of outputs and a tuple of
            residuals, tensors or None. Second derivatives differentiate it.
        backward: Takes the residuals and the gradients of the outputs; returns a
            gradient, or None, for each tensor.
        *tensors: The arguments.

    Returns:
        The outputs.
    """
    if is_portable():
        return forward(*tensors)[0]
    return backend.with_gradient(forward, backward, tensors)


def chunk_size(on_cpu: int, on_accelerator: int) -> int:
    """Return the length of chunks on the device.

    On CPUs the rows of a chunk stay in the caches. On accelerators chunks only bound
    memory: a loop over small ones takes as long as launching its operations.
    """
    return on_accelerator if backend.has_accelerator() else on_cpu


def scan_chunks(step, carry, rows, size: int, like=None):
    """Scan over chunks of arrays of equal length.

    On JAX this is one `lax.scan` in the compiled program.

    Args:
        step: `step(carry, chunk)` returns the next carry and output rows, or None.
        carry: The initial carry.
        rows: Dict of arrays [E, ...].
        size: Rows per chunk.
        like: A tensor that the steps read, if the output rows are large: they are then
            allocated no earlier than it, see `late_zeros`.

    Returns:
        The final carry, and the output rows of all chunks, [E, ...], or None.
    """
    if is_portable():
        return step(carry, rows)
    return backend.scan_chunks(step, carry, rows, size, like)


def late_zeros(like, after=None):
    """Return zeros like a tensor, allocated no earlier than the tensor.

    XLA otherwise hoists all zeros to the start of a program, where they take memory
    until their use.

    Args:
        like: [N, ...].
        after: A floating-point tensor to wait for; `like` if None.
    """
    if is_portable():
        return keras.ops.zeros_like(like)
    return backend.late_zeros(like, like if after is None else after)


def map_pieces(function, pieces, shared):
    """Map a function over axis 0, one entry at a time.

    The gradient recomputes each entry, so memory is that of one entry.

    Args:
        function: Takes one entry of each array and the shared tensors; returns a
            tuple of tensors. Gradients reach its arguments, not captured tensors.
        pieces: Arrays with the same axis 0.
        shared: Tensors.

    Returns:
        Tuple of tensors stacked along axis 0.
    """
    if is_portable():
        outs = [
            function(*[p[i] for p in pieces], *shared) for i in range(len(pieces[0]))
        ]
        return tuple(keras.ops.stack(parts) for parts in zip(*outs, strict=True))
    return backend.map_pieces(function, pieces, shared)


def repeated(body, steps: int, state, constants, program):
    """Apply a step to a state repeatedly, without gradients.

    On JAX and TensorFlow this is a loop in the compiled program. On torch it is a loop
    of steps of a model, which are recorded like other steps.

    Args:
        body: `body(step, state, constants)` returns the next state; it reads weights
            and `constants`, but no other tensors.
        steps: Number of steps.
        state: Nested tensors.
        constants: Nested tensors that all steps read.
        program: Function without arguments that returns a model of the body, from the
            dict of "step", "state" and "constants".

    Returns:
        The last state.
    """
    if backend.repeated is not None:
        return backend.repeated(program(), steps, state, constants)
    return keras.ops.fori_loop(
        0, steps, lambda step, state: body(step, state, constants), state
    )


def index_add(out, ids, rows):
    """Add rows at ids, possibly in place and without a gradient.

    Args:
        out: [N, ...]; do not use it afterwards.
        ids: int32 [E] in [0, N).
        rows: [E, ...].
    """
    if is_portable():
        return out + backend.segment_sum(rows, ids, keras.ops.shape(out)[0])
    return backend.index_add(out, ids, rows)
