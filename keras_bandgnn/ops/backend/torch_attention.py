"""Attention within the segments of a sequence on CPUs, by torch's fused kernel."""

import torch

from keras_bandgnn.ops.backend.torch_fused import fused_operation

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# Added to the logits of pairs that do not see each other.
_UNSEEN = -1e30


def _heads(rows, count):
    """Return rows [R, L, K d] as [R, K, L, d]."""
    return rows.unflatten(-1, (count, -1)).transpose(1, 2)


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


# Attention [R, L, K d] of rows to those of the same segment, which adjoin; 0 where the
# mask [R, L] is.


def _segment_attention(q, k, v, mask, num_heads: int):
    out, logs = torch.zeros_like(q), q.new_zeros(len(q), num_heads, q.shape[1])
    q, k, v, rows = (_heads(t, num_heads) for t in (q, k, v, out))
    for s, r, bias in _pieces(mask):
        part, log = _attend(*(t[s, :, r] for t in (q, k, v)), 0.0, attn_mask=bias)
        rows[s, :, r], logs[s, :, r] = part, log
    return out.mul_((mask > 0)[..., None]), logs


def _segment_attention_gradient(d_out, q, k, v, mask, out, logs, num_heads):
    # Rows of padding are 0 whatever they see.
    d_out = d_out * (mask > 0)[..., None]
    slopes = [torch.zeros_like(t) for t in (q, k, v)]
    tensors = [_heads(t, num_heads) for t in (d_out, q, k, v, out)]
    by_head = [_heads(t, num_heads) for t in slopes]
    for s, r, bias in _pieces(mask):
        piece = [t[s, :, r].contiguous() for t in tensors]
        parts = _attend_gradient(
            *piece, logs[s, :, r].contiguous(), 0.0, False, attn_mask=bias
        )
        for rows, part in zip(by_head, parts, strict=True):
            rows[s, :, r] = part
    return tuple(slopes)


def _segment_attention_reference(q, k, v, mask, num_heads):
    q, k, v = (_heads(t, num_heads) for t in (q, k, v))
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = (mask[:, :, None] == mask[:, None]) & (mask[:, None] > 0)
    share = torch.softmax(logits.masked_fill(~seen[:, None], _UNSEEN), dim=-1)
    return (share @ v).transpose(1, 2).flatten(2) * (mask > 0)[..., None]


segment_attention = fused_operation(
    _segment_attention,
    _segment_attention_gradient,
    _segment_attention_reference,
    variables=3,
    results=("out", "logs"),
)
