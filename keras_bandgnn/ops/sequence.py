"""The axis of devices along which the nodes of supergraphs are split.

Inside a program of `distribution.sequence_parallel` each device has the states of some
successive nodes. Layers that look beyond single nodes add up over the devices
(`over_devices`), or ask `sequence_axis()` and, unless it is None, exchange rows through
the object that it returns. A layer that does so, or that works on each node by itself,
says it with `splits_sequences = True` in its class; see
`distribution.sequence_parallel`.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

_active = contextvars.ContextVar("sequence_axis", default=None)


def sequence_axis():
    """The `SequenceAxis` of the program that is being traced, or None."""
    return _active.get()


@contextlib.contextmanager
def along(axis) -> Iterator[None]:
    """Makes `sequence_axis()` return an axis in this thread.

    Args:
        axis: A `SequenceAxis`.
    """
    token = _active.set(axis)
    try:
        yield
    finally:
        _active.reset(token)


def rows_at(states, ids):
    """Rows of nodes that may be on another device.

    Args:
        states: [G, N, H], of the nodes of this device.
        ids: int32 [G, ...], in the numbers of the whole supergraph.

    Returns:
        `ids.shape + [H]`, on every device.
    """
    from keras_bandgnn.ops.batched import batched_gather

    axis = sequence_axis()
    if axis is None:
        return batched_gather(states, ids)
    return axis.rows(states, ids)


def over_devices(values):
    """The sum over the devices of the axis; the values themselves without one."""
    axis = sequence_axis()
    return values if axis is None else axis.total(values)


def largest_over_devices(values):
    """The maximum over the devices of the axis, without a gradient."""
    values = keras.ops.stop_gradient(values)
    axis = sequence_axis()
    return values if axis is None else axis.largest(values)


def same_on_devices(values):
    """Random values of the first device, on all devices of the axis."""
    axis = sequence_axis()
    return values if axis is None else axis.same(values)
