"""Batch normalisation over the rows of a mask on CPUs in torch."""

import torch
from torch import Tensor

from keras_bandgnn.ops.backend.torch_fused import fused_operation, operation


@operation
def real_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of rows of a mask, and their places if not the first ones.

    Args:
        mask: bool [N].

    Returns:
        int64 []; int64 [rows], or empty for the first rows.
    """
    count = torch.count_nonzero(mask)
    if bool(mask[: int(count)].all()):
        return count, mask.new_empty(0, dtype=torch.int64)
    return count, torch.nonzero(mask).reshape(-1)


def _count_and_index(real) -> tuple:
    """Return the number of rows, and their index; None for the first rows."""
    count, index = real
    return int(count), index if len(index) else None


def _gathered(rows, count, index):
    return rows[:count] if index is None else torch.index_select(rows, 0, index)


def _spread(values, rows, count, index):
    """Scatter values to the rows of the mask; return zeros elsewhere."""
    if index is None and count == len(rows):
        return values
    if index is None:
        out = torch.empty_like(rows)
        out[:count], out[count:] = values, 0
        return out
    return torch.zeros_like(rows).index_copy_(0, index, values)


def _norm(
    rows,
    scale: Tensor | None,
    shift: Tensor | None,
    real: list[Tensor],
    moving_mean,
    moving_variance,
    momentum: float,
    epsilon: float,
):
    """Return the result, new averages, and mean and inverse deviation of the rows."""
    count, index = _count_and_index(real)
    new_mean, new_variance = moving_mean.clone(), moving_variance.clone()
    if count == 0:
        zeros = torch.zeros_like(new_mean)
        return torch.zeros_like(rows), new_mean, new_variance, zeros, zeros.clone()
    out, mean, inverse = map(torch.empty_like, (rows, new_mean, new_mean))
    source = _gathered(rows, count, index)
    # The first rows are written in place.
    normalized = out[:count] if index is None else torch.empty_like(source)
    torch.ops.aten.native_batch_norm.out(
        source,
        weight=scale,
        bias=shift,
        # The unbiased variance of one row is no number.
        running_mean=new_mean if count > 1 else None,
        running_var=new_variance if count > 1 else None,
        training=True,
        momentum=1.0 - momentum,
        eps=epsilon,
        out=normalized,
        save_mean=mean,
        save_invstd=inverse,
    )
    if index is None:
        out[count:] = 0
    else:
        out = _spread(normalized, rows, count, index)
    if count == 1:
        new_mean.lerp_(mean, 1.0 - momentum)
        new_variance *= momentum
    return out, new_mean, new_variance, mean, inverse


def _norm_gradient(d_out, rows, scale, real: list[Tensor], mean, inverse, epsilon):
    count, index = _count_and_index(real)
    if count == 0:
        return torch.zeros_like(rows), torch.zeros_like(mean), torch.zeros_like(mean)
    source, slopes = (_gathered(t, count, index) for t in (rows, d_out))
    needed = [True, scale is not None, True]
    d_rows, d_scale, d_shift = torch.ops.aten.native_batch_norm_backward(
        slopes, source, scale, None, None, mean, inverse, True, epsilon, needed
    )
    return _spread(d_rows, rows, count, index), d_scale, d_shift


def _norm_reference(rows, scale, shift, real, epsilon):
    count, index = _count_and_index(real)
    source = _gathered(rows, count, index)
    centred = source - source.sum(dim=0) / max(count, 1)
    variance = centred.square().sum(dim=0) / max(count, 1)
    out = centred * torch.rsqrt(variance + epsilon)
    out = out if scale is None else out * scale
    out = out if shift is None else out + shift
    places = torch.arange(count) if index is None else index
    return torch.zeros_like(rows).index_copy(0, places, out)


norm = fused_operation(
    _norm,
    _norm_gradient,
    _norm_reference,
    variables=3,
    results=("out", "new_mean", "new_variance", "mean", "inverse"),
    outputs=3,
)
