"""Probabilities that a random walk is back where it started."""

import numpy as np

# Entries of the columns whose powers are computed together.
_ENTRIES = 1 << 21


def return_probabilities(linked, steps: int) -> np.ndarray:
    """Diagonals of the powers 1 to k of D^-1 A, exact.

    They equal those of the symmetric matrix S = D^-1/2 A D^-1/2, and the diagonal of
    S^(a+b) holds the products of the columns of S^a and S^b. So k steps take k / 2
    powers, each of O(N E) operations; of them some columns are in memory at a time.

    Args:
        linked: Symmetric CSR array [N, N] without loops; values are not read.
        steps: k.

    Returns:
        float32 [N, k]; rows of isolated nodes are 0.
    """
    num_nodes = linked.shape[0]
    out = np.zeros((num_nodes, steps), np.float32)
    root = np.sqrt(np.maximum(np.diff(linked.indptr), 1))
    walk = linked.astype(np.float64)
    walk.data = 1 / (np.repeat(root, np.diff(walk.indptr)) * root[walk.indices])
    width = max(1, _ENTRIES // num_nodes)
    if num_nodes <= width:
        walk = walk.toarray()
    for first in range(0, num_nodes, width):
        chunk = slice(first, first + width)
        power = walk[:, chunk]
        power = power if isinstance(power, np.ndarray) else power.toarray()
        for step in range(2, steps + 1):
            before = power
            if step % 2:
                power = walk @ power
            out[chunk, step - 1] = np.einsum("ij,ij->j", before, power)
    return out
