"""Batch normalisation over the rows of a mask on CPUs in torch."""

import torch
from torch import Tensor

from keras_bandgnn.ops.backend.torch_fused import fused_operation


def _real_rows(mask) -> tuple:
    """Return the number of rows of a mask, and their index; None for the first rows."""
    count = int(torch.count_nonzero(mask))
    if bool(mask[:count].all()):
        return count, None
    return count, torch.nonzero(mask).reshape(-1)


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
    mask,
    moving_mean,
    moving_variance,
    momentum: float,
    epsilon: float,
):
    """Return the result, new averages, and mean and inverse deviation of the rows."""
    count, index = _real_rows(mask)
    new_mean, new_variance = moving_mean.clone(), moving_variance.clone()
    if count == 0:
        zeros = torch.zeros_like(new_mean)
        return torch.zeros_like(rows), new_mean, new_variance, zeros, zeros.clone()
    out, mean, inverse = map(torch.empty_like, (rows, new_mean, new_mean))
    real = _gathered(rows, count, index)
    # The first rows are written in place.
    normalized = out[:count] if index is None else torch.empty_like(real)
    torch.ops.aten.native_batch_norm.out(
        real,
        weight=scale,
        bias=shift,
        running_mean=None,
        running_var=None,
        training=True,
        momentum=0.0,
        eps=epsilon,
        out=normalized,
        save_mean=mean,
        save_invstd=inverse,
    )
    if index is None:
        out[count:] = 0
    else:
        out = _spread(normalized, rows, count, index)
    # The moving variance is unbiased, and 0 for one row.
    variance = (inverse**-2 - epsilon).clamp_min_(0) * (count / max(count - 1, 1))
    new_mean.lerp_(mean, 1.0 - momentum)
    new_variance.lerp_(variance, 1.0 - momentum)
    return out, new_mean, new_variance, mean, inverse


def _norm_gradient(d_out, rows, scale, mask, mean, inverse, epsilon):
    count, index = _real_rows(mask)
    if count == 0:
        return torch.zeros_like(rows), torch.zeros_like(mean), torch.zeros_like(mean)
    real, slopes = (_gathered(t, count, index) for t in (rows, d_out))
    needed = [True, scale is not None, True]
    d_rows, d_scale, d_shift = torch.ops.aten.native_batch_norm_backward(
        slopes, real, scale, None, None, mean, inverse, True, epsilon, needed
    )
    return _spread(d_rows, rows, count, index), d_scale, d_shift


def _norm_reference(rows, scale, shift, mask, epsilon):
    real = mask[:, None].to(rows.dtype)
    count = real.sum().clamp_min(1.0)
    centred = rows - (rows * real).sum(dim=0) / count
    variance = (centred.square() * real).sum(dim=0) / count
    out = centred * torch.rsqrt(variance + epsilon)
    out = out if scale is None else out * scale
    return (out if shift is None else out + shift) * real


norm = fused_operation(
    _norm,
    _norm_gradient,
    _norm_reference,
    variables=3,
    results=("out", "new_mean", "new_variance", "mean", "inverse"),
    outputs=3,
)
