"""Operations of their own for torch on CPUs, which records keep as one operation.

They may read values on the host, which `make_fx` could not follow. All are made for
`autograd.Function`: gradients are operations, too.
"""

import torch

from keras_bandgnn.ops.backend.torch_eager import plain_gradients

_library = torch.library.Library("keras_bandgnn", "DEF")


def operation(schema: str):
    """Return a decorator that makes a function an operation of torch on CPUs.

    Args:
        schema: Its name, arguments and results, as torch writes them.
    """
    name = schema.partition("(")[0]

    def register(function):
        _library.define(schema)
        _library.impl(name, function, "CPU")
        return getattr(torch.ops.keras_bandgnn, name).default

    return register


# Sums of rows.


@operation(
    "rows_sum(Tensor pointer, Tensor column, Tensor? weight, Tensor x) -> Tensor"
)
def rows_sum(pointer, column, weight, x):
    """Return the sums [N, H] of rows of x between pointers [N + 1]: a sparse product.

    The kernel of `embedding_bag` writes no rows but the sums. Columns behind the last
    pointer are padding.
    """
    if len(pointer) and int(pointer[0]):
        # Keras builds models on tensors of ones, which the kernel of half precision
        # refuses.
        return x.new_zeros(len(pointer) - 1, x.shape[1])
    weight = None if weight is None else weight.to(x.dtype)
    return torch.embedding_bag(
        x, column, pointer.to(column.dtype), False, 0, False, weight, True
    )[0]


@operation("dropout_mask(Tensor x, float rate) -> Tensor")
def dropout_mask(x, rate):
    """Return 0 or 1 / (1 - rate) for each entry of x."""
    # Four numbers of 16 bits from each word of the generator.
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()]
    keep = bits.view(x.shape) >= round(rate * 2**16) - 2**15
    return keep.to(x.dtype).mul_(1 / (1 - rate))


# Batch normalisation over the rows of a mask.


def _real_rows(mask) -> tuple:
    """Return the number of rows of a mask, and their places, None for the first."""
    count = int(torch.count_nonzero(mask))
    if bool(mask[:count].all()):
        return count, None
    return count, torch.nonzero(mask).reshape(-1)


def _chosen(rows, count, index):
    return rows[:count] if index is None else torch.index_select(rows, 0, index)


def _spread(values, rows, count, index):
    """Return zeros like `rows`, with values at the rows of the mask."""
    if index is None and count == len(rows):
        return values
    if index is None:
        out = torch.empty_like(rows)
        out[:count], out[count:] = values, 0
        return out
    return torch.zeros_like(rows).index_copy_(0, index, values)


@operation(
    "norm(Tensor rows, Tensor mask, Tensor? scale, Tensor? shift, Tensor mean,"
    " Tensor variance, float momentum, float epsilon)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _norm(rows, mask, scale, shift, mean, variance, momentum, epsilon):
    """Return rows, new averages, and mean and inverse deviation of the rows."""
    count, index = _real_rows(mask)
    mean, variance = mean.clone(), variance.clone()
    if count == 0:
        zeros = torch.zeros_like(mean)
        return torch.zeros_like(rows), mean, variance, zeros, zeros.clone()
    out, own, inverse = map(torch.empty_like, (rows, mean, mean))
    real = _chosen(rows, count, index)
    # The first rows are written where they belong.
    normalized = out[:count] if index is None else torch.empty_like(real)
    torch.ops.aten.native_batch_norm.out(
        *(real, scale, shift, None, None, True, 0.0, epsilon),
        out=normalized,
        save_mean=own,
        save_invstd=inverse,
    )
    if index is None:
        out[count:] = 0
    else:
        out = _spread(normalized, rows, count, index)
    # The moving variance is the unbiased one, of one row 0.
    spread = (inverse**-2 - epsilon).clamp_min_(0) * (count / max(count - 1, 1))
    mean.lerp_(own, 1.0 - momentum)
    variance.lerp_(spread, 1.0 - momentum)
    return out, mean, variance, own, inverse


@operation(
    "norm_gradient(Tensor slope, Tensor rows, Tensor mask, Tensor? scale, Tensor mean,"
    " Tensor inverse, float epsilon) -> (Tensor, Tensor, Tensor)"
)
def _norm_gradient(slope, rows, mask, scale, mean, inverse, epsilon):
    count, index = _real_rows(mask)
    if count == 0:
        return torch.zeros_like(rows), torch.zeros_like(mean), torch.zeros_like(mean)
    real, part = (_chosen(each, count, index) for each in (rows, slope))
    wanted = [True, scale is not None, True]
    d_rows, d_scale, d_shift = torch.ops.aten.native_batch_norm_backward(
        part, real, scale, None, None, mean, inverse, True, epsilon, wanted
    )
    d_scale = torch.zeros_like(mean) if d_scale is None else d_scale
    return _spread(d_rows, rows, count, index), d_scale, d_shift


class Norm(torch.autograd.Function):
    """`normalized_rows` of flat rows; see `ops.backend`."""

    @staticmethod
    def forward(ctx, rows, mask, scale, shift, mean, variance, momentum, epsilon):
        """Return the rows, and the new averages."""
        given = rows, mask, scale, shift, mean, variance, momentum, epsilon
        out, mean, variance, own, inverse = _norm(*given)
        ctx.save_for_backward(rows, mask, scale, shift, own, inverse)
        ctx.epsilon = epsilon
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return out, mean, variance

    @staticmethod
    def backward(ctx, slope, *_):
        """Return the gradients of rows, scale and shift."""
        rows, mask, scale, shift, mean, inverse = ctx.saved_tensors
        if slope is None:
            return (None,) * 8
        if torch.is_grad_enabled():

            def plain(rows, scale, shift):
                real = mask[:, None].to(rows.dtype)
                count = real.sum().clamp_min(1.0)
                mean = (rows * real).sum(dim=0) / count
                centred = rows - mean
                variance = (centred.square() * real).sum(dim=0) / count
                out = centred * torch.rsqrt(variance + ctx.epsilon)
                out = out if scale is None else out * scale
                return (out if shift is None else out + shift) * real

            d_rows, *rest = plain_gradients(plain, (rows, scale, shift), slope)
            return d_rows, None, *rest, *[None] * 4
        d_rows, d_scale, d_shift = _norm_gradient(
            slope.contiguous(), rows, mask, scale, mean, inverse, ctx.epsilon
        )
        d_scale = None if scale is None else d_scale
        d_shift = None if shift is None else d_shift
        return d_rows, None, d_scale, d_shift, *[None] * 4
