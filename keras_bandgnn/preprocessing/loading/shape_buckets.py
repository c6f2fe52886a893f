"""Few shapes for predictions: a ladder of budgets instead of one per graph."""

from collections.abc import Iterator, Mapping

import numpy as np

from keras_bandgnn.preprocessing.batching.batcher import (
    PER_GRAPH,
    Batcher,
    round_up_power_of_two,
)
from keras_bandgnn.preprocessing.loading.loader import Loader

# Smaller supergraphs do not run faster.
_LEAST_NODES = 64


def prediction_batches(loader: Loader, batcher: Batcher | None) -> Iterator[dict]:
    """Yield a loader's batches; few graphs are padded to a rung of a ladder.

    Graphs that fill several batches are padded to the budget, as for training. Where
    all fit into one, or where graphs are above the budget, the rungs are

    - the budget times ..., 1/4, 1/2, 1, 2, 4, ..., down to 64 nodes, if the batcher
      has a budget: graphs of up to its N nodes (and E edges, ...) have at most
      1 + log2(N / 64) shapes, and each doubling beyond has one more;
    - for each size on its own the numbers 4, 5, 6, 7 times a power of two, if it has
      none, or shapes of its own: at most a quarter more than needed.

    A budget may lack capacities of the plan, such as that of a preset whose plan
    `"auto"` chooses for this machine: these are powers of two.

    Args:
        loader: The graphs, in a fixed order.
        batcher: What the budget belongs to; None to keep the loader's own shapes.

    Yields:
        x of each batch.
    """
    keep = batcher is None or loader.num_hosts > 1
    budget = None
    if not keep and batcher.fixed_shapes and "node" in batcher.budget:
        budget = batcher.budget
    single = len(loader) == 1
    # Only the loader knows what is missing of a budget, for batches that are full.
    whole = budget is not None and batcher.is_adapted(loader.sizes)
    for index in range(len(loader)):
        groups = loader.supergraphs(index, loader.epoch)
        shape = dict(groups[0].budget)
        if budget is not None and (single or (whole and shape != budget)):
            shape = scaled_budget(needed_sizes(loader.sizes, groups), budget)
        elif not keep and budget is None and single:
            shape = {name: _rounded(size) for name, size in shape.items()}
        yield loader.build_as([s.members for s in groups], shape)[0]


def needed_sizes(sizes: Mapping[str, np.ndarray], groups) -> dict[str, int]:
    """Return the smallest sizes that hold each of some supergraphs."""
    needs = {"graph": 1 + max(len(s.members) for s in groups)}
    for name, values in sizes.items():
        values = np.asarray(values)
        sizes_of_groups = [values[s.members] for s in groups]
        if name in PER_GRAPH:
            needs[name] = max(int(v.max(initial=1)) for v in sizes_of_groups)
        elif name != "graph":
            needs[name] = max(int(v.sum()) for v in sizes_of_groups) + (name == "node")
    return needs


def scaled_budget(
    needs: Mapping[str, int], budget: Mapping[str, int]
) -> dict[str, int]:
    """Return the smallest power-of-two multiple of a budget that holds sizes.

    Args:
        needs: Sizes by name.
        budget: Capacities by name, of nodes among them. Of sizes that it does not
            name the result is the next power of two.

    Returns:
        Capacities by name.

    Example:
    >>> scaled_budget({"node": 70, "graph": 2}, {"node": 512, "edge": 640, "graph": 9})
    {'node': 128, 'edge': 160, 'graph': 3}
    """
    capacities = {
        name: int(round_up_power_of_two(size))
        for name, size in needs.items()
        if name not in budget
    }
    needs = {name: size for name, size in needs.items() if name in budget}
    return capacities | _rung(needs, budget)


def _rung(needs: Mapping[str, int], budget: Mapping[str, int]) -> dict[str, int]:
    step = -max(0, int(np.log2(max(1, budget["node"] / _LEAST_NODES))))
    while True:
        capacities = {name: _scaled(name, size, step) for name, size in budget.items()}
        for name in PER_GRAPH:
            # Of one graph, however many there are.
            if name in needs and needs[name] > budget[name]:
                capacities[name] = int(round_up_power_of_two(needs[name]))
        if all(capacities[name] >= size for name, size in needs.items()):
            return capacities
        step += 1


def _scaled(name: str, size: int, step: int) -> int:
    if name in PER_GRAPH:
        return int(size)
    least = 2 if name == "graph" else 0
    # What the budget has no room for at all grows, too.
    size = max(int(size), 1) if step > 0 else int(size)
    return max(least, int(np.ceil(size * 2.0**step)))


def _rounded(size: int) -> int:
    """Round up to 4, 5, 6 or 7 times a power of two."""
    if size <= 4:
        return int(size)
    unit = 1 << (int(size).bit_length() - 3)
    return -(-int(size) // unit) * unit
