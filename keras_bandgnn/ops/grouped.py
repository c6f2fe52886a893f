"""Products of rows with the kernel of their group."""

from keras import ops

from keras_bandgnn import ops as kernels
from keras_bandgnn.ops.sparse import gather_rows


def grouped_matmul(rows, kinds, kernel):
    """Multiplies each group of rows with the kernel of its type.

    Args:
        rows: [G, L, H], groups of equal size one after the other.
        kinds: int32 [G, groups], type of each group.
        kernel: [P, H, U].

    Returns:
        [G, L, U].
    """
    _, length, width = ops.shape(rows)
    out = kernels.flat_grouped_matmul(
        ops.reshape(rows, (-1, length // ops.shape(kinds)[1], width)),
        ops.reshape(kinds, (-1,)),
        kernel,
    )
    return ops.reshape(out, (-1, length, ops.shape(kernel)[2]))


def gathered_grouped_matmul(x, arrays, kinds, kernel, bias=None):
    """`grouped_matmul` of rows that are read from `x`, plus their types' biases.

    Args:
        x: [G, M, H].
        arrays: What `complete_gather` returned.
        kinds: int32 [G, groups].
        kernel: [P, H, U].
        bias: [P, U] or None.

    Returns:
        [G, L, U].
    """
    groups, size, width = ops.shape(x)
    alone = isinstance(groups, int) and groups == 1
    if not (alone and kernels.can_gather_while_multiplying(x)):
        out = grouped_matmul(gather_rows(arrays, x), kinds, kernel)
        return out if bias is None else add_biases(out, kinds, bias)
    # The rows that are read are never held all at once.
    names = ("row", "column", "pointer")
    out = kernels.flat_gathered_grouped_matmul(
        ops.reshape(x, (size, width)),
        ops.reshape(arrays["index"], (-1,)),
        tuple(ops.reshape(arrays[f"back_{name}"], (-1,)) for name in names),
        ops.reshape(kinds, (-1,)),
        kernel,
        bias,
    )
    return ops.reshape(out, (1, *ops.shape(out)))


def add_biases(rows, kinds, bias, factor=None):
    """Adds to each row the bias of its group's type.

    Args:
        rows: [G, L, U].
        kinds: int32 [G, groups].
        bias: [P, U].
        factor: [G, L], how often; once if omitted.
    """
    groups, length, units = ops.shape(rows)
    count = ops.shape(kinds)[1]
    share = ops.expand_dims(kernels.gather(bias, kinds), 2)
    if factor is not None:
        factor = ops.reshape(factor, (groups, count, length // count, 1))
        share = share * ops.cast(factor, share.dtype)
    rows = ops.reshape(rows, (groups, count, length // count, units)) + share
    return ops.reshape(rows, (groups, length, units))
