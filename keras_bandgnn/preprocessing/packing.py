"""Packing graphs into supergraphs, from their sizes alone."""

import numpy as np


def ceil64(values: np.ndarray | float) -> np.ndarray:
    """The next multiple of 64 that is strictly above (Speckhard et al. 2025)."""
    return 64 * (1 + np.floor_divide(values, 64).astype(np.int64))


def pack_sequential(sizes: np.ndarray, order: np.ndarray, capacity: np.ndarray) -> list:
    """Fills one supergraph after the other, in the given order.

    Args:
        sizes: int64 [n, R], resources of each graph; each fits the capacity.
        order: int [m], the graphs to pack.
        capacity: int64 [R].

    Returns:
        List of int arrays, the graphs of each supergraph.
    """
    totals = np.cumsum(sizes[order], axis=0)
    out, start = [], 0
    used = np.zeros(capacity.shape, np.int64)
    while start < len(order):
        end = min(
            int(np.searchsorted(totals[:, r], used[r] + capacity[r], side="right"))
            for r in range(capacity.shape[0])
        )
        out.append(order[start:end])
        used = totals[end - 1]
        start = end
    return out


def spread(supergraphs: list, count: int) -> list:
    """Splits the fullest supergraphs until there are `count`.

    Supergraphs that cannot be split further are followed by empty ones.
    """
    out = list(supergraphs)
    while len(out) < count:
        fullest = max(range(len(out)), key=lambda i: len(out[i]), default=None)
        if fullest is None or len(out[fullest]) < 2:
            out.append(np.zeros(0, np.int64))
            continue
        half = len(out[fullest]) // 2
        out.append(out[fullest][half:])
        out[fullest] = out[fullest][:half]
    return out
