"""Attention inside listed dense tiles of pairs of nodes, and sums of several parts."""

from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import batched_gather, offset_ids
from keras_bandgnn.ops.edge_attention import EMPTY, edge_attention


def tile_attention(q, k, v, bias, weight, tiles, num_heads: int):
    """Softmax attention over the edges that lie in tiles, per supergraph.

    A tile holds the pairs of b receivers and b senders; pairs that are no edges have no
    weight. Tiles are dense products; logits of all their entries are held.

    Args:
        q: float [G, N, K d], heads side by side.
        k: float [G, N, K d].
        v: float [G, N, K d].
        bias: float [G, E, K], of the edges; `EMPTY` leaves an edge out.
        weight: float [G, E, K], factors of dropout, or None for 1.
        tiles: `row` and `column`, int32 [G, T], receiver and sender block; `edge`
            int32 [G, T, b, b], the edge of each pair, E where there is none. Padded
            tiles have no edges.
        num_heads: K.

    Returns:
        float32 [G, N, K d] and [G, N, K], as `edge_attention`.
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
    # Each row's largest logit over all of its tiles.
    top = ops.max(ops.stop_gradient(logits), axis=2)
    top = backend.segment_max(
        ops.reshape(top, (groups * number, -1)), flat_row, groups * blocks
    )
    top = ops.reshape(top, (-1, size, num_heads))
    # Blocks without tiles have no largest logit.
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
    """Attention inside tiles, and along the edges that no tile holds.

    Args:
        q: See `tile_attention`, as `k`, `v`, `bias`, `weight` and `num_heads`.
        k: float [G, N, K d].
        v: float [G, N, K d].
        bias: float [G, E, K].
        weight: float [G, E, K] or None.
        sender: int32 [G, E].
        receiver: int32 [G, E].
        num_heads: K.
        tiles: As for `tile_attention`, and `rest`, int32 [G, R], other edges.

    Returns:
        Two pairs for `join`.
    """
    # One edge more stands where the list of the rest is padded.
    rest = ops.convert_to_tensor(tiles["rest"])

    def of_rest(values, fill):
        width = [(0, 0), (0, 1)] + [(0, 0)] * (len(values.shape) - 2)
        values = ops.pad(values, width, constant_values=fill)
        return batched_gather(values, rest)

    alone = edge_attention(
        q,
        k,
        v,
        of_rest(bias, EMPTY),
        None if weight is None else of_rest(weight, 0.0),
        of_rest(sender, 0),
        of_rest(receiver, ops.shape(q)[1]),
        num_heads,
    )
    return [tile_attention(q, k, v, bias, weight, tiles, num_heads), alone]


def join(parts, num_heads: int):
    """One softmax over several parts, from the results of each.

    Args:
        parts: Pairs (float [..., K d], logarithms of the sums [..., K]).
        num_heads: K.

    Returns:
        float [..., K d], 0 where all parts are empty.
    """
    if len(parts) == 1:
        return parts[0][0]
    logs = ops.stack([log for _, log in parts], axis=0)
    top = ops.stop_gradient(ops.max(logs, axis=0))
    shares = ops.exp(logs - top)
    # Where all parts are empty they are all 0.
    shares = shares / ops.sum(shares, axis=0)
    total = 0.0
    for number, (out, _) in enumerate(parts):
        shape = ops.shape(out)
        rows = ops.reshape(out, (*shape[:-1], num_heads, shape[-1] // num_heads))
        rows = rows * ops.expand_dims(shares[number], -1)
        total = total + ops.reshape(rows, shape)
    return total
