"""The device axis along which the nodes of supergraphs are sharded.

Inside a program of `distribution.sequence_parallel` each device holds the states of a
contiguous range of nodes. Layers that combine nodes all-reduce over the devices
(`over_devices`), or call `sequence_axis()` and, unless it is None, exchange rows
through the `SequenceAxis` that it returns. Layers that do so, and layers that work node
by node, declare `splits_sequences = True` in their class; see
`distribution.sequence_parallel`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING

from keras_bandgnn.host_keras import keras

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor

_active = contextvars.ContextVar("sequence_axis", default=None)


def sequence_axis():
    """Return the `SequenceAxis` of the program being traced, or None."""
    return _active.get()


@contextlib.contextmanager
def along(axis) -> Iterator[None]:
    """Set the axis that `sequence_axis()` returns in this thread.

    Args:
        axis: A `SequenceAxis`.
    """
    token = _active.set(axis)
    try:
        yield
    finally:
        _active.reset(token)


def rows_at(states, ids):
    """Gather rows of nodes that may be on another device.

    Args:
        states: [G, N, H], of this device's nodes.
        ids: int32 [G, ...], node ids in the whole supergraph.

    Returns:
        `ids.shape + [H]`, on every device.
    """
    from keras_bandgnn.ops.batched import batched_gather

    axis = sequence_axis()
    if axis is None:
        return batched_gather(states, ids)
    return axis.rows(states, ids)


def over_devices(values: Tensor) -> Tensor:
    """Return the sum over the devices of the axis, or `values` without an axis."""
    axis = sequence_axis()
    return values if axis is None else axis.total(values)


def largest_over_devices(values):
    """Return the maximum over the devices of the axis, without a gradient."""
    values = keras.ops.stop_gradient(values)
    axis = sequence_axis()
    return values if axis is None else axis.largest(values)


def same_on_devices(values):
    """Broadcast random values from the first device to all devices of the axis."""
    axis = sequence_axis()
    return values if axis is None else axis.same(values)
