"""Gradient checkpointing (rematerialisation) of propagation steps.

Training stores the intermediate values of every step until the backward pass has used
them. A checkpointed step stores only its input and runs again in the backward pass:
memory for one step instead of all, at the cost of one more forward computation.
"""

import contextlib
import threading

import keras
from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.context import is_portable
from keras_bandgnn.ops.loops import chunk_size

# Approximate rows per chunk of `by_rows`. On CPUs temporaries fit into caches.
_ROWS, _MANY_ROWS = 8192, 1 << 17

_tracing = threading.local()


def _state(layers) -> list:
    """Return the variables that a step may update: seeds and moving averages."""
    return [v for layer in layers for v in layer.non_trainable_variables]


# Scopes of tracing: within `checkpoint`, and within a chunk of `by_rows` there.
_WHOLE, _CHUNK = "whole", "chunk"


@contextlib.contextmanager
def _within(place: str):
    before = _place()
    _tracing.place = place
    try:
        yield
    finally:
        _tracing.place = before


def _place() -> str | None:
    return getattr(_tracing, "place", None)


def _checkpointed(step, states, variables: list):
    if backend.checkpointed is not None:
        return backend.checkpointed(step, states, variables)
    before = [backend.copy(v.value) for v in variables]
    after = []

    def pure(*leaves):
        # Both runs start from the same state, and neither assigns it.
        mapping = list(zip(variables, before, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            out = step(leaves if several else leaves[0])
        if not after:
            after.extend(scope.get_current_value(v) for v in variables)
        return out

    several = isinstance(states, tuple)
    states = backend.recomputed(pure)(*(states if several else (states,)))
    for variable, value in zip(variables, after, strict=True):
        variable.assign(value)
    return states


def checkpoint(step, states, layers=()):
    """Return `step(states)`, storing only `states` for the gradient.

    The recomputation draws the same dropout masks; seeds advance and moving averages
    move once.

    Args:
        step: Function from a tensor to a tensor, or from a tuple of tensors to one of
            as many. On TensorFlow, of the values that it closes over, only variables
            get gradients.
        states: Its argument.
        layers: Keras layers that it calls.

    Example:
    >>> from keras import ops
    >>> float(checkpoint(lambda x: 2 * x, ops.ones(())))
    2.0
    """
    if _place() == _CHUNK:
        # The enclosing chunk is recomputed as a whole.
        return step(states)

    def within(states):
        with _within(_WHOLE):
            return step(states)

    return _checkpointed(within, states, _state(layers))


def by_rows(function, *arrays):
    """Return `function(*arrays)` of a function that maps each row by itself.

    Within `checkpoint` on JAX the rows are computed in chunks, and each chunk again for
    its gradient: intermediate values take the memory of one chunk. XLA would store all
    of them, and on CPUs also copies of the operands of matrix products, which its
    memory analysis does not count.

    Args:
        function: Function of rows [R, ...], one array for each of `arrays`, that
            returns rows or a tuple of them. It must not assign variables.
        *arrays: [G, N, ...] each.

    Example:
    >>> from keras import ops
    >>> tuple(by_rows(lambda x: 2 * x, ops.ones((1, 3, 2))).shape)
    (1, 3, 2)
    """
    if backend.map_rows is None or _place() != _WHOLE or is_portable():
        return function(*arrays)
    groups, count = ops.shape(arrays[0])[:2]
    size = chunk_size(_ROWS, _MANY_ROWS)
    if groups * count < 2 * size:
        return function(*arrays)
    flat = [ops.reshape(array, (-1, *ops.shape(array)[2:])) for array in arrays]
    with _within(_CHUNK):
        out = backend.map_rows(function, flat, size)

    def whole(rows):
        return ops.reshape(rows, (groups, count, *ops.shape(rows)[1:]))

    return tuple(map(whole, out)) if isinstance(out, tuple) else whole(out)


def repeat(step, states, num_steps: int, layers=(), remat: bool = True):
    """Apply a step `num_steps` times.

    With `remat` every step is checkpointed; on JAX the steps are then one `lax.scan` in
    the compiled program, which also compiles faster. Results and dropout masks are
    those of the plain Python loop.

    Args:
        step: Function from a tensor to one of the same shape and dtype; see
            `checkpoint`.
        states: Argument of the first step.
        num_steps: Number of steps.
        layers: Keras layers that the step calls.
        remat: Whether to checkpoint.

    Returns:
        The result of the last step.

    Example:
    >>> from keras import ops
    >>> float(repeat(lambda x: 2 * x, ops.ones(()), 3))
    8.0
    """
    variables = _state(layers)
    if remat and backend.repeat_checkpointed is not None:
        return backend.repeat_checkpointed(step, states, num_steps, variables)
    for _ in range(num_steps):
        states = _checkpointed(step, states, variables) if remat else step(states)
    return states
