"""Fused messages of edges, for backends whose operations are bound by memory traffic.

All functions return None if the backend, the device or the dtypes have no fused
operation; layers then compose it from others. Edges are sorted by receiver, with N for
padding at the end.
"""

import keras
from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.lookup import LookedUp


def _flat(tensors, sender, receiver, num_nodes):
    """Return the tensors without axis G = 1, and the ends of edges; or None."""
    if backend.fused_edges is None or ops.shape(sender)[0] != 1:
        return None
    dtypes = (t.dtype for t in tensors if t is not None)
    if any(keras.backend.standardize_dtype(dtype) != "float32" for dtype in dtypes):
        return None
    if not backend.fused_edges.apply_to(tensors[0], ops.shape(sender)[1]):
        return None
    flat = [None if t is None else ops.squeeze(t, 0) for t in tensors]
    ids = (ops.squeeze(ops.convert_to_tensor(t), 0) for t in (sender, receiver))
    return *flat, backend.fused_edges.ends(*ids, num_nodes)


def relu_sum(states, edge_states, sender, receiver):
    """Sum relu(states[sender] + edge_states) at receivers.

    Args:
        states: float [G, N, H].
        edge_states: float [G, E, H], or a `LookedUp`.
        sender: int32 [G, E].
        receiver: int32 [G, E].

    Returns:
        float [G, N, H], or None.
    """
    ids = None
    if isinstance(edge_states, LookedUp):
        edge_states, ids = edge_states
        edge_states, ids = ops.expand_dims(edge_states, 0), ops.reshape(ids, (-1,))
    flat = _flat((states, edge_states), sender, receiver, states.shape[1])
    if flat is None:
        return None
    *rows, ends = flat
    return ops.expand_dims(backend.fused_edges.relu_sum(*rows, ids, ends), 0)


def gated_sum(sent, received, messages, edges, sender, receiver):
    """Sum gates, and messages times gates, at receivers.

        c[j, n] = sent[j] + received[n] + edges[j, n]
        sum over j of sigmoid(c[j, n]), and of sigmoid(c[j, n]) * messages[j]

    Args:
        sent: float [G, N, U].
        received: float [G, N, U].
        messages: float [G, N, U].
        edges: float [G, E, U], or None.
        sender: int32 [G, E].
        receiver: int32 [G, E].

    Returns:
        Both sums, float [G, N, U], and c, float [G, E, U], with edges; or None.
    """
    both = ops.concatenate([sent, messages], axis=-1)
    flat = _flat((both, received, edges), sender, receiver, both.shape[1])
    if flat is None:
        return None
    sums, logits = backend.fused_edges.gated_sum(*flat)
    gates, total = ops.split(ops.expand_dims(sums, 0), 2, axis=-1)
    return gates, total, None if edges is None else ops.expand_dims(logits, 0)


def scores(sent, received, edges, kernel, slope, sender, receiver):
    """Return kernel[k] . leaky_relu(sent[sender] + received[receiver] + edges)[k].

    Args:
        sent: float [G, N, U].
        received: float [G, N, U].
        edges: float [G, E, U], or None.
        kernel: float [K, U / K], for head k of the K that channels are split into.
        slope: Slope of the leaky ReLU below 0.
        sender: int32 [G, E].
        receiver: int32 [G, E].

    Returns:
        float [G, E, K], or None.
    """
    flat = _flat((sent, received, edges), sender, receiver, sent.shape[1])
    if flat is None:
        return None
    *rows, ends = flat
    out = backend.fused_edges.scores(*rows, kernel, ends=ends, slope=slope)
    return ops.expand_dims(out, 0)


def share_sum(shares, rows, sender, receiver):
    """Sum rows of senders at receivers, weighted per head by shares.

    Args:
        shares: float [G, E, K].
        rows: float [G, N, U], U a multiple of K.
        sender: int32 [G, E].
        receiver: int32 [G, E].

    Returns:
        float [G, N, U], or None.
    """
    flat = _flat((shares, rows), sender, receiver, rows.shape[1])
    if flat is None:
        return None
    return ops.expand_dims(backend.fused_edges.share_sum(*flat), 0)


def score_attention(sent, received, rows, weights, slope, sender, receiver):
    """Sum rows of senders and of the node itself, weighted by a softmax of scores.

        s[j, n] = leaky_relu(sent[j] + received[n])
        out[n] = sum over j -> n, j != n, and j = n of softmax(s[:, n])[j] rows[j]

    Args:
        sent: float [G, N, K].
        received: float [G, N, K].
        rows: float [G, N, U], U a multiple of K.
        weights: Function that returns factors of the shares, of edges float [G, E, K]
            and of nodes themselves [G, N, K]; or None.
        slope: Slope of the leaky ReLU below 0, in [0, 1].
        sender: int32 [G, E].
        receiver: int32 [G, E].

    Returns:
        float [G, N, U], or None.
    """
    if backend.fused_edges is None or backend.fused_edges.score_attention is None:
        return None
    flat = _flat((sent, received, rows), sender, receiver, rows.shape[1])
    if flat is None:
        return None
    *tensors, ends = flat
    factors = [None, None] if weights is None else weights()
    weight, loop_weight = (None if f is None else ops.squeeze(f, 0) for f in factors)
    out = backend.fused_edges.score_attention(
        *tensors, weight=weight, loop_weight=loop_weight, slope=slope, ends=ends
    )
    return ops.expand_dims(out, 0)


def vector_sum(sent, vectors, rows, kernel, directions, sender, receiver):
    """Sum filtered rows of senders at receivers, as scalars and as vectors.

        a, b, c = sent[sender] * (rows @ kernel), split into three
        sum of a, and for each axis of b * directions[axis] + c * vectors[sender, axis]

    Args:
        sent: float [G, N, 3 C].
        vectors: float [G, N, 3, C], or None for 0.
        rows: float [G, E, K].
        kernel: float [K, 3 C].
        directions: float [G, E, 3].
        sender: int32 [G, E].
        receiver: int32 [G, E].

    Returns:
        Both sums, float [G, N, C] and [G, N, 3, C]; or None.
    """
    if backend.fused_edges is None or backend.fused_edges.vector_sum is None:
        return None
    groups, count, width = ops.shape(sent)
    if vectors is not None:
        vectors = ops.reshape(vectors, (groups, count, width))
    flat = _flat((sent, vectors, rows, directions), sender, receiver, count)
    if flat is None or keras.backend.standardize_dtype(kernel.dtype) != "float32":
        return None
    *tensors, ends = flat
    out = backend.fused_edges.vector_sum(*tensors, kernel, ends)
    scalars, sums = ops.split(ops.expand_dims(out, 0), [width // 3], axis=-1)
    return scalars, ops.reshape(sums, (1, count, 3, width // 3))
