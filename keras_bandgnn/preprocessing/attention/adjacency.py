"""Adjacency matrices and k-hop distances."""

import numpy as np

# Entries of the rows whose distances are found together.
_ENTRIES = 1 << 24
# Up to this many nodes dense products are faster than sparse ones.
_DENSE_NODES = 192


def adjacency(num_nodes: int, senders, receivers, symmetric: bool = False):
    """Return the edges as a matrix, each once and without self-loops.

    Args:
        num_nodes: Number of nodes N.
        senders: int [E].
        receivers: int [E].
        symmetric: Whether each edge also counts in the other direction.

    Returns:
        A `scipy.sparse.csr_array` bool [N, N] with sorted indices; a row is a
        receiver, a column a sender.
    """
    from scipy.sparse import csr_array

    real = senders != receivers
    row, column = receivers[real], senders[real]
    if symmetric:
        row, column = np.concatenate([[row, column], [column, row]], axis=1)
    entries = (np.ones(row.size, bool), (row, column))
    matrix = csr_array(entries, shape=(num_nodes, num_nodes))
    matrix.sum_duplicates()
    return matrix


def keys_of(matrix) -> np.ndarray:
    """Return row * N + column of each entry of a CSR array, int64, ascending."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return row * matrix.shape[1] + matrix.indices


def distinct(keys: np.ndarray) -> np.ndarray:
    """Return the distinct values, sorted, faster than np.unique for many integers."""
    keys = np.sort(keys)
    first = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first]


def among(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return whether each query is among the ascending keys, bool."""
    if not keys.size:
        return np.zeros(queries.shape, bool)
    return keys[np.minimum(np.searchsorted(keys, queries), keys.size - 1)] == queries


def pairs_within(matrix, limit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs of different nodes at most `limit` steps apart, along the edges.

    The memory is proportional to the pairs found.

    Args:
        matrix: A CSR array as from `adjacency`.
        limit: Largest distance, at least 1.

    Returns:
        Receivers, senders and distances (steps from sender to receiver), int32,
        sorted by receiver, then sender.
    """
    num_nodes = matrix.shape[0]
    if num_nodes <= _DENSE_NODES and limit > 1:
        parts = [_dense_rows(matrix, limit)]
    else:
        # There are no more pairs than walks.
        walks, ones = np.zeros(num_nodes), np.ones(num_nodes)
        for _ in range(limit):
            walks = np.minimum(matrix.astype(np.float32) @ (walks + ones), num_nodes)
        chunk = np.cumsum(walks) // _ENTRIES
        starts = np.flatnonzero(np.diff(chunk, prepend=-1)).tolist()
        parts = [
            _sparse_rows(matrix, first, last, limit)
            for first, last in zip(starts, [*starts[1:], num_nodes], strict=True)
        ]
    return tuple(
        np.concatenate(part).astype(np.int32) for part in zip(*parts, strict=True)
    )


def distances_between(matrix, receivers, senders, limit: int) -> np.ndarray:
    """Return the distances from senders to receivers, without listing other pairs.

    Args:
        matrix: A CSR array as from `adjacency`.
        receivers: int [n].
        senders: int [n]; none is its receiver.
        limit: Largest distance that is told from larger ones.

    Returns:
        int32 [n], `limit + 1` for pairs that are further apart or not connected.
    """
    out = np.full(len(receivers), limit + 1, np.int32)
    sent = matrix.T.tocsr()
    chunk = max(1, _ENTRIES // matrix.shape[0])
    for low in range(0, len(receivers), chunk):
        pairs = np.arange(low, min(low + chunk, len(receivers)))
        front = None
        for step in range(1, limit + 1):
            if front is None:
                # Walks of no step: each receiver itself.
                entries = (np.ones(pairs.size, bool), receivers[pairs])
                front = type(matrix)(
                    (*entries, np.arange(pairs.size + 1)),
                    shape=(pairs.size, matrix.shape[0]),
                )
            else:
                front = front @ matrix
            # A walk is one step longer if it meets a node that hears the sender.
            met = front.multiply(sent[senders[pairs]]).sum(axis=1) > 0
            out[pairs[met]] = step
            pairs, front = pairs[~met], front[np.flatnonzero(~met)]
            if not pairs.size:
                break
    return out


def _dense_rows(matrix, limit: int):
    whole = matrix.toarray().astype(np.float32)
    front = whole > 0
    distance = front.astype(np.int32)
    unseen = ~front
    np.fill_diagonal(unseen, False)
    for step in range(2, limit + 1):
        front = (front.astype(np.float32) @ whole > 0) & unseen
        if not front.any():
            break
        distance[front] = step
        unseen &= ~front
    row, column = np.nonzero(distance)
    return row, column, distance[row, column]


def _sparse_rows(matrix, first: int, last: int, limit: int):
    from scipy.sparse import eye_array

    front = matrix[first:last]
    distance = front.astype(np.int32)
    if limit == 1:
        return _entries(distance, first)
    itself = eye_array(*front.shape, k=first, dtype=bool, format="csr")
    seen = front + itself
    for step in range(2, limit + 1):
        front = (front @ matrix) > seen
        if not front.nnz:
            break
        distance = distance + step * front.astype(np.int32)
        seen = seen + front
    return _entries(distance, first)


def _entries(distance, first: int):
    distance.sort_indices()
    row = np.repeat(np.arange(distance.shape[0]), np.diff(distance.indptr))
    return row + first, distance.indices, distance.data
