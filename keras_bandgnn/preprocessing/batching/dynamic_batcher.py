"""`DynamicBatcher`: packing graphs, from their sizes alone, and rules for budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import one_of, positive_int
from keras_bandgnn.preprocessing.batching.batcher import (
    PER_GRAPH,
    Batcher,
    ceil64,
    round_up_64,
)
from keras_bandgnn.primitives.base import is_step_resource, step_resource
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions

# Graphs that the quantile rule packs to see what supergraphs need.
_SAMPLE = 8192
_USUAL = 0.95
_STEP_QUANTILES = (0.35, 0.5, 0.65, 0.8, 0.95)
# Capacities of steps beside these, relative to what full nodes need on average.
_STEP_SHARES = (1.0, 1.005, 1.01, 1.02)
# Relative room with which the lists of steps are first packed.
_STEP_ROOM = 1.1
_QUANTILES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 1.0)
# Candidates among which best fit chooses the last graphs of a supergraph.
_CANDIDATES = 160
# It begins to choose when about this many average graphs still fit; earlier where
# many resources have to be filled evenly.
_LAST_GRAPHS = 2.0
_BALANCED = 10.0


def size_table(sizes: Mapping[str, np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of additive resources, and each graph's needs, int64 [n, R].

    "node" and "edge" come first, "graph" (1 each) last.
    """
    names = [name for name in ("node", "edge") if name in sizes]
    names += [name for name in sizes if name not in (*names, *PER_GRAPH, "graph")]
    columns = [np.asarray(sizes[name], np.int64) for name in names]
    columns.append(np.ones(len(columns[0]), np.int64))
    return (*names, "graph"), np.stack(columns, axis=1)


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
    open_graphs = _LAST_GRAPHS
    if balanced:
        room = (capacity / np.maximum(mean, 1)).min()
        open_graphs = max(_LAST_GRAPHS, min(_BALANCED, room / 2))
        # What is left beyond this is chosen in proportion.
        aim = np.ceil(_LAST_GRAPHS * mean), 1 / np.maximum(capacity, 1), weight
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
        # Defer graphs that exceed the remaining capacity.
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
    free_share = (free - size) * scale
    middle = free_share @ weight / weight.sum()
    return [int((((free_share - middle[:, None]) ** 2) @ weight).argmin())]


def mean_rule(sizes: Mapping[str, np.ndarray], batch_size: int) -> dict[str, int]:
    """Return the budget of dynamic batching in Speckhard et al. 2025.

    max(ceil64(mean * batch_size), ceil64(largest)) nodes and edges, and `batch_size`
    graphs with the padding graph.
    """
    budget = {"graph": batch_size}
    for name in ("node", "edge"):
        values = np.asarray(sizes[name], np.int64)
        usual = ceil64(values.mean() * batch_size)
        budget[name] = int(max(usual, ceil64(values.max())))
    return budget


def quantile_rule(
    sizes: Mapping[str, np.ndarray],
    batch_size: int,
    user_budget: Mapping[str, int],
    pack: Callable,
) -> dict[str, int]:
    """Complete a budget so that little is padding.

    Nodes get the mean rule, or a little more or less if that fills the last
    supergraph of a small data set. The graphs are packed by nodes alone; edges get
    the quantile of what these supergraphs need that pads least in all, where a
    smaller capacity may mean more supergraphs. The other resources get what 95 % of
    the supergraphs need. Everything holds at least the largest graph.

    Args:
        sizes: Resource -> int [n], what each graph needs.
        batch_size: Graphs per supergraph on average.
        user_budget: Capacities that stay as they are.
        pack: `pack(sizes, order, budget)`, see `Batcher.pack`.

    Returns:
        Capacities by name.
    """
    count = len(sizes["node"])
    rng = np.random.default_rng(0)
    sample = rng.permutation(count)[:_SAMPLE]
    sizes = {k: np.asarray(v, np.int64)[sample] for k, v in sizes.items()}
    best = None
    for nodes in _node_capacities(sizes["node"], batch_size, user_budget):
        budget, padding = _complete({**user_budget, "node": nodes}, sizes, pack)
        if best is None or padding < best[0]:
            best = padding, budget
    return best[1]


def _node_capacities(
    nodes: np.ndarray, batch_size: int, user_budget: Mapping
) -> list[int]:
    if "node" in user_budget:
        return [user_budget["node"]]
    least = int(ceil64(nodes.max()))
    usual = max(int(ceil64(nodes.mean() * batch_size)), least)
    supergraphs = nodes.sum() / usual
    if supergraphs > 100:
        return [usual]
    # Few supergraphs: one that is partly filled counts. Try to fill a whole number.
    tried = {usual}
    for whole in (
        np.floor(supergraphs),
        np.ceil(supergraphs),
        np.ceil(supergraphs) + 1,
    ):
        for slack in (1.005, 1.01, 1.02, 1.03):
            if whole >= 1:
                tried.add(int(round_up_64(np.ceil(nodes.sum() / whole * slack) + 1)))
    near = [n for n in tried if n >= least and abs(n / usual - 1) < 0.1]
    return sorted(near) or [usual]


def _complete(budget: dict, sizes: Mapping, pack: Callable) -> tuple[dict, float]:
    """Return the complete budget, and padded nodes and edges per real one."""
    options = [budget]
    steps = [name for name in sizes if is_step_resource(name) and name not in budget]
    if "edge" not in budget and step_resource("node", 0) in sizes:
        # No array is as long as the edges: they must not be what limits.
        mean = sizes["edge"].mean() / sizes["node"].mean()
        usual = max(2 * mean * budget["node"], sizes["edge"].max())
        options = [{**budget, "edge": int(round_up_64(int(usual)))}]
    elif "edge" not in budget:
        fitting, packed = _packed(budget, sizes, pack)
        edges = {_at_quantile(sizes["edge"], fitting, packed, q) for q in _QUANTILES}
        options = [{**budget, "edge": edge} for edge in sorted(edges)]
    tried = []
    for option in options:
        fitting, packed = _packed(option, sizes, pack)
        padding = sum(
            max(1, len(packed)) * option[name] / max(1, sizes[name][fitting].sum())
            for name in ("node", "edge")
        )
        tried.append((padding, option, fitting, packed))
    padding, budget, fitting, packed = min(tried, key=lambda entry: entry[0])
    if "graph" not in budget:
        # Slots cost next to nothing: half as many again as any supergraph had.
        graphs = max((len(members) for members in packed), default=1)
        budget["graph"] = int(1.5 * graphs) + 2
    for name, values in sizes.items():
        if name in PER_GRAPH or name in budget or is_step_resource(name):
            continue
        if np.array_equal(values, sizes["edge"]):
            budget[name] = budget["edge"]
        else:
            budget[name] = _at_quantile(values, fitting, packed, _USUAL)
    if steps:
        budget |= _of_steps(budget, steps, sizes, pack)
    return budget, padding


def _of_steps(budget: dict, steps: list, sizes: Mapping, pack: Callable) -> dict:
    """Return the capacities of the resources of a schedule.

    They are the arrays that are computed on: tight ones pad less, although
    supergraphs may then hold fewer graphs than nodes and edges allow.
    """
    share = _STEP_ROOM * budget["node"] / sizes["node"].mean()
    room = {
        name: int(max(share * sizes[name].mean(), sizes[name].max())) for name in steps
    }
    fitting, packed = _packed({**budget, **room}, sizes, pack)
    total = sum(int(sizes[name][fitting].sum()) for name in steps)
    # All quantiles of one supergraph are alike.
    quantiles = _STEP_QUANTILES if len(packed) > 1 else _STEP_QUANTILES[:1]
    tried = [
        {name: _at_quantile(sizes[name], fitting, packed, q) for name in steps}
        for q in quantiles
    ]
    if len(packed) > 1:
        # In proportion to the nodes, so that all of them are full together.
        share = budget["node"] / sizes["node"][fitting].mean()
        means = {name: sizes[name][fitting].mean() for name in steps}
        largest = {name: sizes[name][fitting].max() for name in steps}
        tried += [
            {
                n: int(round_up_64(int(max(r * share * means[n], largest[n]))))
                for n in steps
            }
            for r in _STEP_SHARES
        ]
    best = None
    for capacities in tried:
        needed = _packed({**budget, **capacities}, sizes, pack)[1]
        padded = len(needed) * sum(capacities.values()) / max(1, total)
        if best is None or padded < best[0]:
            best = padded, capacities
    return best[1]


def _packed(budget: dict, sizes: Mapping, pack: Callable) -> tuple[np.ndarray, list]:
    """Return the graphs that fit a budget, and their supergraphs."""
    fits = sizes["node"] < budget["node"]
    for name in set(sizes) & set(budget) - {"node"}:
        fits &= sizes[name] <= budget[name]
    fitting = np.flatnonzero(fits)
    return fitting, pack(sizes, fitting, budget) if fitting.size else []


def _at_quantile(values, fitting, packed, quantile: float) -> int:
    largest = values[fitting].max(initial=0)
    totals = [values[members].sum() for members in packed]
    usual = np.quantile(totals, quantile) if totals else 0
    return int(round_up_64(int(np.ceil(max(usual, largest)))))


@serializable
class DynamicBatcher(Batcher):
    """Packs graphs until a budget of nodes, edges, graphs or any resource is met.

    All supergraphs have the shapes of the budget, so a model compiles once. One node
    and one graph of the budget are kept for padding. `packing="sequential"` is dynamic
    batching of Speckhard et al. 2025, and sparse batching of Balog et al. 2019.

    With `estimate="quantile"` nodes get max(ceil64(mean * (graphs + 1)),
    ceil64(largest)), and the other resources the quantile of what supergraphs need
    that pads least; as many graphs share a supergraph as it holds. With
    `estimate="mean"` (the paper) edges get what nodes get, and at most `graphs` graphs
    share a supergraph. `"quantile"` is also used for what the mean rule does not
    speak of: a budget with "node" given, and resources of the plan. If there are fewer
    graphs than `graphs`, the room is for as many as there are.

    Args:
        graphs: Graphs per supergraph on average. The batch size of the paper is one
            more, as it counts the padding graph.
        budget: Capacities by name, such as `{"node": 8192}`. Resources left out are
            estimated by `adapt`. With "node" given, `graphs` is not used.
        oversize: What becomes of graphs above the budget: `"bucket"` puts them into
            supergraphs of their own, larger shape (one more compilation), `"drop"`
            leaves them out and counts them, `"raise"` is an error.
        packing: `"best_fit"` takes graphs out of their order, within a window, so that
            almost nothing is padding. `"sequential"` keeps the order: it fills one
            supergraph after the other and opens the next one with the graph that did
            not fit (the paper).
        estimate: `"mean"`, `"quantile"`, or `"auto"`: `"quantile"` for best fit and
            `"mean"` for sequential packing.
        window: Graphs among which best fit chooses.
        estimate_from: Estimate from the first this many graphs (the paper: 1000);
            None for all.

    Example:
    >>> batcher = DynamicBatcher(budget={"node": 128})
    >>> batcher.adapt({"node": np.array([10, 20]), "edge": np.array([18, 40])})
    >>> batcher.budget["node"]
    128
    """

    def __init__(
        self,
        graphs: int = 32,
        budget: Mapping[str, int] | None = None,
        oversize: str = "bucket",
        packing: str = "best_fit",
        estimate: str = "auto",
        window: int = 1024,
        estimate_from: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(graphs, budget, oversize, **kwargs)
        self.packing = one_of("packing", packing, ("sequential", "best_fit"))
        self.estimate = one_of("estimate", estimate, ("auto", "mean", "quantile"))
        self.window = positive_int("window", window)
        self.estimate_from = estimate_from
        if estimate_from is not None:
            self.estimate_from = positive_int("estimate_from", estimate_from)

    def estimate_budget(self, sizes: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return capacities for graphs of these sizes, by name."""
        # Room for more graphs than there are would be padding in every batch.
        slots = self.graphs + 1
        usual_count = min(slots, len(sizes["node"]))
        sizes = {k: np.asarray(v)[: self.estimate_from] for k, v in sizes.items()}
        budget = dict(self.given)
        usual = "mean" if self.packing == "sequential" else "quantile"
        rule = usual if self.estimate == "auto" else self.estimate
        if rule == "mean" and "node" not in budget:
            mean = {**mean_rule(sizes, usual_count), "graph": slots}
            budget = {**mean, **budget}
        return quantile_rule(sizes, usual_count, budget, self.pack)

    def room_for(self, largest: int) -> int:
        """Return room for one graph, with padding."""
        return int(ceil64(largest))

    def pack(
        self, sizes: Mapping[str, np.ndarray], order: np.ndarray | None, budget: Mapping
    ) -> list:
        """See `Batcher.pack`; resources without a capacity are not looked at."""
        names, table = size_table({k: v for k, v in sizes.items() if k in budget})
        budget = {"graph": len(table) + 1, **budget}
        capacity, order = self.capacity(names, budget), np.asarray(order)
        if self.packing == "sequential":
            return pack_sequential(table, order, capacity)
        steps = np.array([is_step_resource(name) for name in names])
        weight = np.array([float(name in ("node", "edge")) for name in names])
        if steps.any() and len(order):
            # The lists of the steps are computed on; nodes measure whole graphs.
            weight = np.where(steps, table[order].mean(axis=0), 0.0)
            weight[names.index("node")] = weight.max()
        return pack_best_fit(
            table, order, capacity, self.window, weight, bool(steps.any())
        )
