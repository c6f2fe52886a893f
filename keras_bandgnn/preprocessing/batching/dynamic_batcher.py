"""`DynamicBatcher`, and the rules that estimate its budget from the sizes of graphs."""

from collections.abc import Callable, Mapping

import keras
import numpy as np

from keras_bandgnn.checks import one_of, positive_int
from keras_bandgnn.preprocessing.batching.batcher import PER_GRAPH, Batcher, size_table
from keras_bandgnn.preprocessing.batching.packing import (
    ceil64,
    pack_best_fit,
    pack_sequential,
    round_up_64,
)
from keras_bandgnn.primitives.base import is_step_resource, step_resource

# Graphs that the quantile rule packs to see what supergraphs need.
_SAMPLE = 8192
_USUAL = 0.95
_STEP_QUANTILES = (0.35, 0.5, 0.65, 0.8, 0.95)
# Relative room with which the lists of steps are first packed.
_STEP_ROOM = 1.1
_QUANTILES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 1.0)


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
    given: Mapping[str, int],
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
        given: Capacities that stay as they are.
        pack: `pack(sizes, order, budget)`, see `Batcher.pack`.

    Returns:
        Capacities by name.
    """
    count = len(sizes["node"])
    rng = np.random.default_rng(0)
    sample = rng.permutation(count)[:_SAMPLE]
    sizes = {k: np.asarray(v, np.int64)[sample] for k, v in sizes.items()}
    best = None
    for nodes in _node_capacities(sizes["node"], batch_size, given):
        budget, padding = _complete({**given, "node": nodes}, sizes, pack)
        if best is None or padding < best[0]:
            best = padding, budget
    return best[1]


def _node_capacities(nodes: np.ndarray, batch_size: int, given: Mapping) -> list[int]:
    if "node" in given:
        return [given["node"]]
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
        most = max((len(members) for members in packed), default=1)
        budget["graph"] = int(1.5 * most) + 2
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
    best = None
    for quantile in _STEP_QUANTILES:
        capacities = {
            name: _at_quantile(sizes[name], fitting, packed, quantile) for name in steps
        }
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


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class DynamicBatcher(Batcher):
    """Packs graphs until a budget of nodes, edges, graphs or any resource is met.

    All supergraphs have the shapes of the budget, so a model compiles once. One node
    and one graph of the budget are kept for padding. Speckhard et al. 2025, dynamic
    batching; Balog et al. 2019, sparse batching.

    With `estimate="mean"` (the paper) nodes and edges get max(ceil64(mean *
    batch_size), ceil64(largest)), and at most `batch_size - 1` graphs share a
    supergraph. With `estimate="quantile"` nodes get the same, and the other
    resources the quantile of what supergraphs need that pads least; as many graphs
    share a supergraph as it holds. `"quantile"` is also used for what the mean rule
    does not speak of: a budget with "node" given, and resources of the plan. If there
    are fewer graphs than `batch_size`, the room is for as many as there are.

    Args:
        batch_size: Graphs per supergraph on average, the padding graph included.
        budget: Capacities by name, such as `{"node": 8192}`. Resources left out are
            estimated by `adapt`. With "node" given, `batch_size` is not used.
        oversize: What becomes of graphs above the budget: `"bucket"` puts them into
            supergraphs of their own, larger shape (one more compilation), `"drop"`
            leaves them out and counts them, `"raise"` is an error.
        packing: `"sequential"` fills one supergraph after the other and opens the
            next one with the graph that did not fit (the paper). `"best_fit"` takes
            graphs out of their order, within a window, so that almost nothing is
            padding.
        estimate: `"mean"`, `"quantile"`, or `"auto"`: `"mean"` for sequential packing
            and `"quantile"` for best fit.
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
        batch_size: int = 32,
        budget: Mapping[str, int] | None = None,
        oversize: str = "bucket",
        packing: str = "sequential",
        estimate: str = "auto",
        window: int = 1024,
        estimate_from: int | None = None,
        **kwargs,
    ):
        super().__init__(batch_size, budget, oversize, **kwargs)
        self.packing = one_of("packing", packing, ("sequential", "best_fit"))
        self.estimate = one_of("estimate", estimate, ("auto", "mean", "quantile"))
        self.window = positive_int("window", window)
        self.estimate_from = estimate_from
        if estimate_from is not None:
            self.estimate_from = positive_int("estimate_from", estimate_from)

    def estimate_budget(self, sizes: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return capacities for graphs of these sizes, by name."""
        # Room for more graphs than there are would be padding in every batch.
        graphs = min(self.batch_size, len(sizes["node"]))
        sizes = {k: np.asarray(v)[: self.estimate_from] for k, v in sizes.items()}
        budget = dict(self.given)
        usual = "mean" if self.packing == "sequential" else "quantile"
        rule = usual if self.estimate == "auto" else self.estimate
        if rule == "mean" and "node" not in budget:
            mean = {**mean_rule(sizes, graphs), "graph": self.batch_size}
            budget = {**mean, **budget}
        return quantile_rule(sizes, graphs, budget, self.pack)

    def room_for(self, largest: int) -> int:
        """Return room for one graph, with padding."""
        return int(ceil64(largest))

    def pack(self, sizes: Mapping[str, np.ndarray], order, budget: Mapping) -> list:
        """Cut an order of graphs into supergraphs.

        Args:
            sizes: Resource -> int [n].
            order: int [m], the graphs to pack; each fits the budget.
            budget: Capacities by name; resources without one are not looked at.

        Returns:
            List of int arrays, the graphs of each supergraph.
        """
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

    def get_config(self) -> dict:
        """Return the constructor's arguments, with the adapted budget."""
        return {
            **super().get_config(),
            "packing": self.packing,
            "estimate": self.estimate,
            "window": self.window,
            "estimate_from": self.estimate_from,
        }
