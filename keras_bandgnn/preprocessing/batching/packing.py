"""Packing graphs into supergraphs, from their sizes alone."""

import numpy as np

# Candidates among which best fit chooses the last graphs of a supergraph.
_CANDIDATES = 160
# It begins to choose when about this many average graphs still fit; earlier where
# many resources have to be filled evenly.
_CHOSEN = 2.0
_BALANCED = 10.0


def ceil64(values: np.ndarray | float) -> np.ndarray:
    """Return the next multiple of 64 that is strictly above (Speckhard et al. 2025)."""
    return 64 * (1 + np.floor_divide(values, 64).astype(np.int64))


def round_up_64(values: np.ndarray | int) -> np.ndarray:
    """Return the smallest multiple of 64 that is not below, at least 64."""
    return 64 * np.maximum(1, -(-np.asarray(values, np.int64) // 64))


def round_up_power_of_two(values: np.ndarray | int) -> np.ndarray:
    """Return the smallest power of two that is not below, at least 1."""
    values = np.maximum(np.asarray(values, np.int64), 1)
    return np.int64(1) << np.ceil(np.log2(values)).astype(np.int64)


def _check_fit(sizes: np.ndarray, order: np.ndarray, capacity: np.ndarray) -> None:
    large = (sizes[order] > capacity).any(axis=1)
    if large.any():
        first = int(order[large.argmax()])
        raise ValueError(
            f"Expected graphs of at most {capacity.tolist()}. Received: graph {first} "
            f"with {sizes[first].tolist()}. Split the graphs by `Batcher.fits` or "
            "`Batcher.split` first, or raise the budget."
        )


def pack_sequential(sizes: np.ndarray, order: np.ndarray, capacity: np.ndarray) -> list:
    """Fill one supergraph after the other, in the given order.

    Args:
        sizes: int64 [n, R], resources of each graph; each fits the capacity.
        order: int [m], the graphs to pack.
        capacity: int64 [R].

    Returns:
        List of int arrays, the graphs of each supergraph.

    Raises:
        ValueError: If a graph is above the capacity.
    """
    _check_fit(sizes, order, capacity)
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


def pack_best_fit(
    sizes: np.ndarray,
    order: np.ndarray,
    capacity: np.ndarray,
    window: int,
    weight: np.ndarray,
    balanced: bool = False,
) -> list:
    """Fill supergraphs oldest first, but choose the last graphs of each to fit.

    Graphs wait in a pool of `window`. A supergraph takes the oldest ones until two
    average graphs are missing, then the pair, among many of the pool, that leaves
    the least room in all resources together. The oldest graph of the pool is always
    taken, so none waits long.

    Args:
        sizes: int64 [n, R], resources of each graph; each fits the capacity.
        order: int [m], the graphs to pack.
        capacity: int64 [R].
        window: Graphs in the pool.
        weight: float [R], how much it counts that a resource is filled.
        balanced: Whether to choose the last ten graphs, one by one, so that what is
            left of the resources stays in proportion. All of many are filled then.

    Returns:
        List of int arrays, the graphs of each supergraph.

    Raises:
        ValueError: If a graph is above the capacity.
    """
    if not len(order):
        return []
    _check_fit(sizes, order, capacity)
    mean = sizes[order].mean(axis=0)
    share = sizes * (weight / np.maximum(capacity, 1))
    value = share.sum(axis=1)
    open_graphs = _CHOSEN
    if balanced:
        room = (capacity / np.maximum(mean, 1)).min()
        open_graphs = max(_CHOSEN, min(_BALANCED, room / 2))
        # What is left beyond this is chosen in proportion.
        aim = np.ceil(_CHOSEN * mean), 1 / np.maximum(capacity, 1), weight
    reserve = np.ceil(open_graphs * mean).astype(np.int64)
    pool, following, out = order[:window], window, []
    while pool.size:
        members = _fill(
            sizes[pool], value[pool], capacity, reserve, aim if balanced else None
        )
        out.append(pool[members])
        added = order[following : following + out[-1].size]
        pool = np.concatenate([pool[~members], added])
        following += added.size
    return out


def _fill(size, value, capacity, reserve, aim) -> np.ndarray:
    """Return which graphs of the pool form the next supergraph, bool [w]."""
    taken = np.zeros(len(size), bool)
    taken[0] = True
    free = capacity - size[0]
    waiting = np.arange(1, len(size))
    while waiting.size:
        limit = free - reserve
        totals = np.cumsum(size[waiting], axis=0)
        count = min(
            int(np.searchsorted(totals[:, r], limit[r], side="right"))
            for r in range(len(capacity))
        )
        if count:
            taken[waiting[:count]] = True
            free = free - totals[count - 1]
        # Those that are too large for what is left wait; smaller ones may follow.
        waiting = waiting[count:]
        waiting = waiting[(size[waiting] <= free - reserve).all(axis=1)]
    while True:
        fitting = np.flatnonzero((size <= free).all(axis=1) & ~taken)
        if not fitting.size:
            return taken
        if fitting.size > _CANDIDATES:
            places = np.linspace(0, fitting.size - 1, _CANDIDATES).astype(np.int64)
            fitting = fitting[places]
        if aim is not None and (free > aim[0]).all():
            best = _most_even(size[fitting], free, *aim[1:])
        else:
            best = _best_pair(size[fitting], value[fitting], free)
        taken[fitting[best]] = True
        free = free - size[fitting[best]].sum(axis=0)


def _best_pair(size, value, free) -> list[int]:
    """Return the one or two fitting graphs that fill most."""
    count = len(size)
    fits = np.ones((count, count), bool)
    for r in range(size.shape[1]):
        fits &= size[:, None, r] + size[None, :, r] <= free[r]
    np.fill_diagonal(fits, False)
    score = np.where(fits, value[:, None] + value[None, :], -1.0)
    first, second = divmod(int(score.argmax()), count)
    single = int(value.argmax())
    if score[first, second] < value[single]:
        return [single]
    return [first, second]


def _most_even(size, free, scale, weight) -> list[int]:
    """Return the graph that leaves the resources filled most evenly."""
    left = (free - size) * scale
    middle = left @ weight / weight.sum()
    return [int((((left - middle[:, None]) ** 2) @ weight).argmin())]


def spread(supergraphs: list, count: int) -> list:
    """Split the fullest supergraphs until there are `count`.

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
