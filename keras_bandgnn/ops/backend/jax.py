"""JAX implementations."""

import jax
import jax.numpy as jnp


def gather(x, ids):
    """Rows `x[ids]`; ids must be in range."""
    return x.at[ids].get(mode="promise_in_bounds")


def segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows of `data` by segment; empty segments are 0."""
    return jax.ops.segment_sum(
        data, ids, num_segments, indices_are_sorted=is_sorted, mode="drop"
    )


def scatter_add(indices, values, shape):
    """Zeros of `shape` with `values` added at the N-d positions `indices`."""
    zeros = jnp.zeros(shape, values.dtype)
    return zeros.at[indices].add(values, mode="promise_in_bounds")


def has_accelerator() -> bool:
    """Whether a GPU or TPU is there."""
    return jax.default_backend() != "cpu"


def seed_global(seed: int) -> None:
    """Nothing: Keras' seed generators hold all state of dropout."""
    del seed
