"""A path through all nodes of a small graph, by dynamic programming over sets."""

import numpy as np


def search(links: np.ndarray, token: bool) -> np.ndarray | None:
    """Finds a path through all nodes, or shows that there is none.

    Keeps for each of the 2^N sets of nodes the ends of the paths through the set.

    Args:
        links: bool [N, N], symmetric; N up to about 20.
        token: Whether a further node N, linked with all, is on the path, too.

    Returns:
        int32 [N], with a token [N + 1], or None.
    """
    size = len(links)
    bits = 1 << np.arange(size)
    neighbours = links @ bits
    whole = (1 << size) - 1
    count = np.zeros(1, np.int8)
    for _ in range(size):
        count = np.concatenate([count, count + 1])
    sets = np.argsort(count, kind="stable")
    bounds = np.searchsorted(count[sets], np.arange(size + 2))
    ends = np.zeros(whole + 1, np.int32)
    ends[bits] = bits
    for number in range(2, size + 1):
        level = sets[bounds[number] : bounds[number + 1]]
        for node in range(size):
            holding = level[level & bits[node] != 0]
            before = ends[holding ^ bits[node]]
            ends[holding[before & neighbours[node] != 0]] |= bits[node]
    if not token:
        return _trace(whole, ends, neighbours) if ends[whole] else None
    # The token joins a path through a set with one through all other nodes.
    covered = ends != 0
    covered[0] = True
    halves = np.flatnonzero(covered & covered[::-1])
    if not halves.size:
        return None
    one = _trace(int(halves[0]), ends, neighbours)
    two = _trace(whole ^ int(halves[0]), ends, neighbours)
    return np.concatenate([one, [size], two]).astype(np.int32)


def _trace(nodes: int, ends: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    path, allowed = [], -1
    while nodes:
        last = int(ends[nodes]) & allowed
        last = (last & -last).bit_length() - 1
        path.append(last)
        nodes, allowed = nodes ^ (1 << last), int(neighbours[last])
    return np.array(path, np.int32)
