"""Steps whose intermediate values are computed again for the gradient.

Training keeps every intermediate value of every step until the gradient has used it. A
checkpointed step keeps its input alone and runs a second time when its gradient is
due: memory for one step instead of all, for one more forward computation.
"""

import keras

from keras_bandgnn.ops.backend import current as backend


def _state(layers) -> list:
    """Variables that a step may change: the seeds of dropout."""
    return [v for layer in layers for v in layer.non_trainable_variables]


def _checkpointed(step, states, variables: list):
    if backend.checkpointed is not None:
        return backend.checkpointed(step, states, variables)
    before = [backend.copy(v.value) for v in variables]
    after = []

    def pure(states):
        # Both computations begin with the same seeds, and neither assigns them.
        mapping = list(zip(variables, before, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            states = step(states)
        if not after:
            after.extend(scope.get_current_value(v) for v in variables)
        return states

    states = backend.recomputed(pure)(states)
    for variable, value in zip(variables, after, strict=True):
        variable.assign(value)
    return states


def checkpoint(step, states, layers=()):
    """Returns `step(states)`, keeping nothing but `states` for the gradient.

    The second computation draws the same dropout masks as the first, and the seeds
    advance once.

    Args:
        step: Function from a tensor to a tensor. On TensorFlow gradients reach what it
            uses besides its argument only if that is a variable.
        states: Its argument.
        layers: Keras layers that it calls.

    Example:
    >>> from keras import ops
    >>> float(checkpoint(lambda x: 2 * x, ops.ones(())))
    2.0
    """
    return _checkpointed(step, states, _state(layers))


def repeat(step, states, num_steps: int, layers=(), remat: bool = True):
    """Applies a step several times.

    With `remat` every step is checkpointed; on JAX the steps are then one loop in the
    compiled program (`lax.scan`), which also compiles faster. Results and dropout masks
    are those of the plain Python loop.

    Args:
        step: Function from a tensor to one of the same shape and type; see
            `checkpoint`.
        states: The first argument.
        num_steps: How often.
        layers: Keras layers that the step calls.
        remat: Whether to checkpoint.

    Returns:
        The last value.

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
