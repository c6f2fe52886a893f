"""Attention along edges in eager torch on CPUs: sparse products, head by head."""

import warnings

import torch


def _heads(x, num_heads):
    """[N, K d] as K contiguous arrays [N, d]."""
    return x.reshape(x.shape[0], num_heads, -1).transpose(0, 1).contiguous()


def _rows(heads):
    """K arrays [N, d] as [N, K d]."""
    return torch.cat(list(heads), dim=1)


class _Pattern:
    """The places of the edges in a matrix of receivers by senders, and transposed."""

    def __init__(self, sender, receiver, num_receivers, num_senders):
        self.shape = num_receivers, num_senders
        self.sender = sender.to(torch.int32)
        self.pointer = self._pointer(receiver, num_receivers)
        self.order = torch.argsort(sender, stable=True)
        self.back_column = receiver.index_select(0, self.order).to(torch.int32)
        by_sender = sender.index_select(0, self.order)
        self.back_pointer = self._pointer(by_sender, num_senders)

    @staticmethod
    def _pointer(ids, count):
        edges = torch.arange(count + 1, dtype=ids.dtype)
        return torch.searchsorted(ids, edges, out_int32=True)

    def matrix(self, values):
        """The matrix with a value per edge."""
        return _csr(self.pointer, self.sender, values, self.shape)

    def product(self, values, heads):
        """Sums of `values` [K, E] times the senders' rows, K arrays [N, d]."""
        return [self.matrix(v) @ h for v, h in zip(values, heads, strict=True)]

    def back_product(self, values, heads):
        """The same with senders and receivers exchanged."""
        values = values.index_select(1, self.order)
        facts = self.back_pointer, self.back_column
        return [
            _csr(*facts, v, self.shape[::-1]) @ h
            for v, h in zip(values, heads, strict=True)
        ]

    def dots(self, receivers, senders):
        """Dot products of the rows of both ends of each edge, [K, E]."""
        zeros = torch.zeros(self.sender.shape[0])
        found = [
            torch.sparse.sampled_addmm(self.matrix(zeros), a, b.t(), beta=0.0).values()
            for a, b in zip(receivers, senders, strict=True)
        ]
        return torch.stack(found)


def _csr(pointer, column, values, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR is "in beta".
        return torch.sparse_csr_tensor(
            pointer, column, values, shape, check_invariants=False
        )


class EdgeAttention(torch.autograd.Function):
    """`ops.edge_attention` of flat rows."""

    @staticmethod
    def forward(ctx, q, k, v, bias, weight, sender, receiver, num_heads, empty):
        """Sums [N, K d] and logarithms [N, K]."""
        pattern = _Pattern(sender, receiver, q.shape[0], k.shape[0])
        heads = [_heads(x, num_heads) for x in (q, k, v)]
        scale = heads[0].shape[2] ** -0.5
        scores = pattern.dots(heads[0] * scale, heads[1])
        scores += bias.t()
        lengths = pattern.pointer.long()
        top = torch.segment_reduce(
            scores.t().contiguous(), "max", offsets=lengths, axis=0
        ).t()
        # Receivers without edges have no largest score.
        top = torch.where((top > 0.5 * empty) & torch.isfinite(top), top, 0.0)
        receiver = receiver.long()
        share = torch.exp(scores - top.index_select(1, receiver))
        share = torch.where(bias.t() > 0.5 * empty, share, 0.0)
        ones = torch.ones(k.shape[0], 1)
        total = torch.cat([pattern.matrix(s) @ ones for s in share], dim=1).t()
        some = total > 0
        total = torch.where(some, total, 1.0)
        share = share / total.index_select(1, receiver)
        used = share if weight is None else share * weight.t()
        out = pattern.product(used, heads[2])
        ctx.pattern, ctx.scale, ctx.receiver = pattern, scale, receiver
        ctx.save_for_backward(*heads, *out, share, weight)
        logs = torch.where(some, top + torch.log(total), empty)
        return _rows(out), logs.t()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_logs):
        """Gradients of `q`, `k`, `v` and `bias`."""
        q, k, v, *out, share, weight = ctx.saved_tensors
        pattern, num_heads = ctx.pattern, share.shape[0]
        slopes = _heads(d_out, num_heads)
        rest = d_logs.t() - (slopes * torch.stack(out)).sum(dim=2)
        d_score = pattern.dots(slopes, v)
        used = share
        if weight is not None:
            d_score *= weight.t()
            used = share * weight.t()
        d_score += rest.index_select(1, ctx.receiver)
        d_score *= share
        d_v = _rows(pattern.back_product(used, slopes))
        d_q = _rows(pattern.product(d_score, k)) * ctx.scale
        d_k = _rows(pattern.back_product(d_score, q)) * ctx.scale
        return d_q, d_k, d_v, d_score.t(), *[None] * 5
