"""Gathers and segment sums within each supergraph, all in one flat call."""

import keras
from keras import ops

from keras_bandgnn import ops as kernels


def offset_ids(ids, size):
    """Adds `g * size` to the ids of supergraph g, for arrays flattened over G.

    Args:
        ids: int32 [G, ...].
        size: Number of rows per supergraph.

    Returns:
        int32 [G, ...].
    """
    groups = ops.shape(ids)[0]
    # TensorFlow may not know G while it traces.
    if isinstance(groups, int) and groups == 1:
        return ids
    offsets = ops.arange(groups, dtype="int32") * size
    return ids + ops.reshape(offsets, (-1,) + (1,) * (len(ids.shape) - 1))


def _flatten(x):
    shape = ops.shape(x)
    return ops.reshape(x, (-1, *shape[2:]))


def batched_gather(x, ids):
    """Rows `x[g, ids[g]]` of each supergraph.

    Args:
        x: [G, N, ...].
        ids: int32 [G, ...] in [0, N).

    Returns:
        `ids.shape + x.shape[2:]`.
    """
    return kernels.gather(_flatten(x), offset_ids(ids, ops.shape(x)[1]))


def batched_segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows by segment within each supergraph; id `num_segments` is padding.

    Half-precision rows are added up in float32: in bfloat16 a sum of ones ends at 256.

    Args:
        data: [G, E, ...].
        ids: int32 [G, E] in [0, num_segments]; rows with the last id are dropped.
        num_segments: Number of segments per supergraph.
        is_sorted: Whether the ids ascend within each supergraph.

    Returns:
        [G, num_segments, ...].
    """
    groups = ops.shape(data)[0]
    dtype = keras.backend.standardize_dtype(data.dtype)
    wide = "float32" if dtype in ("bfloat16", "float16") else dtype
    sums = kernels.segment_sum(
        _flatten(ops.cast(data, wide)),
        ops.reshape(offset_ids(ids, num_segments + 1), (-1,)),
        groups * (num_segments + 1),
        is_sorted,
    )
    sums = ops.reshape(sums, (-1, num_segments + 1, *ops.shape(data)[2:]))
    return ops.cast(sums[:, :num_segments], dtype)


def batched_segment_max(data, ids, num_segments):
    """Largest entries by segment within each supergraph; empty segments are 0.

    Where several rows hold the maximum, they share its gradient.

    Args:
        data: [G, E, ...].
        ids: int32 [G, E] in [0, num_segments], sorted; rows with the last id are
            dropped.
        num_segments: Number of segments per supergraph.

    Returns:
        [G, num_segments, ...].
    """
    flat = ops.stop_gradient(_flatten(data))
    all_ids = ops.reshape(offset_ids(ids, num_segments + 1), (-1,))
    groups = ops.shape(data)[0]
    largest = kernels.segment_max(flat, all_ids, groups * (num_segments + 1))
    chosen = ops.cast(flat == kernels.gather(largest, all_ids), data.dtype)
    chosen = ops.reshape(chosen, ops.shape(data))
    total = batched_segment_sum(data * chosen, ids, num_segments, is_sorted=True)
    count = batched_segment_sum(chosen, ids, num_segments, is_sorted=True)
    return total / ops.maximum(count, 1)
