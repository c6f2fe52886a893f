"""Attention of all nodes of a graph over all of them."""

from keras import ops

from keras_bandgnn import ops as kernels
from keras_bandgnn.ops.edge_attention import EMPTY
from keras_bandgnn.ops.loops import map_pieces, numbered_dropout

# Pairs of nodes per head of which logits are held at a time.
_PAIRS = 1 << 20


def full_attention(q, k, v, mask, pair_bias, pairs, num_heads, dropout=0.0, seed=None):
    """Softmax attention between all rows of a sequence, for each of R sequences.

        s_ij = q[i] . k[j] / sqrt(d) + bias_ij   for each head

    Rows of queries are worked off in pieces of about a million pairs, which gradients
    compute again: memory grows with the length of the sequences, not with its square.

    Args:
        q: float [R, L, K d], heads side by side.
        k: float [R, L, K d].
        v: float [R, L, K d].
        mask: int32 [R, L]: rows see those with their number; 0 is padding.
        pair_bias: float [P, K], biases of the pairs that have one, or None.
        pairs: int32 [P] each: sequence, row i, and row j, of these pairs; i = L if
            there is none. Biases of equal pairs add up.
        num_heads: K.
        dropout: Share of the weights that are dropped.
        seed: `SeedGenerator().next()`, needed with dropout.

    Returns:
        float32 [R, L, K d], and the logarithms of the sums of exp(s_ij), float32
        [R, L, K], `EMPTY` for padding.
    """
    count, length, width = ops.shape(q)
    depth = width // num_heads
    q, k, v = (
        ops.reshape(ops.cast(t, "float32"), (count, length, num_heads, depth))
        for t in (q, k, v)
    )
    mask = ops.convert_to_tensor(mask)
    # TensorFlow may not know R while it traces.
    rows = length * (count if isinstance(count, int) else 1)
    size = max(1, min(length, _PAIRS // max(1, rows)))
    number = -(-length // size)
    room = number * size - length
    queries = ops.pad(q * depth**-0.5, ((0, 0), (0, room), (0, 0), (0, 0)))
    # Pieces come first.
    queries = ops.reshape(queries, (count, number, size, num_heads, depth))
    queries = ops.transpose(queries, (1, 0, 2, 3, 4))
    own = ops.reshape(ops.pad(mask, ((0, 0), (0, room))), (count, number, size))
    own = ops.transpose(own, (1, 0, 2))
    firsts = ops.arange(number, dtype="int32")

    def attend(queries, own, piece, k, v, pair_bias=None):
        logits = ops.einsum("rqhd,rkhd->rqkh", queries, k)
        if pair_bias is not None:
            logits = logits + biases(piece * size, pair_bias)
        seen = ops.logical_and(
            ops.equal(ops.expand_dims(own, 2), ops.expand_dims(mask, 1)),
            ops.expand_dims(own, 2) > 0,
        )
        logits = ops.where(ops.expand_dims(seen, -1), logits, EMPTY)
        top = ops.stop_gradient(ops.max(logits, axis=2, keepdims=True))
        top = ops.where(top > 0.5 * EMPTY, top, 0.0)
        share = ops.exp(logits - top)
        total = ops.sum(share, axis=2, keepdims=True)
        some = total > 0
        logs = ops.where(some, top + ops.log(ops.where(some, total, 1.0)), EMPTY)
        share = share / ops.where(some, total, 1.0)
        if dropout:
            share = numbered_dropout(share, dropout, seed, piece)
        return ops.einsum("rqkh,rkhd->rqhd", share, v), ops.squeeze(logs, 2)

    def biases(first, pair_bias):
        sequence, row, column = pairs
        inside = ops.logical_and(row >= first, row < first + size)
        # One row more takes the pairs of other pieces.
        place = (sequence, ops.where(inside, row - first, size), column)
        out = kernels.scatter_add(
            place,
            pair_bias,
            (count, size + 1, length, num_heads),
        )
        return out[:, :size]

    shared = (k, v) if pair_bias is None else (k, v, pair_bias)
    if number == 1:
        found = attend(queries[0], own[0], firsts[0], *shared)
        out, logs = (ops.expand_dims(t, 0) for t in found)
    else:
        out, logs = map_pieces(attend, (queries, own, firsts), shared)
    out = ops.transpose(out, (1, 0, 2, 3, 4))
    out = ops.reshape(out, (count, number * size, width))[:, :length]
    logs = ops.reshape(ops.transpose(logs, (1, 0, 2, 3)), (count, -1, num_heads))
    return out, logs[:, :length]
