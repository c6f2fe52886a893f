"""Segment sums on JAX without a scatter, for runtimes that have none."""

import math

import jax.numpy as jnp

# Entries of a matrix of ones and zeros: 256 MB.
_MOST = 1 << 26


def _chosen(ids, num_segments):
    """Which rows belong to which segment, bool [segments, rows]."""
    if ids.shape[0] * num_segments > _MOST:
        raise ValueError(
            f"Expected at most {_MOST} pairs of segments and rows for a program "
            f"without scatters. Received: {num_segments} segments of {ids.shape[0]} "
            "rows. Export smaller supergraphs, or with KERAS_BACKEND=tensorflow."
        )
    return ids[None] == jnp.arange(num_segments, dtype=ids.dtype)[:, None]


def one_hot_sum(data, ids, num_segments):
    """See `segment_sum`; sums of whole numbers are exact up to 2^24."""
    rows = data.reshape(data.shape[0], -1).astype("float32")
    total = jnp.matmul(
        _chosen(ids, num_segments).astype("float32"), rows, precision="highest"
    )
    return total.reshape(num_segments, *data.shape[1:]).astype(data.dtype)


def one_hot_max(data, ids, num_segments):
    """See `segment_max`."""
    chosen = _chosen(ids, num_segments)
    rows = data.reshape(data.shape[0], -1)
    lowest = jnp.finfo(data.dtype).min
    largest = [
        jnp.where(chosen, rows[None, :, column], lowest).max(axis=1)
        for column in range(rows.shape[1])
    ]
    return jnp.stack(largest, axis=1).reshape(num_segments, *data.shape[1:])


def one_hot_scatter(indices, values, shape):
    """See `scatter_add`: ones and zeros of the first and of the last axis."""
    # rows [A, E] * values @ columns [E, B] needs no array of A * B rows.
    split = len(shape) // 2
    parts = []
    for ids, extents in (
        (indices[:split], shape[:split]),
        (indices[split:], shape[split:]),
    ):
        place = jnp.zeros_like(indices[0])
        for index, extent in zip(ids, extents, strict=True):
            place = place * extent + index
        parts.append(_chosen(place, math.prod(extents)).astype("float32"))
    rows, columns = parts
    total = jnp.matmul(rows * values.astype("float32"), columns.T, precision="highest")
    return total.reshape(shape).astype(values.dtype)
