"""Index arrays of sparse products, in both directions, laid out on the host."""

import numpy as np

from keras_bandgnn.primitives.edges import pad


def pointer_of(ids: np.ndarray, length: int) -> np.ndarray:
    """int32 [length + 1]: where each id in [0, length) begins once they are sorted."""
    out = np.zeros(length + 1, np.int32)
    np.cumsum(np.bincount(ids, minlength=length)[:length], out=out[1:])
    return out


def _sorting(ids: np.ndarray, length: int) -> np.ndarray:
    """A stable order that sorts ids in [0, length)."""
    from scipy.sparse import csr_array

    # A transposition counts instead of comparing.
    count = len(ids)
    rows = csr_array(
        (np.arange(count, dtype=np.int32), ids, np.arange(count + 1, dtype=np.int32)),
        shape=(count, length),
    )
    return rows.tocsc().data


def transposed(
    row: np.ndarray, column: np.ndarray, shape: tuple[int, int], length: int, what: str
) -> dict[str, np.ndarray]:
    """The entries of a sparse matrix by column, as its gradient needs them.

    Args:
        row: int32 [n] in [0, shape[0]).
        column: int32 [n] in [0, shape[1]).
        shape: Rows and columns.
        length: Static number of entries.
        what: Name of the resource, for errors.

    Returns:
        `row` int32 [length]: columns of the matrix, sorted, `shape[1]` where padded;
        `column` its rows; `pointer` int32 [shape[1] + 1]; `order` int [n].
    """
    order = _sorting(column, shape[1])
    return {
        "row": pad(column[order], length, shape[1], what),
        "column": pad(row[order], length, 0, what),
        "pointer": pointer_of(column, shape[1]),
        "order": order,
    }
