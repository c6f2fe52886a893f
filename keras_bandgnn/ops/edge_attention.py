"""Attention of nodes over the senders of their edges."""

import numpy as np
from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import offset_ids
from keras_bandgnn.ops.loops import add_rows, fold, with_gradient, zeros_after

# The logarithm of the sum of a receiver without edges.
EMPTY = -1e30
# Edges of which rows of all heads are held at a time.
_EDGES = 8192


def edge_attention(q, k, v, bias, weight, sender, receiver, num_heads: int, keep=None):
    """Softmax attention over the edges into each receiver, per supergraph.

        s_e = q[i] . k[j] / sqrt(d) + bias_e   for each head, e: j -> i
        out[i] = sum over e of softmax over e (s_e) weight_e v[j]

    The gradient computes the rows of edges again: kept are numbers per edge and head.

    Args:
        q: float [G, N, K d], heads side by side.
        k: float [G, M, K d].
        v: float [G, M, K d].
        bias: float [G, E, K]; `EMPTY` leaves an edge out. None for 0.
        weight: float [G, E, K], factors of dropout, or None for 1.
        sender: int32 [G, E] in [0, M).
        receiver: int32 [G, E] in [0, N], sorted; edges into N are left out.
        num_heads: K.
        keep: bool [G, E], false for edges to leave out, or None.

    Returns:
        float32 [G, N, K d], 0 where there is no edge; and the logarithms of the sums
        of exp(s_e), float32 [G, N, K], `EMPTY` where there is none.
    """
    groups, count, width = ops.shape(q)
    length = ops.shape(k)[1]
    q, k, v = (ops.cast(t, "float32") for t in (q, k, v))
    sender = ops.reshape(offset_ids(sender, length), (-1,))
    real = receiver < count
    if keep is not None:
        real = ops.logical_and(real, keep)
    if bias is None:
        # A number less per edge and head, and none for its gradient.
        bias = ops.reshape(real, (-1,))
    else:
        bias = ops.where(ops.expand_dims(real, -1), ops.cast(bias, "float32"), EMPTY)
        bias = ops.reshape(bias, (-1, num_heads))
    # Edges into N have no weight: they may be read as edges into the last node.
    inside = ops.minimum(receiver, count - 1)
    receiver = ops.reshape(offset_ids(inside, count), (-1,))
    flat = [ops.reshape(t, (-1, width)) for t in (q, k, v)]
    if weight is not None:
        weight = ops.reshape(ops.cast(weight, "float32"), (-1, num_heads))
        weight = ops.stop_gradient(weight)
    ids = (sender, receiver)
    forward, backward = _attention(num_heads, width, len(bias.shape) == 1)
    found = None
    if backend.flat_edge_attention is not None:
        facts = (*flat, bias, weight, *ids, num_heads, EMPTY, forward)
        found = backend.flat_edge_attention(*facts)
    if found is None:
        given = (*flat, bias, *ids) if weight is None else (*flat, bias, *ids, weight)
        found = with_gradient(forward, backward, *given)
    out, total = found
    return (
        ops.reshape(out, (groups, count, width)),
        ops.reshape(total, (groups, count, num_heads)),
    )


def attend_to_one(q, k, v, bias, weight, num_heads: int):
    """Attention of each row to one key and value of its own.

    Args:
        q: float [..., K d], heads side by side.
        k: float [..., K d].
        v: float [..., K d].
        bias: float [K] or None.
        weight: float [..., K], factors of dropout, or None for 1.
        num_heads: K.

    Returns:
        float32 [..., K d], and the logarithms [..., K], as `edge_attention`.
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


def _attention(num_heads: int, width: int, alone: bool):
    """The attention of flat rows and its gradient; `alone`: without biases."""
    scale = (width // num_heads) ** -0.5
    heads = np.repeat(np.eye(num_heads, dtype="float32"), width // num_heads, axis=0)

    def forward(q, k, v, bias, sender, receiver, weight=None):
        per_head = ops.convert_to_tensor(heads)
        count = ops.shape(q)[0]

        def score(carry, e):
            both = backend.gather(q, e["receiver"]) * backend.gather(k, e["sender"])
            found = ops.matmul(both, per_head) * scale
            if alone:
                return carry, ops.where(ops.expand_dims(e["bias"], -1), found, EMPTY)
            return carry, found + e["bias"]

        ids = {"sender": sender, "receiver": receiver}
        _, scores = fold(score, (), {**ids, "bias": bias}, _EDGES)
        # Whatever is taken off, the result is the same: it needs no gradient.
        top = backend.segment_max(ops.stop_gradient(scores), receiver, count)
        # Receivers without edges have no largest score.
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
            return add_rows(out, e["receiver"], rows), None

        used = share if weight is None else share * weight
        out, _ = fold(add, zeros_after(q), {**ids, "share": used}, _EDGES)
        kept = (q, k, v, sender, receiver, share, out, weight)
        return (out, logs), kept

    def backward(kept, d_out, d_logs):
        q, k, v, sender, receiver, share, out, weight = kept
        per_head = ops.convert_to_tensor(heads)
        spread = ops.transpose(per_head)
        rest = d_logs - ops.matmul(d_out * out, per_head)

        def step(carry, e):
            d_q, d_k, d_v = carry
            slope = backend.gather(d_out, e["receiver"])
            sent = backend.gather(v, e["sender"])
            d_share = ops.matmul(slope * sent, per_head)
            used = e["share"]
            if weight is not None:
                d_share, used = d_share * e["weight"], used * e["weight"]
            d_score = e["share"] * (d_share + backend.gather(rest, e["receiver"]))
            part = slope * ops.matmul(used, spread)
            d_v = add_rows(d_v, e["sender"], part)
            wide = ops.matmul(d_score * scale, spread)
            part = wide * backend.gather(k, e["sender"])
            d_q = add_rows(d_q, e["receiver"], part)
            part = wide * backend.gather(q, e["receiver"])
            d_k = add_rows(d_k, e["sender"], part)
            return (d_q, d_k, d_v), None if alone else d_score

        zeros = zeros_after(q), zeros_after(k), zeros_after(v)
        rows = {"sender": sender, "receiver": receiver, "share": share}
        if weight is not None:
            rows["weight"] = weight
        (d_q, d_k, d_v), d_score = fold(step, zeros, rows, _EDGES)
        none = [None] * (2 if weight is None else 3)
        return d_q, d_k, d_v, d_score, *none

    return forward, backward
