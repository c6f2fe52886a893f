"""Jumping knowledge: an output of the states of all layers."""

from keras import ops


def joined_states(seen: list, how: str, jump):
    """Join the states [G, N, H] of all layers to the output.

    Args:
        seen: The states before the first layer, and after each one.
        how: `"concat"`, `"max"` or `"sum"`.
        jump: The map of the concatenation, for `"concat"`.
    """
    # In a trimmed batch the last layer has the fewest rows.
    rows = ops.shape(seen[-1])[1]
    seen = [states[:, :rows] for states in seen]
    if how == "concat":
        return jump(ops.concatenate(seen, axis=-1))
    out = seen[0]
    join = ops.maximum if how == "max" else ops.add
    for states in seen[1:]:
        out = join(out, states)
    return out
