"""Attention of several heads along edges on CPUs in torch.

Nothing is stored with a row of channels per edge, only one number per edge and head.
Weighted sums and dot products of a head are sparse kernels over contiguous columns.
"""

import warnings

import torch

from keras_bandgnn.ops.backend.torch_eager import plain_gradients
from keras_bandgnn.ops.backend.torch_edges import pointer
from keras_bandgnn.ops.backend.torch_library import operation

# Largest difference of logits whose exponentials are summed without the maximum of
# each receiver: that of the smallest is far from 0.
_SPREAD = 60.0


@operation("transposed(Tensor s, Tensor p, int count) -> (Tensor, Tensor)")
def transposed(s, p, count):
    """Return the real edges by sender, and where those of each of `count` begin."""
    by_sender, order = torch.sort(s[: int(p[-1])], stable=True)
    starts = torch.searchsorted(by_sender, torch.arange(count + 1, dtype=s.dtype))
    return order, starts


def _heads(x, count):
    """Return the columns of each head, [K, N, d], contiguous."""
    return x.view(len(x), count, -1).transpose(0, 1).contiguous()


def _sums(values, heads, column, starts):
    """Sum rows [K, M, d] of columns [E], weighted by values [K, E], to [N, K d]."""
    bag, last = torch.embedding_bag, len(starts) - 1
    parts = [
        bag(rows, column, starts, False, 0, False, weights, True)[0]
        for rows, weights in zip(heads, values, strict=True)
    ]
    return torch.cat(parts, dim=1) if last else heads.new_empty(0, 0)


def _row_sums(rows, order, starts):
    """Sum rows [E, K] in an order between starts."""
    return torch.embedding_bag(rows, order, starts, False, 0, False, None, True)[0]


def _dots(receivers, senders, sender, starts, scale=1.0):
    """Return scaled dot products of heads [K, N, d] at both ends of edges, [K, E]."""
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
    return (rows.view(*values.shape, -1) * values[:, :, None]).view(rows.shape)


def _inner(a, b, count):
    """Return the dot products of rows [N, K d], head by head, [N, K]."""
    return (a * b).view(len(a), count, -1).sum(dim=2)


# Attention by queries and keys.


@operation(
    "edge_attention(Tensor q, Tensor k, Tensor v, Tensor bias, Tensor? weight,"
    " Tensor s, Tensor r, Tensor p, int heads, float empty)"
    " -> (Tensor, Tensor, Tensor)"
)
def _edge_attention(q, k, v, bias, weight, s, r, p, heads, empty):
    scale = (q.shape[1] // heads) ** -0.5
    scores = _dots(_heads(q, heads), _heads(k, heads), s, p, scale)
    if bias.dim() == 1:
        scores.masked_fill_(~bias, empty)
    else:
        scores += bias.t()
    top = torch.segment_reduce(scores.t().contiguous(), "max", offsets=p, axis=0)
    # Receivers without edges have no maximum.
    top = torch.where((top > 0.5 * empty) & torch.isfinite(top), top, 0.0)
    share = scores.sub_(top.t().index_select(1, r)).exp_()
    # Those of masked edges are 0.
    total = _row_sums(share.t().contiguous(), torch.arange(len(s)), p)
    some = total > 0
    total = torch.where(some, total, 1.0)
    share *= total.reciprocal().t().index_select(1, r)
    used = share if weight is None else share * weight.t()
    out = _sums(used, _heads(v, heads), s, p)
    logs = torch.where(some, top + torch.log(total), empty)
    return out, logs, share


@operation(
    "edge_attention_gradient(Tensor d_out, Tensor d_logs, Tensor q, Tensor k,"
    " Tensor v, Tensor out, Tensor share, Tensor? weight, Tensor s, Tensor r, Tensor p,"
    " Tensor order, Tensor starts) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _edge_attention_gradient(
    d_out, d_logs, q, k, v, out, share, weight, s, r, p, order, starts
):
    count = len(share)
    scale = (q.shape[1] // count) ** -0.5
    slopes = _heads(d_out, count)
    d_score = _dots(slopes, _heads(v, count), s, p)
    used = share
    if weight is not None:
        d_score *= weight.t()
        used = share * weight.t()
    rest = (d_logs - _inner(d_out, out, count)).t().contiguous()
    d_score += rest.index_select(1, r)
    d_score *= share
    back = r[order]
    d_v = _sums(used[:, order], slopes, back, starts)
    d_q = _sums(d_score, _heads(k, count), s, p).mul_(scale)
    d_k = _sums(d_score[:, order], _heads(q, count), back, starts).mul_(scale)
    return d_q, d_k, d_v, d_score.t().contiguous()


class EdgeAttention(torch.autograd.Function):
    """`ops.edge_attention` of flat rows.

    `plain` is the same function written in differentiable operations.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias, weight, sender, receiver, num_heads, empty, plain):
        """Return attention [N, K d] and log-sum-exp [N, K]."""
        s, r = sender.long(), receiver.long()
        p = pointer(r, len(q))
        out, logs, share = _edge_attention(
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            bias,
            weight,
            *(s, r, p),
            num_heads,
            empty,
        )
        ctx.plain = plain
        ctx.save_for_backward(q, k, v, bias, out, share, weight, s, r, p)
        return out, logs

    @staticmethod
    def backward(ctx, d_out, d_logs):
        """Return the gradients of `q`, `k`, `v` and `bias`."""
        q, k, v, bias, out, share, weight, s, r, p = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(*arguments):
                return ctx.plain(*arguments, s, r, weight)[0]

            gradients = plain_gradients(plain, (q, k, v, bias), (d_out, d_logs))
            return *gradients, *[None] * 6
        back = transposed(s, p, len(k))
        q, k, v, d_out, d_logs = (t.contiguous() for t in (q, k, v, d_out, d_logs))
        given = d_out, d_logs, q, k, v, out, share, weight, s, r, p
        d_q, d_k, d_v, d_score = _edge_attention_gradient(*given, *back)
        return d_q, d_k, d_v, None if bias.dim() == 1 else d_score, *[None] * 6


# Attention by scores of nodes.


def _largest(sent, s, p):
    """Return the largest score of what sends to a node, itself among it, [N, K].

    One for all nodes where scores differ by little.
    """
    top = sent.amax(dim=0, keepdim=True)
    if float((top - sent.amin(dim=0)).max()) <= _SPREAD:
        return top
    rows = torch.segment_reduce(sent[s], "max", offsets=p, axis=0)
    return torch.maximum(rows, sent)


@operation(
    "score_attention(Tensor sent, Tensor wanted, Tensor x, Tensor? weight,"
    " Tensor? own_weight, float slope, Tensor s, Tensor r, Tensor p)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
def _score_attention(sent, wanted, x, weight, own_weight, slope, s, r, p):
    """Return the sums, unnormalised shares of edges and nodes, and 1 / their sums.

    Shares of edges with a score below 0 have a negative sign.
    """
    leaky, count = torch.nn.functional.leaky_relu, sent.shape[1]
    real = int(p[-1])
    s, r = s[:real], r[:real]
    shift = leaky(wanted + _largest(sent, s, p), slope)
    own = leaky(sent + wanted, slope).sub_(shift).exp_()
    received = torch.cat([wanted, shift], dim=1).index_select(0, r)
    scores = sent.index_select(0, s).add_(received[:, :count])
    share = leaky(scores, slope).sub_(received[:, count:]).exp_()
    # A node attends to itself anyway.
    loops = s == r
    if bool(loops.any()):
        share[loops] = 0.0
    total = _row_sums(share, torch.arange(real), p).add_(own)
    total = total.reciprocal_()
    used = share if weight is None else share * weight[:real]
    out = _sums(used.t().contiguous(), _heads(x, count), s, p)
    out += _by_head(x, own if own_weight is None else own * own_weight)
    share = torch.copysign(share, scores).t().contiguous()
    return _by_head(out, total), share, own, total


@operation(
    "score_attention_gradient(Tensor d_out, Tensor sent, Tensor wanted, Tensor x,"
    " Tensor out, Tensor share, Tensor own, Tensor total, Tensor? weight,"
    " Tensor? own_weight, float slope, Tensor s, Tensor r, Tensor p, Tensor order,"
    " Tensor starts) -> (Tensor, Tensor, Tensor)"
)
def _score_attention_gradient(
    d_out,
    sent,
    wanted,
    x,
    out,
    share,
    own,
    total,
    weight,
    own_weight,
    slope,
    s,
    r,
    p,
    order,
    starts,
):
    count, real = sent.shape[1], share.shape[1]
    s, r = s[:real], r[:real]
    rest = _inner(d_out, out, count).mul_(total)
    d = _by_head(d_out, total)
    slopes = _heads(d, count)
    below = torch.signbit(share)
    share = share.abs()
    used = share if weight is None else share * weight[:real].t()
    d_x = _sums(used[:, order], slopes, r[order], starts)
    d_x += _by_head(d, own if own_weight is None else own * own_weight)
    d_scores = _dots(slopes, _heads(x, count), s, p)
    if weight is not None:
        d_scores *= weight[:real].t()
    d_scores -= rest.t().contiguous().index_select(1, r)
    d_scores *= share
    d_scores = torch.where(below, slope * d_scores, d_scores).t().contiguous()
    d_own = _inner(d, x, count)
    if own_weight is not None:
        d_own *= own_weight
    d_own = d_own.sub_(rest).mul_(own)
    d_own = torch.where(sent + wanted < 0, slope * d_own, d_own)
    d_wanted = _row_sums(d_scores, torch.arange(real), p).add_(d_own)
    return _row_sums(d_scores, order, starts).add_(d_own), d_wanted, d_x


class ScoreAttention(torch.autograd.Function):
    """Sums [N, U] of x[sender] and x, by a softmax of scores; see `ops.edges`."""

    @staticmethod
    def forward(ctx, sent, wanted, x, weight, own_weight, slope, sender, receiver, p):
        """Return the sums."""
        given = weight, own_weight, slope, sender, receiver, p
        rows = (t.contiguous() for t in (sent, wanted, x))
        out, *kept = _score_attention(*rows, *given)
        ends = sender, receiver, p
        ctx.save_for_backward(sent, wanted, x, out, *kept, weight, own_weight, *ends)
        ctx.slope = slope
        return out

    @staticmethod
    def backward(ctx, d_out):
        """Return the gradients of sent, wanted and x."""
        *given, weight, own_weight, s, r, p = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(sent, wanted, x):
                leaky = torch.nn.functional.leaky_relu
                seen = (r < len(x)) & (s != r)
                inside = r.clamp_max(len(x) - 1)
                scores = leaky(sent[s] + wanted[inside], ctx.slope)
                own = leaky(sent + wanted, ctx.slope)
                ids = inside[:, None].expand(scores.shape)
                masked = scores.detach().masked_fill(~seen[:, None], -torch.inf)
                top = own.detach().scatter_reduce(0, ids, masked, "amax")
                shares = torch.exp(scores - top[inside]) * seen[:, None]
                own = torch.exp(own - top)
                total = own.index_add(0, inside, shares)
                shares = shares if weight is None else shares * weight
                own = own if own_weight is None else own * own_weight
                rows = _by_head(x[s], shares)
                sums = _by_head(x, own).index_add(0, inside, rows)
                return _by_head(sums, 1.0 / total)

            gradients = plain_gradients(plain, given[:3], d_out)
            return *gradients, *[None] * 6
        back = transposed(s, p, len(given[2]))
        given = (t.contiguous() for t in (d_out, *given))
        gradients = _score_attention_gradient(
            *given, weight, own_weight, ctx.slope, s, r, p, *back
        )
        return *gradients, *[None] * 6
