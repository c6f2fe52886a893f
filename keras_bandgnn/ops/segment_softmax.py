"""Softmax within segments, such as the edges into a node or the nodes of a graph."""

from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import batched_gather, batched_segment_sum, offset_ids
from keras_bandgnn.ops.sequence import largest_over_devices, over_devices


def segment_softmax(
    scores, ids, mask, num_segments, extra=None, is_sorted=False, split=False
):
    """Compute the softmax of scores within each segment of each supergraph.

    The maximum of each segment is subtracted first, so no exponential overflows.

    Args:
        scores: float [G, E, K].
        ids: int32 [G, E] in [0, num_segments]; rows with the last id get weight 0.
        mask: bool [G, E]; masked (False) rows get weight 0.
        num_segments: S.
        extra: float [G, S, K], one additional score per segment, or None.
        is_sorted: Whether the ids are sorted within each supergraph.
        split: Whether segments may have rows on several devices, as the nodes of a
            graph do when devices share a supergraph.

    Returns:
        float32 [G, E, K]; with `extra` also the weights [G, S, K] of these scores.

    Example:
    >>> import numpy as np
    >>> scores, ids = np.array([[[1.0], [1.0], [5.0]]]), np.array([[0, 0, 2]])
    >>> mask = np.ones((1, 3), bool)
    >>> np.asarray(segment_softmax(scores, ids, mask, 2))[0, :, 0].tolist()
    [0.5, 0.5, 0.0]
    """
    scores, ids = ops.cast(scores, "float32"), ops.convert_to_tensor(ids)
    mask = ops.expand_dims(ops.logical_and(mask, ids < num_segments), -1)
    inside = ops.minimum(ids, num_segments - 1)
    if extra is not None:
        # Relative to a score that always exists, empty segments are no special case.
        extra = ops.cast(extra, "float32")
        scores = scores - batched_gather(extra, inside)
    seen = ops.stop_gradient(ops.where(mask, scores, -1e30))
    groups, _, width = ops.shape(seen)
    top = backend.segment_max(
        ops.reshape(seen, (-1, width)),
        ops.reshape(offset_ids(ids, num_segments + 1), (-1,)),
        groups * (num_segments + 1),
    )
    top = ops.reshape(top, (-1, num_segments + 1, width))[:, :num_segments]
    if split:
        top = largest_over_devices(top)
    if extra is not None:
        top = ops.maximum(top, 0.0)
    scores = ops.where(mask, scores - batched_gather(top, inside), 0.0)
    shares = ops.where(mask, ops.exp(scores), 0.0)
    total = batched_segment_sum(shares, ids, num_segments, is_sorted)
    if split:
        total = over_devices(total)
    if extra is not None:
        extra = ops.exp(-top)
        total = total + extra
    total = ops.where(total > 0, total, 1.0)
    shares = shares / batched_gather(total, inside)
    return shares if extra is None else (shares, extra / total)
