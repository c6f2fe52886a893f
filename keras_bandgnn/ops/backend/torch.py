"""Torch implementations."""

import torch


def gather(x, ids):
    """Rows `x[ids]`; ids must be in range."""
    rows = torch.index_select(x, 0, ids.reshape(-1))
    return rows.reshape(*ids.shape, *x.shape[1:])


def segment_sum(data, ids, num_segments, is_sorted=False):
    """Sums rows of `data` by segment; empty segments are 0."""
    del is_sorted
    shape = (num_segments, *data.shape[1:])
    return torch.zeros(shape, dtype=data.dtype, device=data.device).index_add(
        0, ids, data
    )


def scatter_add(indices, values, shape):
    """Zeros of `shape` with `values` added at the N-d positions `indices`."""
    zeros = torch.zeros(shape, dtype=values.dtype, device=values.device)
    indices = tuple(i.long() for i in indices)
    return zeros.index_put(indices, values, accumulate=True)


def has_accelerator() -> bool:
    """Whether a GPU or TPU is there."""
    return torch.accelerator.is_available()


def seed_global(seed: int) -> None:
    """Seeds torch's global generator, which dropout draws from."""
    torch.manual_seed(seed)
