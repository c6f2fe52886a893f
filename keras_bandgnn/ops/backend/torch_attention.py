"""Attention within the segments of a sequence on CPUs, by torch's fused kernel."""

import torch

from keras_bandgnn.ops.backend.torch_eager import plain_gradients
from keras_bandgnn.ops.backend.torch_library import operation

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# Added to the logits of pairs that do not see each other.
_UNSEEN = -1e30


def _heads(rows, heads):
    """Rows [R, L, K d] as [R, K, L, d]."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def _pieces(mask):
    """Return what is attended at once: sequences, rows, bias [R, 1, 1, L] or None.

    All sequences of one segment are; otherwise each segment is a piece.
    """
    real = mask > 0
    if len(mask) > 1 and bool(((mask == mask[:, :1]) | ~real).all()):
        bias = torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(~real, _UNSEEN)
        return [(slice(None), slice(None), bias[:, None, None])]
    pieces = []
    for number, row in enumerate(mask):
        ids, counts = torch.unique_consecutive(row, return_counts=True)
        first = 0
        for id, count in zip(ids.tolist(), counts.tolist(), strict=True):
            if id > 0:
                pieces.append(
                    (slice(number, number + 1), slice(first, first + count), None)
                )
            first += count
    return pieces


@operation(
    "segment_attention(Tensor q, Tensor k, Tensor v, Tensor mask, int heads)"
    " -> (Tensor, Tensor)"
)
def _segment_attention(q, k, v, mask, heads):
    out, logs = torch.zeros_like(q), q.new_zeros(len(q), heads, q.shape[1])
    q, k, v, rows = (_heads(t, heads) for t in (q, k, v, out))
    for s, r, bias in _pieces(mask):
        part, log = _attend(*(t[s, :, r] for t in (q, k, v)), 0.0, attn_mask=bias)
        rows[s, :, r], logs[s, :, r] = part, log
    return out.mul_((mask > 0)[..., None]), logs


@operation(
    "segment_attention_gradient(Tensor slope, Tensor q, Tensor k, Tensor v,"
    " Tensor mask, Tensor out, Tensor logs, int heads) -> (Tensor, Tensor, Tensor)"
)
def _segment_attention_gradient(slope, q, k, v, mask, out, logs, heads):
    # Rows of padding are 0 whatever they see.
    slope = slope * (mask > 0)[..., None]
    slopes = [torch.zeros_like(t) for t in (q, k, v)]
    given = [_heads(t, heads) for t in (slope, q, k, v, out)]
    made = [_heads(t, heads) for t in slopes]
    for s, r, bias in _pieces(mask):
        one = [t[s, :, r].contiguous() for t in given]
        parts = _attend_gradient(
            *one, logs[s, :, r].contiguous(), 0.0, False, attn_mask=bias
        )
        for rows, part in zip(made, parts, strict=True):
            rows[s, :, r] = part
    return tuple(slopes)


def _plain(q, k, v, mask, heads):
    q, k, v = (_heads(t, heads) for t in (q, k, v))
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = (mask[:, :, None] == mask[:, None]) & (mask[:, None] > 0)
    share = torch.softmax(logits.masked_fill(~seen[:, None], _UNSEEN), dim=-1)
    return (share @ v).transpose(1, 2).flatten(2) * (mask > 0)[..., None]


class SegmentAttention(torch.autograd.Function):
    """Attention [R, L, K d] of rows to those of the same segment, which adjoin."""

    @staticmethod
    def forward(ctx, q, k, v, mask, heads):
        """Return the rows, 0 where mask [R, L] is."""
        out, logs = _segment_attention(q, k, v, mask, heads)
        ctx.save_for_backward(q, k, v, mask, out, logs)
        ctx.heads = heads
        return out

    @staticmethod
    def backward(ctx, slope):
        """Return the gradients of q, k and v."""
        q, k, v, mask, out, logs = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(q, k, v):
                return _plain(q, k, v, mask, ctx.heads)

            return *plain_gradients(plain, (q, k, v), slope), None, None
        given = q, k, v, mask, out, logs, ctx.heads
        return *_segment_attention_gradient(slope.contiguous(), *given), None, None
