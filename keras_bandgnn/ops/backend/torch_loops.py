"""Torch implementations of `ops.loops`."""

import torch

from keras_bandgnn.ops.backend.torch_eager import plain_gradients


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, forward, backward, *tensors):
        out, kept = forward(*tensors)
        ctx.forward_of, ctx.backward_of = forward, backward
        # As attributes, outputs and `ctx` would hold each other for ever.
        ctx.save_for_backward(*tensors, *kept)
        ctx.count = len(tensors)
        return tuple(out)

    @staticmethod
    def backward(ctx, *slopes):
        tensors = ctx.saved_tensors[: ctx.count]
        if torch.is_grad_enabled():

            def plain(*tensors):
                return ctx.forward_of(*tensors)[0]

            return None, None, *plain_gradients(plain, tensors, slopes)
        kept = ctx.saved_tensors[ctx.count :]
        return (None, None, *ctx.backward_of(kept, *slopes))


def with_gradient(forward, backward, tensors):
    """`forward(*tensors)`, with `backward` as its gradient; see `ops.loops`."""
    return _WithGradient.apply(forward, backward, *tensors)


def fold(step, carry, rows, size):
    """Folds `step` over pieces of rows; see `ops.loops`."""
    count = next(iter(rows.values())).shape[0]
    found = []
    for a in range(0, max(count, 1), size):
        carry, out = step(carry, {k: v[a : a + size] for k, v in rows.items()})
        found.append(out)
    if len(found) == 1 or found[0] is None:
        return carry, found[0]
    return carry, torch.cat(found)


def zeros_after(like):
    """Zeros; see `ops.loops`."""
    return torch.zeros_like(like)


def map_pieces(function, pieces, shared):
    """`function` of each piece along axis 0, keeping nothing inside for gradients."""
    from torch.utils.checkpoint import checkpoint

    outs = [
        checkpoint(function, *piece, *shared, use_reentrant=False)
        for piece in zip(*pieces, strict=True)
    ]
    return tuple(torch.stack(parts) for parts in zip(*outs, strict=True))


def numbered_dropout(x, rate, seed, number):
    """Dropout; its mask follows from torch's own state, which checkpoints restore."""
    del seed, number
    return torch.nn.functional.dropout(x, rate)


def add_rows(out, ids, rows):
    """`out` with rows added at ids, in place; see `ops.loops`."""
    return out.index_add_(0, ids, rows)
