"""Data parallelism on JAX."""

import keras


def make(devices, supergraphs, timeout):
    """See `data_parallel`."""
    del supergraphs, timeout
    return keras.distribution.DataParallel(devices=devices)
