"""Attention along edges in eager torch on CPUs: sparse products, head by head."""

import warnings

import torch

from keras_bandgnn.ops.backend.torch_eager import plain_gradients


def _head(x, number, width):
    """The columns [N, d] of a head: products want them in one piece."""
    return x[:, number * width : (number + 1) * width].contiguous()


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

    def product(self, values, x, factor=1.0):
        """Sums of `values` [K, E] times the senders' rows of x [M, K d]: [N, K d]."""
        facts = self.pointer, self.sender, self.shape
        return _products(*facts, values, x, factor)

    def back_product(self, values, x, factor=1.0):
        """The same with senders and receivers exchanged."""
        facts = self.back_pointer, self.back_column, self.shape[::-1]
        return _products(*facts, values, x, factor, self.order)

    def dots(self, receivers, senders, num_heads, factor=1.0):
        """Dot products, times a factor, of the rows of both ends of edges: [K, E]."""
        zeros = torch.zeros(self.sender.shape[0])
        found = torch.empty(num_heads, self.sender.shape[0])
        width = receivers.shape[1] // num_heads
        for number in range(num_heads):
            a, b = (_head(x, number, width) for x in (receivers, senders))
            matrix = self.matrix(zeros)
            found[number] = torch.sparse.sampled_addmm(
                matrix, a, b.t(), beta=0.0, alpha=factor
            ).values()
        return found


def _products(pointer, column, shape, values, x, factor, order=None):
    """Head by head: memory beyond the result is that of one head."""
    num_heads = values.shape[0]
    width = x.shape[1] // num_heads
    out = torch.empty(shape[0], x.shape[1])
    for number in range(num_heads):
        entries = values[number]
        if order is not None:
            entries = entries.index_select(0, order)
        part = _csr(pointer, column, entries, shape) @ _head(x, number, width)
        out[:, number * width : (number + 1) * width] = part
    return out if factor == 1.0 else out.mul_(factor)


def _csr(pointer, column, values, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR is "in beta".
        return torch.sparse_csr_tensor(
            pointer, column, values, shape, check_invariants=False
        )


class EdgeAttention(torch.autograd.Function):
    """`ops.edge_attention` of flat rows.

    `plain` is the same by operations that torch differentiates.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias, weight, sender, receiver, num_heads, empty, plain):
        """Sums [N, K d] and logarithms [N, K]."""
        pattern = _Pattern(sender, receiver, q.shape[0], k.shape[0])
        scale = (q.shape[1] // num_heads) ** -0.5
        scores = pattern.dots(q, k, num_heads, scale)
        ctx.alone = bias.dim() == 1
        if ctx.alone:
            scores.masked_fill_(~bias, empty)
        else:
            scores += bias.t()
        lengths = pattern.pointer.long()
        top = torch.segment_reduce(
            scores.t().contiguous(), "max", offsets=lengths, axis=0
        ).t()
        # Receivers without edges have no largest score.
        top = torch.where((top > 0.5 * empty) & torch.isfinite(top), top, 0.0)
        receiver = receiver.long()
        shift = top.index_select(1, receiver)
        left_out = scores <= 0.5 * empty
        share = scores.sub_(shift).exp_().masked_fill_(left_out, 0.0)
        del shift, left_out
        ones = torch.ones(k.shape[0], 1)
        total = torch.cat([pattern.matrix(s) @ ones for s in share], dim=1).t()
        some = total > 0
        total = torch.where(some, total, 1.0)
        share /= total.index_select(1, receiver)
        used = share if weight is None else share * weight.t()
        out = pattern.product(used, v)
        ctx.pattern, ctx.scale, ctx.receiver = pattern, scale, receiver
        ctx.plain, ctx.sender = plain, sender
        ctx.save_for_backward(q, k, v, bias, out, share, weight)
        logs = torch.where(some, top + torch.log(total), empty)
        return out, logs.t()

    @staticmethod
    def backward(ctx, d_out, d_logs):
        """Gradients of `q`, `k`, `v` and `bias`."""
        q, k, v, bias, out, share, weight = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(*given):
                return ctx.plain(*given, ctx.sender, ctx.receiver, weight)[0]

            found = plain_gradients(plain, (q, k, v, bias), (d_out, d_logs))
            return *found, *[None] * 6
        pattern, num_heads = ctx.pattern, share.shape[0]
        rest = (d_out * out).view(len(out), num_heads, -1).sum(dim=2)
        rest = (d_logs - rest).t()
        d_score = pattern.dots(d_out, v, num_heads)
        used = share
        if weight is not None:
            d_score *= weight.t()
            used = share * weight.t()
        d_score += rest.index_select(1, ctx.receiver)
        d_score *= share
        d_v = pattern.back_product(used, d_out)
        d_q = pattern.product(d_score, k, ctx.scale)
        d_k = pattern.back_product(d_score, q, ctx.scale)
        return d_q, d_k, d_v, None if ctx.alone else d_score.t(), *[None] * 6
