"""TensorFlow implementations."""

import tensorflow as tf


def gather(x, ids):
    """Rows `x[ids]`; ids must be in range."""
    return tf.gather(x, ids)


def segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows of `data` by segment; empty segments are 0."""
    del is_sorted
    return tf.math.unsorted_segment_sum(data, ids, num_segments)


def scatter_add(indices, values, shape):
    """Zeros of `shape` with `values` added at the N-d positions `indices`."""
    return tf.scatter_nd(tf.stack(indices, axis=-1), values, shape)


def has_accelerator() -> bool:
    """Whether a GPU or TPU is there."""
    return any(d.device_type != "CPU" for d in tf.config.list_physical_devices())


def seed_global(seed: int) -> None:
    """Nothing: Keras' seed generators hold all state of dropout."""
    del seed
