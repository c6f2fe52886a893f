"""Does every node hear from every other within some layers?"""

import numpy as np

from keras_bandgnn.preprocessing.verdict import Verdict

# Up to so many nodes all pairs are checked, however many edges there are.
_EXACT_NODES = 2000
# Up to so many nodes and bytes read, if the edges are few enough.
_MAX_NODES = 32768
_MAX_BYTES = 8e9
# Bytes of the rows that are gathered together.
_BYTES = 1 << 25


def reach(matrix, steps: int, token: bool) -> Verdict:
    """Whether every node reaches every other within `steps` along the edges.

    Args:
        matrix: CSR array bool [N, N] without loops, row = receiver.
        steps: Number of layers.
        token: Whether a further node is linked with all, both ways.

    Returns:
        A `Verdict`; unknown only for large graphs.
    """
    size = matrix.shape[0]
    if size == 1:
        return Verdict("yes", "there is one node")
    if token and steps > 1:
        return Verdict("yes", "two steps lead through the global token")
    if matrix.nnz == size * (size - 1):
        return Verdict("yes", "every node is linked with every other")
    within = f"within {steps} step{'s' * (steps > 1)}"
    if steps == 1:
        missing = size * (size - 1) - matrix.nnz
        return Verdict("no", f"{missing} pairs of nodes have no edge")
    answer = _by_few_nodes(matrix, steps, within)
    if answer is not None:
        return answer
    work = matrix.nnz * size / 8 * steps
    if size > _EXACT_NODES and (size > _MAX_NODES or work > _MAX_BYTES):
        return Verdict("unknown", "few nodes were tried, all pairs would take long")
    short = _unreached(matrix, steps)
    if short:
        return Verdict("no", f"{short} nodes do not hear from all others {within}")
    return Verdict("yes", f"every node reaches every other {within}")


def _by_few_nodes(matrix, steps: int, within: str) -> Verdict | None:
    """Bounds by the distances from and to nodes with few neighbours and a hub."""
    from scipy.sparse.csgraph import dijkstra

    forward = matrix.T.tocsr()
    received, sent = np.diff(matrix.indptr), np.diff(forward.indptr)
    hub = int(np.argmax(received + sent))
    for node in (int(np.argmin(received)), int(np.argmin(sent)), hub):
        far = []
        for graph, verb in ((forward, "reaches"), (matrix, "hears from")):
            distance = dijkstra(graph, indices=node, unweighted=True, limit=steps)
            if np.isinf(distance).any():
                count = np.count_nonzero(np.isinf(distance))
                reason = f"node {node} {verb} all others {within}, except {count}"
                return Verdict("no", reason)
            far.append(int(distance.max()))
        if sum(far) <= steps:
            reason = (
                f"node {node} hears from all within {far[1]} and reaches all within "
                f"{far[0]} steps"
            )
            return Verdict("yes", reason)
    return None


def _unreached(matrix, steps: int) -> int:
    """Number of nodes that some node does not reach; a bit for each pair of nodes."""
    size = matrix.shape[0]
    node = np.arange(size)
    bit = np.uint64(1) << (node % 64).astype(np.uint64)
    heard = np.zeros((size, -(-size // 64)), np.uint64)
    heard[node, node // 64] = bit
    everyone = np.zeros(heard.shape[1], np.uint64)
    np.bitwise_or.at(everyone, node // 64, bit)
    rows = np.flatnonzero(np.diff(matrix.indptr))
    start = matrix.indptr[rows]
    chunk = start // max(1, _BYTES // heard[0].nbytes)
    bounds = [*np.flatnonzero(np.diff(chunk, prepend=-1)), rows.size]
    for _ in range(steps):
        before = heard.copy()
        for first, last in zip(bounds[:-1], bounds[1:], strict=True):
            low = start[first]
            high = matrix.indptr[rows[last - 1] + 1]
            found = np.bitwise_or.reduceat(
                before[matrix.indices[low:high]], start[first:last] - low, axis=0
            )
            heard[rows[first:last]] |= found
        if np.array_equal(before, heard):
            break
    return int(np.count_nonzero((heard != everyone).any(axis=1)))
