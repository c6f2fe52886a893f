"""Fused messages of edges on CPUs in torch, summed chunk by chunk.

No array with a row per edge is stored: the gradient recomputes rows, and the rows of a
chunk stay in the CPU cache. The ends of edges are senders and receivers, int64
[E], sorted by receiver with padding at the end, and pointers [N + 1] to the edges into
each node. Sparse products and products by type work on any rows.
"""

import threading

import torch
from torch import Tensor

from keras_bandgnn.config import products_by_onednn
from keras_bandgnn.ops.backend.torch_fused import fused_operation, operation
from keras_bandgnn.ops.backend.torch_lookups import bag, grouped

# Edges per chunk.
_EDGES = 8192
# Maximum number of rows of memory that stays between calls.
_LARGEST_ROOM = 1 << 14
# Rows per product by type. oneDNN compiles a kernel for each number of rows, which
# takes longer than most products, so there are few. Without it only the first is used.
_LENGTHS = (4096, 2048, 1024, 512)


@operation
def pointer(r: Tensor, count: int) -> Tensor:
    """Return the row pointers of edges into `count` nodes, int64 [count + 1].

    Receivers of padding are at least `count`.
    """
    out = r.new_zeros(count + 1)
    counts = torch.bincount(r, minlength=count)
    out[1:] = torch.cumsum(counts[:count], dim=0)
    return out


def ends(sender, receiver, count) -> list:
    """Return the ends of edges between `count` nodes."""
    receiver = receiver.long()
    return [sender.long(), receiver, pointer(receiver, count)]


def _chunks(ends):
    """Return chunks of the real edges as pairs (start, stop)."""
    real = int(ends[2][-1])
    return [(a, min(a + _EDGES, real)) for a in range(0, real, _EDGES)]


class _Workspace(threading.local):
    """Memory that the calls of a thread share: new memory is not in the CPU's cache."""

    def __init__(self):
        self.rooms: dict = {}

    def rows(self, name: str, like, count: int):
        """Return memory [count, H] for rows like others, valid until the next call.

        Args:
            name: Calls with the same name share memory.
            like: Rows [N, H].
            count: Number of rows.
        """
        width = like.shape[1]
        if count > _LARGEST_ROOM or like.dtype != torch.float32:
            return like.new_empty(count, width)
        room = self.rooms.get((name, width))
        if room is None or len(room) < count:
            with torch.inference_mode(False):
                self.rooms[name, width] = room = torch.empty(count, width)
        return room[:count]


_workspace = _Workspace()


class Rows:
    """Gathers rows of chunks of edges into a buffer that chunks share.

    Args:
        x: [N, H].
        ids: Integers [E], the row of each edge.
        name: That of the buffer; those of one kernel differ.
    """

    def __init__(self, x, ids, name: str = "rows"):
        self.x, self.ids = x, ids
        self.room = _workspace.rows(name, x, min(_EDGES, len(ids)))

    def __call__(self, a, b):
        """Return rows [b - a, H] of edges from a to b; valid until the next call."""
        return torch.index_select(self.x, 0, self.ids[a:b], out=self.room[: b - a])


class EdgeSums:
    """Adds rows of chunks of edges to their receivers.

    Args:
        out: [N, H], changed in place.
        ends: See above.
    """

    def __init__(self, out, ends):
        _, self.r, self.p = ends
        self.out = out
        self.places = torch.arange(min(_EDGES, len(self.r)))

    def add(self, rows, a, b, weight=None):
        """Add rows [b - a, H] of the edges from a to b, weighted by [b - a] or None."""
        first, last = int(self.r[a]), int(self.r[b - 1]) + 1
        p = (self.p[first : last + 1] - a).clamp_(0, b - a)
        # For sorted rows this kernel is faster than `index_add`.
        places = self.places[: b - a]
        self.out[first:last] += bag(rows, places, p, weight)


def _received(x, receiver):
    """Gather rows of receivers; 0 for padding."""
    return torch.nn.functional.pad(x, (0, 0, 0, 1)).index_select(0, receiver)


def _summed(rows, receiver, count):
    return rows.new_zeros(count + 1, rows.shape[1]).index_add(0, receiver, rows)[:count]


# Sums [N, H] of relu(x[sender] + e), with e by edge [E, H], or the rows of a table
# [C, H] by id [E].


def _relu_rows(x, e, ids, sender):
    """Return a function of a chunk: the rows below the ReLU, valid until the next."""
    sent = Rows(x, sender)
    if ids is None:
        return lambda a, b: sent(a, b).add_(e[a:b])
    more = Rows(e, ids, "ids")
    return lambda a, b: sent(a, b).add_(more(a, b))


def _relu_sum(x, e, ids: Tensor | None, ends: list[Tensor]):
    sums, rows = EdgeSums(torch.zeros_like(x), ends), _relu_rows(x, e, ids, ends[0])
    for a, b in _chunks(ends):
        sums.add(rows(a, b).relu_(), a, b)
    return sums.out


def _relu_sum_gradient(
    d_out, x, e, ids, ends, by_sender: list[Tensor], by_id: list[Tensor]
):
    s, r, p = ends
    # The gradient of e by edge is a result.
    is_result = ids is None
    d_rows = (
        torch.empty_like(e) if is_result else _workspace.rows("slopes of e", x, len(r))
    )
    rows = _relu_rows(x, e, ids, s)
    for a, b in _chunks(ends):
        # In place: its rows are then in the CPU's cache.
        d = torch.index_select(d_out, 0, r[a:b], out=d_rows[a:b])
        torch.ops.aten.threshold_backward.grad_input(d, rows(a, b), 0, grad_input=d)
    d_x = bag(d_rows, *by_sender)
    if not is_result:
        return d_x, bag(d_rows, *by_id)
    d_rows[p[-1] :] = 0
    return d_x, d_rows


def _relu_sum_reference(x, e, ids, ends):
    s, r, _ = ends
    e = e if ids is None else e.index_select(0, ids)
    return _summed(torch.relu(x.index_select(0, s) + e), r, len(x))


def _by_sender(values):
    return [*grouped(values["ends"][0], values["ends"][2], len(values["x"]))]


def _by_id(values):
    ids = values["ids"]
    return [] if ids is None else [*grouped(ids, values["ends"][2], len(values["e"]))]


relu_sum = fused_operation(
    _relu_sum,
    _relu_sum_gradient,
    _relu_sum_reference,
    variables=2,
    derived={"by_sender": _by_sender, "by_id": _by_id},
)


# Sums of gates and of gated messages: `both` [N, 2 U] holds the senders' parts of the
# logits of gates, and their messages.


def _combined_rows(sent, received, e, ends):
    """Return a function of a chunk: rows of senders, plus others in the first U."""
    width = received.shape[1]
    sent, received = Rows(sent, ends[0]), Rows(received, ends[1], "received")

    def combined(a, b):
        rows = sent(a, b)
        part = rows[:, :width]
        part += received(a, b)
        if e is not None:
            part += e[a:b]
        return rows

    return combined


def _gated_sum(both, received, e: Tensor | None, ends: list[Tensor]):
    """Return the sums [N, 2 U]; with e also the logits [E, U], 0 for padding."""
    sums = EdgeSums(torch.zeros_like(both), ends)
    combined, all_logits = _combined_rows(both, received, e, ends), None
    if e is not None:
        all_logits = torch.empty_like(e)
        all_logits[ends[2][-1] :] = 0
    for a, b in _chunks(ends):
        rows = combined(a, b)
        logits, messages = rows.chunk(2, dim=1)
        if e is not None:
            all_logits[a:b] = logits
        messages *= logits.sigmoid_()
        sums.add(rows, a, b)
    return sums.out, all_logits


def _gated_sum_gradient(d_sums, d_logits, both, received, e, ends):
    s, r, p = ends
    d_sums = torch.zeros_like(both) if d_sums is None else d_sums
    d_both, d_e = torch.zeros_like(both), None if e is None else torch.empty_like(e)
    combined = _combined_rows(both, received, e, ends)
    slopes = Rows(d_sums, r, "slopes")
    spare = slopes.room.new_empty(len(slopes.room), received.shape[1])
    sums = EdgeSums(torch.zeros_like(received), ends)
    for a, b in _chunks(ends):
        gates, messages = combined(a, b).chunk(2, dim=1)
        gates.sigmoid_()
        d = slopes(a, b)
        d_gates, d_messages = d.chunk(2, dim=1)
        d_gates.addcmul_(d_messages, messages)
        d_messages *= gates
        # The derivative of a sigmoid with value g is g (1 - g).
        square = torch.mul(gates, gates, out=spare[: b - a])
        d_gates *= torch.sub(gates, square, out=square)
        if d_logits is not None:
            d_gates += d_logits[a:b]
        if e is not None:
            d_e[a:b] = d_gates
        sums.add(spare[: b - a].copy_(d_gates), a, b)
        d_both.index_add_(0, s[a:b], d)
    if e is not None:
        d_e[p[-1] :] = 0
    return d_both, sums.out, d_e


def _gated_sum_reference(both, received, e, ends):
    s, r, _ = ends
    sent, messages = both.index_select(0, s).chunk(2, dim=1)
    logits = sent + _received(received, r)
    logits = logits if e is None else logits + e
    logits = logits * (r < len(both))[:, None]
    gates = torch.sigmoid(logits)
    return _summed(torch.cat([gates, gates * messages], dim=1), r, len(both)), logits


gated_sum = fused_operation(
    _gated_sum,
    _gated_sum_gradient,
    _gated_sum_reference,
    variables=3,
    results=("sums", "logits"),
    outputs=2,
)


# Scores [E, K] of attention, and sums weighted by shares.


def _scores(sent, received, e: Tensor | None, kernel, ends: list[Tensor], slope: float):
    """Return the scores; 0 for padding."""
    out = sent.new_zeros(len(ends[0]), kernel.shape[0])
    combined = _combined_rows(sent, received, e, ends)
    for a, b in _chunks(ends):
        rows = torch.nn.functional.leaky_relu_(combined(a, b), slope)
        # A product with so few columns is slower than this sum.
        torch.sum(rows.view(b - a, *kernel.shape).mul_(kernel), dim=2, out=out[a:b])
    return out


def _scores_gradient(d_out, sent, received, e, kernel, ends, slope):
    s, _, p = ends
    d_sent, d_kernel = torch.zeros_like(sent), torch.zeros_like(kernel)
    d_e = None if e is None else torch.empty_like(e)
    combined = _combined_rows(sent, received, e, ends)
    room = sent.new_empty(min(_EDGES, len(s)), sent.shape[1])
    sums = EdgeSums(torch.zeros_like(received), ends)
    for a, b in _chunks(ends):
        rows, d, slopes = combined(a, b), room[: b - a], d_out[a:b, :, None]
        torch.mul(slopes, kernel, out=d.view(b - a, *kernel.shape))
        torch.ops.aten.leaky_relu_backward.grad_input(
            d, rows, slope, False, grad_input=d
        )
        torch.nn.functional.leaky_relu_(rows, slope)
        d_kernel += rows.view(b - a, *kernel.shape).mul_(slopes).sum(dim=0)
        if e is not None:
            d_e[a:b] = d
        d_sent.index_add_(0, s[a:b], d)
        sums.add(d, a, b)
    if e is not None:
        d_e[p[-1] :] = 0
    return d_sent, sums.out, d_e, d_kernel


def _scores_reference(sent, received, e, kernel, ends, slope):
    s, r, _ = ends
    rows = sent.index_select(0, s) + _received(received, r)
    rows = torch.nn.functional.leaky_relu(rows if e is None else rows + e, slope)
    rows = (rows.unflatten(1, kernel.shape) * kernel).sum(dim=2)
    return rows * (r < len(received))[:, None]


scores = fused_operation(_scores, _scores_gradient, _scores_reference, variables=4)


def _share_sum(shares, x, ends: list[Tensor]):
    sent, sums = Rows(x, ends[0]), EdgeSums(torch.zeros_like(x), ends)
    for a, b in _chunks(ends):
        rows = sent(a, b)
        rows.view(b - a, shares.shape[1], -1).mul_(shares[a:b, :, None])
        sums.add(rows, a, b)
    return sums.out


def _share_sum_gradient(d_out, shares, x, ends):
    s, r, _ = ends
    d_x, d_shares = torch.zeros_like(x), torch.zeros_like(shares)
    sent, slopes, heads = Rows(x, s), Rows(d_out, r, "slopes"), shares.shape[1]
    for a, b in _chunks(ends):
        rows, d = sent(a, b), slopes(a, b)
        rows *= d
        torch.sum(rows.view(b - a, heads, -1), dim=2, out=d_shares[a:b])
        d.view(b - a, heads, -1).mul_(shares[a:b, :, None])
        d_x.index_add_(0, s[a:b], d)
    return d_shares, d_x


def _share_sum_reference(shares, x, ends):
    s, r, _ = ends
    rows = x.index_select(0, s).view(*shares.shape, -1) * shares[:, :, None]
    return _summed(rows.flatten(1), r, len(x))


share_sum = fused_operation(
    _share_sum, _share_sum_gradient, _share_sum_reference, variables=2
)


# Sums and products of rows by type.


@operation
def rows_sum(
    pointer: Tensor, column: Tensor, weight: Tensor | None, x: Tensor
) -> Tensor:
    """Return the sums [N, H] of rows of x between pointers [N + 1]: a sparse product.

    The kernel of `embedding_bag` writes only the sums. Columns after the last pointer
    are padding.
    """
    if len(pointer) and int(pointer[0]):
        # Keras builds models on tensors of ones, which the kernel of half precision
        # refuses.
        return x.new_zeros(len(pointer) - 1, x.shape[1])
    weight = None if weight is None else weight.to(x.dtype)
    return bag(x, column, pointer.to(column.dtype), weight)


def _runs(kinds, size, dtype):
    """Yield (type, start, end) of chunks of rows of one type."""
    types, counts = torch.unique_consecutive(kinds, return_counts=True)
    by_onednn = products_by_onednn() or dtype == torch.bfloat16
    lengths = _LENGTHS if by_onednn else _LENGTHS[:1]
    first = 0
    for kind, count in zip(types.tolist(), counts.tolist(), strict=True):
        last = first + count * size
        while first < last:
            length = next((n for n in lengths if n <= last - first), last - first)
            yield kind, first, first + length
            first += length


def _grouped_rows(x, index, length):
    """Return a function that gathers a chunk of the rows `x[index]`."""
    room = x.new_empty(min(_LENGTHS[0], length), x.shape[1])

    def rows(a, b):
        if index is None:
            return x[a:b]
        return torch.index_select(x, 0, index[a:b], out=room[: b - a])

    return rows


# One product per run of groups of the same type, instead of one per group. Only a chunk
# of the rows `x[index]` exists at a time; `column` and `pointer` are the transpose of
# the gather.


def _grouped_matmul(
    x,
    kernel,
    kinds,
    index: Tensor | None,
    pointer: Tensor | None,
    column: Tensor | None,
):
    """Return rows [L, U], and the runs."""
    length = x.shape[0] if index is None else index.shape[0]
    out = x.new_empty(length, kernel.shape[2])
    runs = [*_runs(kinds, length // kinds.shape[0], x.dtype)]
    rows = _grouped_rows(x, index, length)
    for kind, a, b in runs:
        torch.mm(rows(a, b), kernel[kind], out=out[a:b])
    return out, torch.tensor(runs, dtype=torch.int64)


def _grouped_matmul_gradient(d_out, x, kernel, index, pointer, column, runs):
    length = d_out.shape[0]
    d_rows, d_kernel = x.new_empty(length, x.shape[1]), torch.zeros_like(kernel)
    rows = _grouped_rows(x, index, length)
    for kind, a, b in runs.tolist():
        torch.mm(d_out[a:b], kernel[kind].t(), out=d_rows[a:b])
        d_kernel[kind].addmm_(rows(a, b).t(), d_out[a:b])
    if index is None:
        return d_rows, d_kernel
    return rows_sum(pointer, column, None, d_rows), d_kernel


def _grouped_matmul_reference(x, kernel, kinds, index):
    rows = x if index is None else x.index_select(0, index)
    rows = rows.reshape(kinds.shape[0], -1, x.shape[1])
    return torch.bmm(rows, kernel.index_select(0, kinds)).flatten(0, 1)


grouped_matmul = fused_operation(
    _grouped_matmul,
    _grouped_matmul_gradient,
    _grouped_matmul_reference,
    variables=2,
    results=("out", "runs"),
)
