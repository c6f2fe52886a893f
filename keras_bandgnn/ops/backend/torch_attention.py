"""Multi-head attention on CPUs in torch: along edges, and within segments.

Along edges no array with a row of channels per edge is stored, only one number per edge
and head. Weighted sums and dot products of a head are sparse kernels over contiguous
columns. Ends of edges are as in `torch_edges`. Segments of a sequence use torch's fused
kernel.
"""

import warnings

import torch
from torch import Tensor

from keras_bandgnn.ops.backend.torch_fused import fused_operation
from keras_bandgnn.ops.backend.torch_lookups import bag, grouped

# Maximum spread of logits for which one shift serves all receivers: the exponential of
# the smallest logit is still far from 0.
_SPREAD = 60.0
# Scores of masked edges, and of pairs in different segments.
_EMPTY = -1e30
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_gradient = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


# A separate operation, so that a record computes it once for all layers.
_DERIVED = {"back": lambda t: [*grouped(t["ends"][0], t["ends"][2], len(t["v"]))]}


def _heads(x, count):
    """Return the columns of each head, [K, N, d], contiguous."""
    return x.reshape(len(x), count, -1).transpose(0, 1).contiguous()


def _sums(values, heads, column, starts):
    """Sum rows [K, M, d] of columns [E], weighted by values [K, E], to [N, K d]."""
    parts = [
        bag(rows, column, starts, weights)
        for rows, weights in zip(heads, values, strict=True)
    ]
    return torch.cat(parts, dim=1) if len(starts) > 1 else heads.new_empty(0, 0)


def _dots(receivers, senders, sender, starts, scale=1.0):
    """Return scaled dot products [K, E] of heads [K, N, d] at both ends of edges."""
    sender, starts = sender.to(torch.int32), starts.to(torch.int32)
    zeros = receivers.new_zeros(len(sender))
    out = receivers.new_empty(len(receivers), len(sender))
    shape = receivers.shape[1], senders.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR is "in beta".
        for row, a, b in zip(out, receivers, senders, strict=True):
            pattern = torch.sparse_csr_tensor(
                starts, sender, zeros, shape, check_invariants=False
            )
            product = torch.sparse.sampled_addmm(
                pattern, a, b.t(), beta=0.0, alpha=scale
            )
            row.copy_(product.values())
    return out


def _by_head(rows, values):
    """Multiply rows [N, K d] by values [N, K], head by head."""
    return (rows.reshape(*values.shape, -1) * values[:, :, None]).reshape(rows.shape)


def _inner(a, b, count):
    """Return the dot products [N, K] of rows [N, K d], head by head."""
    return (a * b).reshape(len(a), count, -1).sum(dim=2)


# Attention [N, K d] by queries and keys, with its log-sum-exp [N, K].


def _edge_attention(
    q,
    k,
    v,
    bias,
    weight: Tensor | None,
    ends: list[Tensor],
    num_heads: int,
    empty: float,
):
    """Return attention, log-sum-exp, and the shares of edges [K, E]."""
    s, r, p = ends
    scale = (q.shape[1] // num_heads) ** -0.5
    scores = _dots(_heads(q, num_heads), _heads(k, num_heads), s, p, scale)
    if bias.dim() == 1:
        scores.masked_fill_(~bias, empty)
    else:
        scores += bias.t()
    top = torch.segment_reduce(scores.t().contiguous(), "max", offsets=p, axis=0)
    # Receivers without edges have no maximum.
    top = torch.where((top > 0.5 * empty) & torch.isfinite(top), top, 0.0)
    # Masked edges contribute exp(-inf) = 0.
    share = scores.sub_(top.t().index_select(1, r)).exp_()
    total = bag(share.t().contiguous(), torch.arange(len(s)), p)
    some = total > 0
    total = torch.where(some, total, 1.0)
    share *= total.reciprocal().t().index_select(1, r)
    weighted = share if weight is None else share * weight.t()
    out = _sums(weighted, _heads(v, num_heads), s, p)
    return out, torch.where(some, top + torch.log(total), empty), share


def _edge_attention_gradient(
    d_out, d_logs, q, k, v, bias, weight, out, share, ends, back
):
    (s, r, p), (order, starts), count = ends, back, len(share)
    d_out = torch.zeros_like(out) if d_out is None else d_out
    scale = (q.shape[1] // count) ** -0.5
    slopes = _heads(d_out, count)
    d_score = _dots(slopes, _heads(v, count), s, p)
    weighted = share
    if weight is not None:
        d_score *= weight.t()
        weighted = share * weight.t()
    shift = _inner(d_out, out, count).neg_()
    shift = shift if d_logs is None else shift.add_(d_logs)
    d_score += shift.t().contiguous().index_select(1, r)
    d_score *= share
    receiver = r[order]
    d_v = _sums(weighted[:, order], slopes, receiver, starts)
    d_q = _sums(d_score, _heads(k, count), s, p).mul_(scale)
    d_k = _sums(d_score[:, order], _heads(q, count), receiver, starts).mul_(scale)
    return d_q, d_k, d_v, d_score.t().contiguous() if bias.dim() > 1 else None


def _attention(scores, v, weight, s, r, count, empty):
    """Return attention of `count` nodes by scores [E, K], and its log-sum-exp."""
    # Softmax is invariant to the shift, so the shift needs no gradient.
    ids = r[:, None].expand(scores.shape)
    top = scores.new_full((count, scores.shape[1]), empty)
    top = top.scatter_reduce(0, ids, scores.detach(), "amax")
    top = torch.where(top > 0.5 * empty, top, 0.0)
    share = torch.exp(scores - top[r])
    total = torch.zeros_like(top).index_add(0, r, share)
    some = total > 0
    total = torch.where(some, total, 1.0)
    share = share / total[r]
    rows = _by_head(v[s], share if weight is None else share * weight)
    out = rows.new_zeros(count, rows.shape[1]).index_add(0, r, rows)
    return out, torch.where(some, top + torch.log(total), empty)


def _edge_attention_reference(q, k, v, bias, weight, ends, num_heads, empty):
    s, r, _ = ends
    scores = _inner(q[r], k[s], num_heads) * (q.shape[1] // num_heads) ** -0.5
    if bias.dim() == 1:
        scores = torch.where(bias[:, None], scores, empty)
    else:
        scores = scores + bias
    return _attention(scores, v, weight, s, r, len(q), empty)


edge_attention = fused_operation(
    _edge_attention,
    _edge_attention_gradient,
    _edge_attention_reference,
    variables=4,
    results=("out", "logs", "share"),
    outputs=2,
    derived=_DERIVED,
)


# Sums [N, U] of v[sender] and v, by a softmax of scores of nodes.


def _largest(sent, s, p):
    """Return the largest score [N, K] of the senders to each node and the node itself.

    If scores differ by little, it is that of all nodes.
    """
    top = sent.amax(dim=0, keepdim=True)
    if float((top - sent.amin(dim=0)).max()) <= _SPREAD:
        return top
    rows = torch.segment_reduce(sent[s], "max", offsets=p, axis=0)
    return torch.maximum(rows, sent)


def _score_attention(
    sent,
    received,
    v,
    weight: Tensor | None,
    loop_weight: Tensor | None,
    slope: float,
    ends: list[Tensor],
):
    """Return the sums, unnormalised shares of edges and loops, and 1 / their sums.

    Shares of edges with a score below 0 have a negative sign.
    """
    leaky, count = torch.nn.functional.leaky_relu, sent.shape[1]
    s, r, p = ends
    real = int(p[-1])
    s, r = s[:real], r[:real]
    shift = leaky(received + _largest(sent, s, p), slope)
    loop = leaky(sent + received, slope).sub_(shift).exp_()
    rows = torch.cat([received, shift], dim=1).index_select(0, r)
    scores = sent.index_select(0, s).add_(rows[:, :count])
    share = leaky(scores, slope).sub_(rows[:, count:]).exp_()
    # Self-attention is a separate term: skip self-loops in the data.
    loops = s == r
    if bool(loops.any()):
        share[loops] = 0.0
    total = bag(share, torch.arange(real), p).add_(loop)
    total = total.reciprocal_()
    weighted = share if weight is None else share * weight[:real]
    out = _sums(weighted.t().contiguous(), _heads(v, count), s, p)
    out += _by_head(v, loop if loop_weight is None else loop * loop_weight)
    share = torch.copysign(share, scores).t().contiguous()
    return _by_head(out, total), share, loop, total


def _score_attention_gradient(
    d_out,
    sent,
    received,
    v,
    weight,
    loop_weight,
    out,
    share,
    loop,
    total,
    slope,
    ends,
    back,
):
    (s, r, p), (order, starts), (count, real) = ends, back, share.shape
    s, r = s[:real], r[:real]
    shift = _inner(d_out, out, count).mul_(total)
    d = _by_head(d_out, total)
    slopes = _heads(d, count)
    below = torch.signbit(share)
    share = share.abs()
    weighted = share if weight is None else share * weight[:real].t()
    d_v = _sums(weighted[:, order], slopes, r[order], starts)
    d_v += _by_head(d, loop if loop_weight is None else loop * loop_weight)
    d_scores = _dots(slopes, _heads(v, count), s, p)
    if weight is not None:
        d_scores *= weight[:real].t()
    d_scores -= shift.t().contiguous().index_select(1, r)
    d_scores *= share
    d_scores = torch.where(below, slope * d_scores, d_scores).t().contiguous()
    d_loop = _inner(d, v, count)
    if loop_weight is not None:
        d_loop *= loop_weight
    d_loop = d_loop.sub_(shift).mul_(loop)
    d_loop = torch.where(sent + received < 0, slope * d_loop, d_loop)
    d_received = bag(d_scores, torch.arange(real), p).add_(d_loop)
    return bag(d_scores, order, starts).add_(d_loop), d_received, d_v


def _score_attention_reference(sent, received, v, weight, loop_weight, slope, ends):
    count, (s, r, _) = len(v), ends
    seen = (r < count) & (s != r)
    # Self-attention as further edges.
    nodes = torch.arange(count)
    s, r = torch.cat([s, nodes]), torch.cat([r.clamp_max(count - 1), nodes])
    seen = torch.cat([seen, torch.ones_like(nodes, dtype=torch.bool)])
    scores = torch.nn.functional.leaky_relu(sent[s] + received[r], slope)
    scores = torch.where(seen[:, None], scores, _EMPTY)
    weight = None if weight is None else torch.cat([weight, loop_weight])
    return _attention(scores, v, weight, s, r, count, _EMPTY)[0]


score_attention = fused_operation(
    _score_attention,
    _score_attention_gradient,
    _score_attention_reference,
    variables=3,
    results=("out", "share", "loop", "total"),
    derived=_DERIVED,
)


def _rows_by_head(rows, count):
    """Return rows [R, L, K d] as [R, K, L, d]."""
    return rows.unflatten(-1, (count, -1)).transpose(1, 2)


def _pieces(mask):
    """Return pieces that attend at once: sequences, rows, bias [R, 1, 1, L] or None.

    There is one piece if each sequence is one segment; otherwise one per segment.
    Sequences of padding, after the others, are in none.
    """
    real = mask > 0
    if len(mask) > 1 and bool(((mask == mask[:, :1]) | ~real).all()):
        places = torch.nonzero(real[:, 0])
        if not len(places):
            return []
        real = real[: int(places[-1]) + 1]
        bias = torch.zeros(real.shape, dtype=torch.float32).masked_fill_(~real, _EMPTY)
        return [(slice(0, len(real)), slice(None), bias[:, None, None])]
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
    q, k, v, rows = (_rows_by_head(t, num_heads) for t in (q, k, v, out))
    for s, r, bias in _pieces(mask):
        part, log = _attend(*(t[s, :, r] for t in (q, k, v)), 0.0, attn_mask=bias)
        rows[s, :, r], logs[s, :, r] = part, log
    return out.mul_((mask > 0)[..., None]), logs


def _segment_attention_gradient(d_out, q, k, v, mask, out, logs, num_heads):
    # Rows of padding are 0.
    d_out = d_out * (mask > 0)[..., None]
    slopes = [torch.zeros_like(t) for t in (q, k, v)]
    tensors = [_rows_by_head(t, num_heads) for t in (d_out, q, k, v, out)]
    by_head = [_rows_by_head(t, num_heads) for t in slopes]
    for s, r, bias in _pieces(mask):
        piece = (t[s, :, r] for t in tensors)
        parts = _attend_gradient(
            *piece, logs[s, :, r].contiguous(), 0.0, False, attn_mask=bias
        )
        for rows, part in zip(by_head, parts, strict=True):
            rows[s, :, r] = part
    return tuple(slopes)


def _segment_attention_reference(q, k, v, mask, num_heads):
    q, k, v = (_rows_by_head(t, num_heads) for t in (q, k, v))
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = (mask[:, :, None] == mask[:, None]) & (mask[:, None] > 0)
    share = torch.softmax(logits.masked_fill(~seen[:, None], _EMPTY), dim=-1)
    return (share @ v).transpose(1, 2).flatten(2) * (mask > 0)[..., None]


segment_attention = fused_operation(
    _segment_attention,
    _segment_attention_gradient,
    _segment_attention_reference,
    variables=3,
    results=("out", "logs"),
)
