"""Gradient checkpointing (rematerialisation) of propagation steps.

Training stores the intermediate values of every step until the backward pass has used
them. A checkpointed step stores only its input and runs again in the backward pass:
memory for one step instead of all, at the cost of one more forward computation.
"""

import keras

from keras_bandgnn.ops.backend import current as backend


def _state(layers) -> list:
    """Return the variables that a step may update: seeds and moving averages."""
    return [v for layer in layers for v in layer.non_trainable_variables]


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
    return _checkpointed(step, states, _state(layers))


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
