"""Products of rows with the kernel of their group."""

from keras import ops

from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.portable import is_portable
from keras_bandgnn.ops.sparse import gather_rows, is_half


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
    out = backend.flat_grouped_matmul(
        ops.reshape(rows, (-1, length // ops.shape(kinds)[1], width)),
        ops.reshape(kinds, (-1,)),
        kernel,
    )
    return ops.reshape(out, (-1, length, ops.shape(kernel)[2]))


def gathered_grouped_matmul(x, arrays, kinds, kernel):
    """`grouped_matmul` of rows that are read from `x`.

    Args:
        x: [G, M, H].
        arrays: What `complete_gather` returned.
        kinds: int32 [G, groups].
        kernel: [P, H, U].

    Returns:
        [G, L, U].
    """
    groups, size, width = ops.shape(x)
    alone = isinstance(groups, int) and groups == 1
    if not alone or is_half(x) or is_portable():
        return grouped_matmul(gather_rows(arrays, x), kinds, kernel)
    back = None
    if backend.USES_TRANSPOSE:
        names = ("row", "column", "pointer")
        back = tuple(ops.reshape(arrays[f"back_{name}"], (-1,)) for name in names)
        back += (None,)
    out = backend.flat_gathered_grouped_matmul(
        ops.reshape(x, (size, width)),
        ops.reshape(arrays["index"], (-1,)),
        back,
        ops.reshape(kinds, (-1,)),
        kernel,
    )
    return ops.reshape(out, (1, *ops.shape(out)))
