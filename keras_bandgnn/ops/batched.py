"""Batched gathers, sums and products, one flat call for all supergraphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_bandgnn.host_keras import keras, ops
from keras_bandgnn.ops.backend import current as backend

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Shape, Tensor


def offset_ids(ids: Tensor, size: int) -> Tensor:
    """Add `g * size` to the ids of supergraph g, for arrays flattened over G.

    Args:
        ids: int32 [G, ...].
        size: Number of rows per supergraph.

    Returns:
        int32 [G, ...].
    """
    groups = ops.shape(ids)[0]
    # G may be unknown while TensorFlow traces.
    if isinstance(groups, int) and groups == 1:
        return ids
    offsets = ops.arange(groups, dtype="int32") * size
    return ids + ops.reshape(offsets, (-1,) + (1,) * (len(ids.shape) - 1))


def supergraph_ids(ids):
    """Return the supergraph index of each id, int32 of the shape of `ids` [G, E]."""
    groups = ops.reshape(ops.arange(ops.shape(ids)[0], dtype="int32"), (-1, 1))
    return ops.broadcast_to(groups, ops.shape(ids))


def _flatten(x):
    shape = ops.shape(x)
    return ops.reshape(x, (-1, *shape[2:]))


def _wide(dtype) -> str:
    """Return the accumulation dtype; in bfloat16 a sum of ones saturates at 256."""
    dtype = keras.backend.standardize_dtype(dtype)
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def as_operation(function: Callable) -> Callable:
    """Return the function as a `keras.Operation` where results of `keras.Input` come.

    Functional models then have it as a node; backends know arrays alone.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        if not any(isinstance(arg, keras.KerasTensor) for arg in args):
            return function(*args, **kwargs)
        name = function.__name__.title().replace("_", "")
        kind = type(name, (keras.Operation,), {"call": staticmethod(function)})
        return kind()(*args, **kwargs)

    return call


@as_operation
def batched_gather(x: Tensor, ids: Tensor) -> Tensor:
    """Gather rows `x[g, ids[g]]` of each supergraph.

    Args:
        x: [G, N, ...].
        ids: int32 [G, ...] in [0, N).

    Returns:
        `ids.shape + x.shape[2:]`.
    """
    # The gradient of a row that is read often accumulates in float32, too.
    rows = _flatten(ops.cast(x, _wide(x.dtype)))
    rows = backend.gather(rows, offset_ids(ids, ops.shape(x)[1]))
    return ops.cast(rows, x.dtype)


def scatter_add(indices: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """Scatter-add values into zeros; half precision accumulates in float32.

    Args:
        indices: int32 [E], one array per axis of the result, in range.
        values: [E].
        shape: Shape of the result.

    Returns:
        Array of that shape, in the dtype of the values.
    """
    wide = ops.cast(values, _wide(values.dtype))
    return ops.cast(backend.scatter_add(indices, wide, shape), values.dtype)


@as_operation
def batched_segment_sum(
    data: Tensor, ids: Tensor, num_segments: int, is_sorted: bool = False
) -> Tensor:
    """Sum rows by segment within each supergraph; id `num_segments` is padding.

    Half-precision rows accumulate in float32.

    Args:
        data: [G, E, ...].
        ids: int32 [G, E] in [0, num_segments]; rows with the last id are dropped.
        num_segments: Number of segments per supergraph.
        is_sorted: Whether the ids are sorted within each supergraph.

    Returns:
        [G, num_segments, ...].
    """
    groups = ops.shape(data)[0]
    sums = backend.segment_sum(
        _flatten(ops.cast(data, _wide(data.dtype))),
        ops.reshape(offset_ids(ids, num_segments + 1), (-1,)),
        groups * (num_segments + 1),
        is_sorted,
    )
    sums = ops.reshape(sums, (-1, num_segments + 1, *ops.shape(data)[2:]))
    return ops.cast(sums[:, :num_segments], data.dtype)


@as_operation
def batched_segment_max(
    data: Tensor, ids: Tensor, num_segments: int, is_sorted: bool = True
) -> Tensor:
    """Compute segment maxima within each supergraph; empty segments are 0.

    Rows tied for the maximum share its gradient.

    Args:
        data: [G, E, ...].
        ids: int32 [G, E] in [0, num_segments]; rows with the last id are dropped.
        num_segments: Number of segments per supergraph.
        is_sorted: Whether the ids are sorted within each supergraph.

    Returns:
        [G, num_segments, ...].
    """
    flat = ops.stop_gradient(_flatten(data))
    all_ids = ops.reshape(offset_ids(ids, num_segments + 1), (-1,))
    groups = ops.shape(data)[0]
    largest = backend.segment_max(flat, all_ids, groups * (num_segments + 1))
    # Half-precision sums would overflow where many rows are tied.
    wide = _wide(data.dtype)
    is_largest = ops.cast(flat == backend.gather(largest, all_ids), wide)
    is_largest = ops.reshape(is_largest, ops.shape(data))
    rows = ops.cast(data, wide) * is_largest
    total = batched_segment_sum(rows, ids, num_segments, is_sorted)
    count = batched_segment_sum(is_largest, ids, num_segments, is_sorted)
    return ops.cast(total / ops.maximum(count, 1), data.dtype)


def flat_matmul(x, kernel):
    """Compute `x @ kernel` as one flat matmul.

    With leading axes, XLA on CPUs transposes a copy of the output gradient to compute
    that of the kernel. If the number of rows is a multiple of 1024, the columns of the
    copy collide in the CPU caches, which takes 2.3 times as long.

    Args:
        x: [..., K].
        kernel: [K, U].

    Returns:
        [..., U].
    """
    shape = ops.shape(x)
    if len(shape) == 2:
        return ops.matmul(x, kernel)
    rows = ops.matmul(ops.reshape(x, (-1, shape[-1])), kernel)
    return ops.reshape(rows, (*shape[:-1], ops.shape(kernel)[-1]))


def weighted_heads(weights, rows):
    """Multiply the channels of each head by its weight.

    Args:
        weights: [..., K].
        rows: [..., U], U a multiple of K.

    Returns:
        [..., U].
    """
    heads = ops.shape(weights)[-1]
    # The gradient of the weights is a sum over channels, which takes XLA on CPUs ten
    # times as long with further axes.
    flat = ops.reshape(rows, (-1, heads, ops.shape(rows)[-1] // heads))
    flat = flat * ops.reshape(weights, (-1, heads, 1))
    return ops.reshape(flat, ops.shape(rows))
