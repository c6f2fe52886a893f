"""Attention of all nodes of a graph over all of them."""

from keras import ops

from keras_bandgnn.ops.batched import scatter_add
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
        ops.transpose(
            ops.reshape(ops.cast(t, "float32"), (count, length, num_heads, depth)),
            (0, 2, 1, 3),
        )
        for t in (q, k, v)
    )
    k = ops.transpose(k, (0, 1, 3, 2))
    mask = ops.convert_to_tensor(mask)
    # TensorFlow may not know R while it traces.
    rows = length * (count if isinstance(count, int) else 1)
    size = max(1, min(length, _PAIRS // max(1, rows)))
    number = -(-length // size)
    room = number * size - length
    queries = ops.pad(q * depth**-0.5, ((0, 0), (0, 0), (0, room), (0, 0)))
    # Pieces come first.
    queries = ops.reshape(queries, (count, num_heads, number, size, depth))
    queries = ops.transpose(queries, (2, 0, 1, 3, 4))
    own = ops.reshape(ops.pad(mask, ((0, 0), (0, room))), (count, number, size))
    own = ops.transpose(own, (1, 0, 2))
    firsts = ops.arange(number, dtype="int32")

    def attend(queries, own, piece, k, v, pair_bias=None):
        own = ops.expand_dims(own, -1)
        seen = ops.logical_and(ops.equal(own, ops.expand_dims(mask, 1)), own > 0)
        logits = ops.matmul(queries, k)
        if pair_bias is not None:
            logits = logits + biases(piece * size, pair_bias)
        logits = logits + ops.expand_dims(ops.where(seen, 0.0, EMPTY), 1)
        top = ops.stop_gradient(ops.max(logits, axis=3, keepdims=True))
        share = ops.exp(logits - top)
        total = ops.sum(share, axis=3, keepdims=True)
        if dropout:
            share = numbered_dropout(share, dropout, seed, piece)
        out = ops.matmul(share, v) / total
        # Padding sees nothing.
        real = ops.expand_dims(own, 1) > 0
        logs = ops.where(real, top + ops.log(total), EMPTY)
        return ops.where(real, out, 0.0), ops.squeeze(logs, 3)

    def biases(first, pair_bias):
        sequence, row, column = (ops.expand_dims(ids, -1) for ids in pairs)
        inside = ops.logical_and(row >= first, row < first + size)
        head = ops.expand_dims(ops.arange(num_heads, dtype="int32"), 0)
        # One row more takes the pairs of other pieces.
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
        found = attend(queries[0], own[0], firsts[0], *shared)
        out, logs = (ops.expand_dims(t, 0) for t in found)
    else:
        out, logs = map_pieces(attend, (queries, own, firsts), shared)
    out = ops.transpose(out, (1, 0, 3, 2, 4))
    out = ops.reshape(out, (count, number * size, width))[:, :length]
    logs = ops.reshape(ops.transpose(logs, (1, 0, 3, 2)), (count, -1, num_heads))
    return out, logs[:, :length]


def fused_attention(q, k, v, mask, num_heads: int):
    """Softmax attention between all rows of a sequence, by Keras' fused operation.

    Args:
        q: float [R, L, K d], heads side by side.
        k: float [R, L, K d].
        v: float [R, L, K d].
        mask: int32 [R, L]: rows see those with the same number.
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
