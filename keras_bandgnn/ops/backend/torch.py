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


def watch_step(model, name, report):
    """The model's step `name`; it calls `report(batch)` when it compiles for a batch.

    Args:
        model: A compiled Keras model that does not run eagerly.
        name: "train_function", "test_function" or "predict_function".
        report: Called with each batch that makes the step compile.
    """
    step = getattr(model, name)
    if not model.jit_compile:
        return step
    # The compiler takes a second to import; eager training does without it.
    from torch._dynamo.utils import counters

    def watched(batches):
        before = counters["stats"]["unique_graphs"]
        outputs = step(batches)
        if counters["stats"]["unique_graphs"] > before:
            report(batches[0])
        return outputs

    return watched
