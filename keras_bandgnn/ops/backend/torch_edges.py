"""Messages of edges on CPUs in torch, chunk by chunk and summed at once.

No array with a row per edge is stored for the gradient, which computes rows again: a
chunk of them stays in the CPU cache. Edges are sorted by receiver, padding at the end.
"""

import torch

from keras_bandgnn.ops.backend.torch_eager import plain_gradients
from keras_bandgnn.ops.backend.torch_library import operation

# Edges per chunk.
_EDGES = 4096


@operation("pointer(Tensor r, int count) -> Tensor")
def pointer(r, count):
    """Return where the edges into each of `count` nodes begin, and the last end."""
    return torch.searchsorted(r, torch.arange(count + 1, dtype=r.dtype))


def _chunks(p):
    """Return the real edges in chunks, as pairs of their first and last."""
    real = int(p[-1])
    return [(a, min(a + _EDGES, real)) for a in range(0, real, _EDGES)]


class EdgeSums:
    """Adds the rows of chunks of edges to those of their receivers.

    Args:
        out: [N, H], changed in place.
        r: int64 [E], receivers.
        p: int64 [N + 1], pointers.
    """

    def __init__(self, out, r, p):
        self.out, self.r, self.p = out, r, p
        self.places = torch.arange(min(_EDGES, len(r)))

    def add(self, rows, a, b, weight=None):
        """Add rows [b - a, H] of the edges from a to b, times weights [b - a]."""
        first, last = int(self.r[a]), int(self.r[b - 1]) + 1
        p = (self.p[first : last + 1] - a).clamp_(0, b - a)
        # Of sorted rows, by a kernel that is faster than that of `index_add`.
        places = self.places[: b - a]
        sums = torch.embedding_bag(rows, places, p, False, 0, False, weight, True)[0]
        self.out[first:last] += sums


def _room(x, edges):
    return x.new_empty(min(_EDGES, edges), x.shape[1])


def _picked(x, ids, room):
    return torch.index_select(x, 0, ids, out=room[: len(ids)])


def _gathered(x, receiver):
    """Return the rows of receivers, those of padding 0."""
    return torch.nn.functional.pad(x, (0, 0, 0, 1)).index_select(0, receiver)


def _summed(rows, receiver, count):
    return rows.new_zeros(count + 1, rows.shape[1]).index_add(0, receiver, rows)[:count]


# Sums of relu(x[sender] + edges).


@operation("relu_sum(Tensor x, Tensor e, Tensor s, Tensor r, Tensor p) -> Tensor")
def _relu_sum(x, e, s, r, p):
    out, room = torch.zeros_like(x), _room(x, len(s))
    sums = EdgeSums(out, r, p)
    for a, b in _chunks(p):
        sums.add(_picked(x, s[a:b], room).add_(e[a:b]).relu_(), a, b)
    return out


@operation(
    "relu_sum_gradient(Tensor slope, Tensor x, Tensor e, Tensor s, Tensor r, Tensor p)"
    " -> (Tensor, Tensor)"
)
def _relu_sum_gradient(slope, x, e, s, r, p):
    d_x, d_e = torch.zeros_like(x), torch.empty_like(e)
    room, other, b = _room(x, len(s)), _room(x, len(s)), 0
    for a, b in _chunks(p):
        rows = _picked(x, s[a:b], room).add_(e[a:b])
        d = torch.ops.aten.threshold_backward.grad_input(
            _picked(slope, r[a:b], other), rows, 0, grad_input=d_e[a:b]
        )
        d_x.index_add_(0, s[a:b], d)
    d_e[b:] = 0
    return d_x, d_e


class ReluSum(torch.autograd.Function):
    """Sums [N, H] of relu(x[sender] + e) at receivers."""

    @staticmethod
    def forward(ctx, x, e, sender, receiver, p):
        """Return the sums."""
        ctx.save_for_backward(x, e, sender, receiver, p)
        return _relu_sum(x, e, sender, receiver, p)

    @staticmethod
    def backward(ctx, slope):
        """Return the gradients of x and e."""
        x, e, s, r, p = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(x, e):
                return _summed(torch.relu(x.index_select(0, s) + e), r, len(x))

            return *plain_gradients(plain, (x, e), slope), None, None, None
        given = slope.contiguous(), x, e, s, r, p
        return *_relu_sum_gradient(*given), None, None, None


# Sums of messages behind gates.


def _gate_rows(both, received, e, s, r, a, b, rooms):
    """Return the logits of gates, and messages, of a chunk of edges."""
    width = received.shape[1]
    rows = _picked(both, s[a:b], rooms[0])
    logits, messages = rows[:, :width], rows[:, width:]
    logits += _picked(received, r[a:b], rooms[1])
    if e is not None:
        logits += e[a:b]
    return logits, messages


@operation(
    "gated_sum(Tensor both, Tensor received, Tensor? e, Tensor s, Tensor r, Tensor p)"
    " -> (Tensor, Tensor)"
)
def _gated_sum(both, received, e, s, r, p):
    edges, out = len(s), torch.zeros_like(both)
    logits = received.new_empty(0) if e is None else torch.empty_like(e)
    rooms, b = (_room(both, edges), _room(received, edges)), 0
    sums = EdgeSums(out, r, p)
    for a, b in _chunks(p):
        own, messages = _gate_rows(both, received, e, s, r, a, b, rooms)
        if e is not None:
            logits[a:b] = own
        own.sigmoid_()
        messages *= own
        sums.add(rooms[0][: b - a], a, b)
    if e is not None:
        logits[b:] = 0
    return out, logits


@operation(
    "gated_sum_gradient(Tensor slope, Tensor? d_logits, Tensor both, Tensor received,"
    " Tensor? e, Tensor s, Tensor r, Tensor p) -> (Tensor, Tensor, Tensor)"
)
def _gated_sum_gradient(slope, d_logits, both, received, e, s, r, p):
    width, edges = received.shape[1], len(s)
    d_both, d_received = torch.zeros_like(both), torch.zeros_like(received)
    d_e = received.new_empty(0) if e is None else torch.empty_like(e)
    rooms, b = (_room(both, edges), _room(received, edges)), 0
    other, spare = _room(both, edges), _room(received, edges)
    sums = EdgeSums(d_received, r, p)
    for a, b in _chunks(p):
        gates, messages = _gate_rows(both, received, e, s, r, a, b, rooms)
        gates.sigmoid_()
        d = _picked(slope, r[a:b], other)
        d_gates, d_messages = d[:, :width], d[:, width:]
        d_gates.addcmul_(d_messages, messages)
        d_messages *= gates
        # Of a sigmoid with value g: g (1 - g).
        own = torch.mul(gates, gates, out=spare[: b - a])
        d_gates *= torch.sub(gates, own, out=own)
        if d_logits is not None:
            d_gates += d_logits[a:b]
        if e is not None:
            d_e[a:b] = d_gates
        sums.add(own.copy_(d_gates), a, b)
        d_both.index_add_(0, s[a:b], d)
    if e is not None:
        d_e[b:] = 0
    return d_both, d_received, d_e


class GatedSum(torch.autograd.Function):
    """Sums of gates and of messages behind them, see `ops.edges`.

    `both` [N, 2 U] holds what senders give to logits, and their messages.
    """

    @staticmethod
    def forward(ctx, both, received, e, sender, receiver, p):
        """Return the sums [N, 2 U]; with e the logits [E, U], those of padding 0."""
        ctx.save_for_backward(both, received, e, sender, receiver, p)
        ctx.set_materialize_grads(False)
        return _gated_sum(both, received, e, sender, receiver, p)

    @staticmethod
    def backward(ctx, slope, d_logits):
        """Return the gradients of `both`, `received` and e."""
        both, received, e, s, r, p = ctx.saved_tensors
        slope = torch.zeros_like(both) if slope is None else slope.contiguous()
        if e is None:
            d_logits = None
        if torch.is_grad_enabled():

            def plain(both, received, e):
                sent, messages = both.index_select(0, s).chunk(2, dim=1)
                logits = sent + _gathered(received, r)
                logits = logits if e is None else logits + e
                logits = logits * (r < len(both))[:, None]
                gates = torch.sigmoid(logits)
                rows = torch.cat([gates, gates * messages], dim=1)
                out = _summed(rows, r, len(both))
                return out if d_logits is None else (out, logits)

            slopes = slope if d_logits is None else (slope, d_logits)
            return *plain_gradients(plain, (both, received, e), slopes), *[None] * 3
        d_both, d_received, d_e = _gated_sum_gradient(
            slope, d_logits, both, received, e, s, r, p
        )
        return d_both, d_received, None if e is None else d_e, *[None] * 3


# Scores of attention, and sums by their shares.


def _score_rows(sent, wanted, e, s, r, a, b, rooms):
    rows = _picked(sent, s[a:b], rooms[0])
    rows += _picked(wanted, r[a:b], rooms[1])
    return rows if e is None else rows.add_(e[a:b])


def _by_head(rows, kernel, room):
    """Return rows [C, U] times those of the kernel [K, U / K], [C, K, U / K]."""
    heads = rows.view(len(rows), *kernel.shape[-2:])
    return torch.mul(heads, kernel, out=room[: len(rows)].view(heads.shape))


@operation(
    "scores(Tensor sent, Tensor wanted, Tensor? e, Tensor kernel, float slope,"
    " Tensor s, Tensor r, Tensor p) -> Tensor"
)
def _scores(sent, wanted, e, kernel, slope, s, r, p):
    out = sent.new_zeros(len(s), kernel.shape[0])
    rooms = [_room(sent, len(s)) for _ in range(2)]
    for a, b in _chunks(p):
        rows = _score_rows(sent, wanted, e, s, r, a, b, rooms)
        torch.nn.functional.leaky_relu_(rows, slope)
        # A product with so few columns is slower than this sum.
        torch.sum(_by_head(rows, kernel, rooms[1]), dim=2, out=out[a:b])
    return out


@operation(
    "scores_gradient(Tensor d_out, Tensor sent, Tensor wanted, Tensor? e,"
    " Tensor kernel, float slope, Tensor s, Tensor r, Tensor p)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
def _scores_gradient(d_out, sent, wanted, e, kernel, slope, s, r, p):
    d_sent, d_wanted = torch.zeros_like(sent), torch.zeros_like(wanted)
    d_kernel = torch.zeros_like(kernel)
    d_e = sent.new_empty(0) if e is None else torch.empty_like(e)
    rooms, other, b = [_room(sent, len(s)) for _ in range(2)], _room(sent, len(s)), 0
    sums = EdgeSums(d_wanted, r, p)
    for a, b in _chunks(p):
        rows = _score_rows(sent, wanted, e, s, r, a, b, rooms)
        slopes = d_out[a:b, :, None]
        d = other[: b - a]
        torch.mul(slopes, kernel, out=d.view(b - a, *kernel.shape))
        torch.ops.aten.leaky_relu_backward.grad_input(
            d, rows, slope, False, grad_input=d
        )
        torch.nn.functional.leaky_relu_(rows, slope)
        part = rows.view(b - a, *kernel.shape)
        d_kernel += torch.mul(part, slopes, out=part).sum(dim=0)
        if e is not None:
            d_e[a:b] = d
        d_sent.index_add_(0, s[a:b], d)
        sums.add(d, a, b)
    if e is not None:
        d_e[b:] = 0
    return d_sent, d_wanted, d_e, d_kernel


class Scores(torch.autograd.Function):
    """Scores [E, K] of edges, see `ops.edges`."""

    @staticmethod
    def forward(ctx, sent, wanted, e, kernel, slope, sender, receiver, p):
        """Return the scores, those of padding 0."""
        ctx.save_for_backward(sent, wanted, e, kernel, sender, receiver, p)
        ctx.slope = slope
        return _scores(sent, wanted, e, kernel, slope, sender, receiver, p)

    @staticmethod
    def backward(ctx, d_out):
        """Return the gradients of sent, wanted, e and the kernel."""
        *given, s, r, p = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(sent, wanted, e, kernel):
                rows = sent.index_select(0, s) + _gathered(wanted, r)
                rows = rows if e is None else rows + e
                rows = torch.nn.functional.leaky_relu(rows, ctx.slope)
                rows = (rows.unflatten(1, kernel.shape) * kernel).sum(dim=2)
                return rows * (r < len(wanted))[:, None]

            return *plain_gradients(plain, given, d_out), *[None] * 4
        d_sent, d_wanted, d_e, d_kernel = _scores_gradient(
            d_out.contiguous(), *given, ctx.slope, s, r, p
        )
        d_e = None if given[2] is None else d_e
        return d_sent, d_wanted, d_e, d_kernel, *[None] * 4


@operation("share_sum(Tensor shares, Tensor x, Tensor s, Tensor r, Tensor p) -> Tensor")
def _share_sum(shares, x, s, r, p):
    out, heads = torch.zeros_like(x), shares.shape[1]
    room, sums = _room(x, len(s)), EdgeSums(out, r, p)
    for a, b in _chunks(p):
        rows = _picked(x, s[a:b], room)
        rows.view(b - a, heads, -1).mul_(shares[a:b, :, None])
        sums.add(rows, a, b)
    return out


@operation(
    "share_sum_gradient(Tensor d_out, Tensor shares, Tensor x, Tensor s, Tensor r,"
    " Tensor p) -> (Tensor, Tensor)"
)
def _share_sum_gradient(d_out, shares, x, s, r, p):
    d_x, d_shares = torch.zeros_like(x), torch.zeros_like(shares)
    heads = shares.shape[1]
    room, other = _room(x, len(s)), _room(x, len(s))
    for a, b in _chunks(p):
        rows, d = _picked(x, s[a:b], room), _picked(d_out, r[a:b], other)
        rows *= d
        torch.sum(rows.view(b - a, heads, -1), dim=2, out=d_shares[a:b])
        d.view(b - a, heads, -1).mul_(shares[a:b, :, None])
        d_x.index_add_(0, s[a:b], d)
    return d_shares, d_x


class ShareSum(torch.autograd.Function):
    """Sums [N, U] of x[sender] at receivers, of each head by its shares [E, K]."""

    @staticmethod
    def forward(ctx, shares, x, sender, receiver, p):
        """Return the sums."""
        ctx.save_for_backward(shares, x, sender, receiver, p)
        return _share_sum(shares, x, sender, receiver, p)

    @staticmethod
    def backward(ctx, d_out):
        """Return the gradients of the shares and of x."""
        shares, x, s, r, p = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(shares, x):
                rows = x.index_select(0, s).view(*shares.shape, -1)
                rows = (rows * shares[:, :, None]).flatten(1)
                return _summed(rows, r, len(x))

            return *plain_gradients(plain, (shares, x), d_out), None, None, None
        given = d_out.contiguous(), shares, x, s, r, p
        return *_share_sum_gradient(*given), None, None, None


class FusedEdges:
    """The operations of `ops.edges`, of rows without the axis G."""

    ids = "int64"
    relu_sum = ReluSum.apply
    gated_sum = GatedSum.apply
    scores = Scores.apply
    share_sum = ShareSum.apply
    # Operations one by one are as fast.
    vector_sum = None
    pointer = staticmethod(pointer)

    def __init__(self, apply_to, score_attention):
        self.apply_to = apply_to
        self.score_attention = score_attention
