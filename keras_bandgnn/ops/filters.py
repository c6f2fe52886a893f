"""Messages that are multiplied with a filter made of their edge, in one pass."""

from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.batched import offset_ids


def filtered_sum(sent, edges, factor, weights, edge, activate):
    """Sums of messages through filters of two layers, where that is one operation.

        out[i] = sum over edges e (j -> i) of sent[j] * f_e (s(e W_1 + b_1) W_2 + b_2)

    with s the shifted softplus, which follows the second layer too if `activate`.

    Args:
        sent: float [G, N, F].
        edges: float [G, E, K].
        factor: f, float [G, E], or None for 1.
        weights: W_1 [K, F], b_1 [F] or None, W_2 [F, F], b_2 [F] or None.
        edge: `sender` and `receiver`, int32 [G, E].
        activate: Whether the second layer has the activation.

    Returns:
        float [G, N, F]; None where the backend, the device, or gradients of the edges
        ask for operations one by one.
    """
    if backend.filtered_sum is None:
        return None
    groups, count, width = ops.shape(sent)
    ends = (
        ops.reshape(offset_ids(ops.convert_to_tensor(edge[name]), size), (-1,))
        # Padded edges have the receiver N.
        for name, size in (("sender", count), ("receiver", count + 1))
    )
    out = backend.filtered_sum(
        ops.reshape(sent, (-1, width)),
        ops.reshape(edges, (-1, ops.shape(edges)[-1])),
        None if factor is None else ops.reshape(factor, (-1,)),
        weights,
        tuple(ends),
        groups * (count + 1),
        activate,
    )
    if out is None:
        return None
    return ops.reshape(out, (groups, count + 1, -1))[:, :count]
