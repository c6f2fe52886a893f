"""Softmax attention of nodes: along edges, inside dense tiles, and over all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_bandgnn.host_keras import ops
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import (
    batched_gather,
    flat_matmul,
    offset_ids,
    scatter_add,
)
from keras_bandgnn.ops.context import is_portable
from keras_bandgnn.ops.dropout import dropout as drop
from keras_bandgnn.ops.lookup import LookedUp
from keras_bandgnn.ops.loops import (
    chunk_size,
    index_add,
    late_zeros,
    map_pieces,
    scan_chunks,
    with_gradient,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Tensor

# Log-sum-exp of a receiver without edges.
EMPTY = -1e30
# Edges per chunk: bounds the memory of the per-edge rows of all heads. On accelerators,
# the numbers in the rows of a chunk.
_EDGES, _NUMBERS = 8192, 1 << 25


def takes_tables() -> bool:
    """Return whether `edge_attention` reads tables of biases as they are."""
    return backend.flat_edge_attention is None and not is_portable()


def edge_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    sender: Tensor,
    receiver: Tensor,
    num_heads: int,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax attention over the edges into each receiver, per supergraph.

        s_e = q[i] . k[j] / sqrt(d) + bias_e   for each head, e: j -> i
        out[i] = sum over e of softmax over e (s_e) weight_e v[j]

    The gradient recomputes the per-edge rows and stores only one scalar per edge and
    head.

    Args:
        q: float [G, N, K d], heads concatenated.
        k: float [G, M, K d].
        v: float [G, M, K d].
        bias: float [G, E, K], or a `LookedUp`; `EMPTY` masks an edge. None for 0.
        weight: float [G, E, K], dropout factors, or None for 1.
        sender: int32 [G, E] in [0, M).
        receiver: int32 [G, E] in [0, N], sorted; edges into N are padding.
        num_heads: K.
        keep: bool [G, E], False for masked edges, or None.

    Returns:
        float32 [G, N, K d], 0 for receivers without edges; and the log-sum-exp of s_e,
        float32 [G, N, K], `EMPTY` for receivers without edges.
    """
    groups, count, width = ops.shape(q)
    length = ops.shape(k)[1]
    q, k, v = (ops.cast(t, "float32") for t in (q, k, v))
    sender = ops.reshape(offset_ids(sender, length), (-1,))
    real = receiver < count
    if keep is not None:
        real = ops.logical_and(real, keep)
    rows = ()
    if bias is None:
        # Saves one scalar per edge and head, and its gradient.
        bias = ops.reshape(real, (-1,))
    elif isinstance(bias, LookedUp):
        # Likewise. Masked edges share one extra row.
        masked = ops.full((1, num_heads), EMPTY, "float32")
        rows = ops.where(real, bias.ids, ops.shape(bias.table)[0])
        rows = (ops.reshape(rows, (-1,)),)
        bias = ops.concatenate([ops.cast(bias.table, "float32"), masked])
    else:
        bias = ops.where(ops.expand_dims(real, -1), ops.cast(bias, "float32"), EMPTY)
        bias = ops.reshape(bias, (-1, num_heads))
    # Edges into N are masked, so they can safely index the last node.
    inside = ops.minimum(receiver, count - 1)
    receiver = ops.reshape(offset_ids(inside, count), (-1,))
    flat = [ops.reshape(t, (-1, width)) for t in (q, k, v)]
    if weight is not None:
        weight = ops.reshape(ops.cast(weight, "float32"), (-1, num_heads))
        weight = ops.stop_gradient(weight)
    ids = (sender, receiver)
    kind = _TABLE if rows else _DENSE
    forward, backward = _attention(
        num_heads, width, _MASK if len(bias.shape) == 1 else kind
    )
    result = None
    if backend.flat_edge_attention is not None and not rows:
        result = backend.flat_edge_attention(
            *flat, bias, weight, *ids, num_heads=num_heads, empty=EMPTY
        )
    if result is None:
        tensors = (*flat, bias, *ids, *rows)
        tensors = tensors if weight is None else (*tensors, weight)
        result = with_gradient(forward, backward, *tensors)
    out, total = result
    return (
        ops.reshape(out, (groups, count, width)),
        ops.reshape(total, (groups, count, num_heads)),
    )


def attend_to_one(q, k, v, bias, weight, num_heads: int):
    """Compute the attention of each row to exactly one key and value.

    Args:
        q: float [..., K d], heads concatenated.
        k: float [..., K d].
        v: float [..., K d].
        bias: float [K] or None.
        weight: float [..., K], dropout factors, or None for 1.
        num_heads: K.

    Returns:
        float32 [..., K d], and the log-sum-exp [..., K], as for `edge_attention`.
    """
    q, k, v = (ops.cast(t, "float32") for t in (q, k, v))
    depth = ops.shape(q)[-1] // num_heads
    shape = (*ops.shape(q)[:-1], num_heads, depth)
    logs = ops.sum(ops.reshape(q * k, shape), axis=-1) * depth**-0.5
    if bias is not None:
        logs = logs + ops.cast(bias, "float32")
    if weight is not None:
        rows = ops.reshape(v, shape) * ops.expand_dims(weight, -1)
        v = ops.reshape(rows, ops.shape(v))
    return v, logs


def with_itself(part, q, k, v, bias, weight, num_heads: int):
    """Combine attention with that of each row to its own key and value.

    The same as `join` with `attend_to_one`, for one part: a pair (float [..., K d],
    log-sum-exp [..., K]). The other arguments are those of `attend_to_one`.

    Returns:
        float32 [..., K d].
    """
    out, logs = part
    q, k, v = (ops.cast(t, "float32") for t in (q, k, v))
    width = ops.shape(q)[-1]
    per_head = ops.convert_to_tensor(_columns(num_heads, width))
    score = flat_matmul(q * k, per_head) * (width // num_heads) ** -0.5
    if bias is not None:
        score = score + ops.cast(bias, "float32")
    share = ops.sigmoid(score - logs)
    spread = ops.transpose(per_head)
    wide = flat_matmul(share, spread)
    used = wide if weight is None else flat_matmul(share * weight, spread)
    return out + used * v - wide * out


def _columns(num_heads: int, width: int):
    """Return the matrix that sums the channels of each head, a NumPy array [K d, K]."""
    return np.repeat(np.eye(num_heads, dtype="float32"), width // num_heads, axis=0)


# Kinds of biases: a mask of edges, one per edge and head, or a row of a table per edge.
_MASK, _DENSE, _TABLE = "mask", "dense", "table"


class _Residuals(NamedTuple):
    q: Any
    k: Any
    v: Any
    sender: Any
    receiver: Any
    share: Any
    out: Any
    weight: Any
    row: Any
    table: Any


def _attention(num_heads: int, width: int, kind: str):
    """Return attention of flat rows and its gradient, for a kind of biases."""
    scale = (width // num_heads) ** -0.5
    size = chunk_size(_EDGES, max(_EDGES, _NUMBERS // width))
    heads = _columns(num_heads, width)

    def forward(q, k, v, bias, sender, receiver, *more):
        of_edges = {} if kind == _TABLE else {"bias": bias}
        if kind == _TABLE:
            of_edges["row"], *more = more
        (weight,) = more or (None,)
        per_head = ops.convert_to_tensor(heads)
        count = ops.shape(q)[0]

        def score(carry, e):
            both = backend.gather(q, e["receiver"]) * backend.gather(k, e["sender"])
            scores = ops.matmul(both, per_head) * scale
            if kind == _TABLE:
                return carry, scores + backend.gather(bias, e["row"])
            if kind == _MASK:
                return carry, ops.where(ops.expand_dims(e["bias"], -1), scores, EMPTY)
            return carry, scores + e["bias"]

        ids = {"sender": sender, "receiver": receiver}
        _, scores = scan_chunks(score, (), {**ids, **of_edges}, size, q)
        # Softmax is invariant to the shift, so the shift needs no gradient.
        top = backend.segment_max(ops.stop_gradient(scores), receiver, count)
        # Receivers without edges have no maximum.
        top = ops.where(top > 0.5 * EMPTY, top, 0.0)
        share = ops.exp(scores - backend.gather(top, receiver))
        share = ops.where(scores > 0.5 * EMPTY, share, 0.0)
        total = backend.segment_sum(share, receiver, count, is_sorted=True)
        some = total > 0
        share = share / backend.gather(ops.where(some, total, 1.0), receiver)
        logs = ops.where(some, top + ops.log(ops.where(some, total, 1.0)), EMPTY)

        def add(out, e):
            rows = backend.gather(v, e["sender"])
            rows = rows * ops.matmul(e["share"], ops.transpose(per_head))
            return index_add(out, e["receiver"], rows), None

        used = share if weight is None else share * weight
        out, _ = scan_chunks(add, late_zeros(q), {**ids, "share": used}, size)
        residuals = _Residuals(
            q=q,
            k=k,
            v=v,
            sender=sender,
            receiver=receiver,
            share=share,
            out=out,
            weight=weight,
            row=of_edges.get("row"),
            table=bias if kind == _TABLE else None,
        )
        return (out, logs), residuals

    def backward(residuals, d_out, d_logs):
        r = _Residuals(*residuals)
        per_head = ops.convert_to_tensor(heads)
        spread = ops.transpose(per_head)
        offset = d_logs - ops.matmul(d_out * r.out, per_head)

        def step(carry, e):
            d_q, d_k, d_v, *d_table = carry
            slope = backend.gather(d_out, e["receiver"])
            sent = backend.gather(r.v, e["sender"])
            d_share = ops.matmul(slope * sent, per_head)
            used = e["share"]
            if r.weight is not None:
                d_share, used = d_share * e["weight"], used * e["weight"]
            d_score = e["share"] * (d_share + backend.gather(offset, e["receiver"]))
            part = slope * ops.matmul(used, spread)
            d_v = index_add(d_v, e["sender"], part)
            wide = ops.matmul(d_score * scale, spread)
            part = wide * backend.gather(r.k, e["sender"])
            d_q = index_add(d_q, e["receiver"], part)
            part = wide * backend.gather(r.q, e["receiver"])
            d_k = index_add(d_k, e["sender"], part)
            if kind == _TABLE:
                # Sums of chunks: rounding errors of one long sum grow with its length.
                more = backend.segment_sum(d_score, e["row"], ops.shape(r.table)[0])
                d_table = [d_table[0] + more]
            return (d_q, d_k, d_v, *d_table), d_score if kind == _DENSE else None

        zeros = [late_zeros(t, offset) for t in (r.q, r.k, r.v)]
        if kind == _TABLE:
            zeros.append(ops.zeros_like(r.table))
        rows = {"sender": r.sender, "receiver": r.receiver, "share": r.share}
        if r.weight is not None:
            rows["weight"] = r.weight
        if kind == _TABLE:
            rows["row"] = r.row
        like = d_out if kind == _DENSE else None
        carry, d_score = scan_chunks(step, tuple(zeros), rows, size, like)
        d_q, d_k, d_v, *d_table = carry
        d_bias = d_table[0] if kind == _TABLE else d_score
        none = [None] * (2 + (kind == _TABLE) + (r.weight is not None))
        return d_q, d_k, d_v, d_bias, *none

    return forward, backward


# Attention within dense tiles of node pairs, and softmax over several parts.


def tile_attention(q, k, v, bias, weight, tiles, num_heads: int):
    """Compute softmax attention over the edges inside tiles, per supergraph.

    A tile holds the pairs of b receivers and b senders; pairs without an edge are
    masked. Tiles are dense products, and the logits of all their entries are stored.

    Args:
        q: float [G, N, K d], heads concatenated.
        k: float [G, N, K d].
        v: float [G, N, K d].
        bias: float [G, E, K], per edge; `EMPTY` masks an edge.
        weight: float [G, E, K], dropout factors, or None for 1.
        tiles: `row` and `column`, int32 [G, T], receiver and sender block; `edge`
            int32 [G, T, b, b], the edge index of each pair, E for pairs without an
            edge. Padded tiles have no edges.
        num_heads: K.

    Returns:
        float32 [G, N, K d] and [G, N, K], as for `edge_attention`.
    """
    groups, count, width = ops.shape(q)
    edge = ops.convert_to_tensor(tiles["edge"])
    number, size = ops.shape(edge)[1:3]
    blocks = -(-count // size)
    depth = width // num_heads
    room = ((0, 0), (0, blocks * size - count), (0, 0))
    flat_row, flat_column = (
        ops.reshape(offset_ids(tiles[name], blocks), (-1,))
        for name in ("row", "column")
    )
    q, k, v = (
        ops.reshape(ops.pad(ops.cast(t, "float32"), room), (-1, size, num_heads, depth))
        for t in (q, k, v)
    )

    def of_pairs(values, fill):
        values = ops.pad(
            ops.cast(values, "float32"), ((0, 0), (0, 1), (0, 0)), constant_values=fill
        )
        flat = ops.reshape(values, (-1, num_heads))
        ids = offset_ids(edge, ops.shape(values)[1])
        return ops.reshape(
            backend.gather(flat, ops.reshape(ids, (-1,))),
            (groups * number, size, size, num_heads),
        )

    logits = ops.einsum(
        "tqhd,tkhd->tqkh", backend.gather(q, flat_row), backend.gather(k, flat_column)
    )
    logits = logits * depth**-0.5 + of_pairs(bias, EMPTY)
    real = logits > 0.5 * EMPTY
    # The maximum logit of each row over all of its tiles.
    top = ops.max(ops.stop_gradient(logits), axis=2)
    top = backend.segment_max(
        ops.reshape(top, (groups * number, -1)), flat_row, groups * blocks
    )
    top = ops.reshape(top, (-1, size, num_heads))
    # Blocks without tiles have no maximum.
    top = ops.where(ops.logical_and(top > 0.5 * EMPTY, top < -0.5 * EMPTY), top, 0.0)
    shift = ops.expand_dims(backend.gather(top, flat_row), 2)
    share = ops.where(real, ops.exp(ops.where(real, logits - shift, 0.0)), 0.0)
    total = backend.segment_sum(ops.sum(share, axis=2), flat_row, groups * blocks)
    some = total > 0
    safe = ops.where(some, total, 1.0)
    logs = ops.where(some, top + ops.log(safe), EMPTY)
    if weight is not None:
        share = share * of_pairs(weight, 0.0)
    out = ops.einsum("tqkh,tkhd->tqhd", share, backend.gather(v, flat_column))
    out = backend.segment_sum(out, flat_row, groups * blocks)
    out = out / ops.expand_dims(safe, -1)
    return (
        ops.reshape(out, (groups, blocks * size, width))[:, :count],
        ops.reshape(logs, (groups, blocks * size, num_heads))[:, :count],
    )


def tiles_and_rest(q, k, v, bias, weight, sender, receiver, num_heads: int, tiles):
    """Compute attention inside tiles, and along the edges outside all tiles.

    Args:
        q: float [G, N, K d]; see `tile_attention`.
        k: float [G, N, K d].
        v: float [G, N, K d].
        bias: float [G, E, K].
        weight: float [G, E, K] or None.
        sender: int32 [G, E].
        receiver: int32 [G, E].
        num_heads: K.
        tiles: As for `tile_attention`, plus `rest`, int32 [G, R], the other edges.

    Returns:
        Two pairs for `join`.
    """
    # Padding of `tiles["rest"]` indexes one extra, masked edge.
    outside = ops.convert_to_tensor(tiles["rest"])

    def of_outside(values, fill):
        width = [(0, 0), (0, 1)] + [(0, 0)] * (len(values.shape) - 2)
        values = ops.pad(values, width, constant_values=fill)
        return batched_gather(values, outside)

    single_edges = edge_attention(
        q,
        k,
        v,
        of_outside(bias, EMPTY),
        None if weight is None else of_outside(weight, 0.0),
        of_outside(sender, 0),
        of_outside(receiver, ops.shape(q)[1]),
        num_heads,
    )
    return [tile_attention(q, k, v, bias, weight, tiles, num_heads), single_edges]


def join(parts, num_heads: int):
    """Combine the attention over several parts into one softmax over all of them.

    Args:
        parts: Pairs (float [..., K d], log-sum-exp [..., K]).
        num_heads: K.

    Returns:
        float [..., K d], 0 where all parts are empty.
    """
    if len(parts) == 1:
        return parts[0][0]
    logs = ops.stack([log for _, log in parts], axis=0)
    top = ops.stop_gradient(ops.max(logs, axis=0))
    shares = ops.exp(logs - top)
    # Rows that are empty in every part are 0 in every part.
    shares = shares / ops.sum(shares, axis=0)
    total = 0.0
    for number, (out, _) in enumerate(parts):
        shape = ops.shape(out)
        rows = ops.reshape(out, (*shape[:-1], num_heads, shape[-1] // num_heads))
        rows = rows * ops.expand_dims(shares[number], -1)
        total = total + ops.reshape(rows, shape)
    return total


# Full attention between all nodes of a graph.


# Node pairs per head and chunk: bounds the memory of the logits.
_PAIRS, _MANY_PAIRS = 1 << 20, 1 << 23


def full_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    pair_bias: Tensor | None,
    pairs: Tensor | None,
    num_heads: int,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    logs: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax attention between all rows of each of R sequences.

        s_ij = q[i] . k[j] / sqrt(d) + bias_ij   for each head

    Queries are processed in chunks of about a million pairs, on accelerators eight
    million, which the gradient recomputes: memory is linear in the length of the
    sequences, not quadratic.

    Args:
        q: float [R, L, K d], heads concatenated.
        k: float [R, L, K d].
        v: float [R, L, K d].
        mask: int32 [R, L], segment ids: rows attend within their segment; 0 is padding.
        pair_bias: float [P, K], biases of individual pairs, or None.
        pairs: Three int32 [P]: sequence, row i and row j of these pairs; i = L where
            padded. Biases of duplicate pairs add up.
        num_heads: K.
        dropout: Dropout rate of the attention weights.
        seed: `SeedGenerator().next()`, required with dropout.
        logs: Whether the log-sum-exp is wanted. Without it, a fused operation may
            compute attention without biases and dropout; the rows of each segment
            have to adjoin.

    Returns:
        float32 [R, L, K d], and the log-sum-exp of s_ij, float32 [R, L, K], `EMPTY`
        for padding; None without `logs`.
    """
    fused = backend.segment_attention
    if fused is not None and not logs and pair_bias is None and not dropout:
        out = fused(q, k, v, ops.convert_to_tensor(mask), num_heads)
        if out is not None:
            return out, None
    count, length, width = ops.shape(q)
    depth = width // num_heads
    q, k, v = (
        ops.transpose(
            ops.reshape(ops.cast(t, "float32"), (count, length, num_heads, depth)),
            (0, 2, 1, 3),
        )
        for t in (q, k, v)
    )
    k = ops.transpose(k, (0, 1, 3, 2))
    mask = ops.convert_to_tensor(mask)
    # R may be unknown while TensorFlow traces, and after batches of several shapes L,
    # too: then there is one chunk.
    size, number = length, 1
    if isinstance(length, int):
        rows = length * (count if isinstance(count, int) else 1)
        pairs_at_once = chunk_size(_PAIRS, _MANY_PAIRS)
        size = max(1, min(length, pairs_at_once // max(1, rows)))
        number = -(-length // size)
    room = number * size - length
    queries = ops.pad(q * depth**-0.5, ((0, 0), (0, 0), (0, room), (0, 0)))
    # Chunks on axis 0.
    queries = ops.reshape(queries, (count, num_heads, number, size, depth))
    queries = ops.transpose(queries, (2, 0, 1, 3, 4))
    members = ops.reshape(ops.pad(mask, ((0, 0), (0, room))), (count, number, size))
    members = ops.transpose(members, (1, 0, 2))
    firsts = ops.arange(number, dtype="int32")

    def attend(queries, members, piece, k, v, pair_bias=None):
        members = ops.expand_dims(members, -1)
        seen = ops.logical_and(
            ops.equal(members, ops.expand_dims(mask, 1)), members > 0
        )
        logits = ops.matmul(queries, k)
        if pair_bias is not None:
            logits = logits + biases(piece * size, pair_bias)
        logits = logits + ops.expand_dims(ops.where(seen, 0.0, EMPTY), 1)
        top = ops.stop_gradient(ops.max(logits, axis=3, keepdims=True))
        share = ops.exp(logits - top)
        total = ops.sum(share, axis=3, keepdims=True)
        if dropout:
            share = drop(share, dropout, seed, piece)
        out = ops.matmul(share, v) / total
        # Padding attends to nothing.
        real = ops.expand_dims(members, 1) > 0
        logs = ops.where(real, top + ops.log(total), EMPTY)
        return ops.where(real, out, 0.0), ops.squeeze(logs, 3)

    def biases(first, pair_bias):
        sequence, row, column = (ops.expand_dims(ids, -1) for ids in pairs)
        inside = ops.logical_and(row >= first, row < first + size)
        head = ops.expand_dims(ops.arange(num_heads, dtype="int32"), 0)
        # One extra row absorbs the pairs of other chunks.
        row = ops.where(inside, row - first, size)
        shape = ops.shape(pair_bias)
        place = (
            ops.reshape(ops.broadcast_to(ids, shape), (-1,))
            for ids in (sequence, head, row, column)
        )
        out = scatter_add(
            tuple(place),
            ops.reshape(pair_bias, (-1,)),
            (count, num_heads, size + 1, length),
        )
        return out[:, :, :size]

    shared = (k, v) if pair_bias is None else (k, v, pair_bias)
    if number == 1:
        result = attend(queries[0], members[0], firsts[0], *shared)
        out, sums = (ops.expand_dims(t, 0) for t in result)
    else:
        out, sums = map_pieces(attend, (queries, members, firsts), shared)
    out = ops.transpose(out, (1, 0, 3, 2, 4))
    out = ops.reshape(out, (count, number * size, width))[:, :length]
    if not logs:
        return out, None
    sums = ops.reshape(ops.transpose(sums, (1, 0, 3, 2)), (count, -1, num_heads))
    return out, sums[:, :length]


def fused_attention(q, k, v, mask, num_heads: int):
    """Compute attention between all rows of a sequence by Keras' fused operation.

    Args:
        q: float [R, L, K d], heads concatenated.
        k: float [R, L, K d].
        v: float [R, L, K d].
        mask: int32 [R, L], segment ids: rows attend within their segment.
        num_heads: K.

    Returns:
        [R, L, K d].
    """
    count, length, width = ops.shape(q)
    shape = (count, length, num_heads, width // num_heads)
    seen = ops.equal(ops.expand_dims(mask, 2), ops.expand_dims(mask, 1))
    out = ops.dot_product_attention(
        *(ops.reshape(t, shape) for t in (q, k, v)), mask=ops.expand_dims(seen, 1)
    )
    return ops.reshape(out, (count, length, width))
