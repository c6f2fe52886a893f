"""`DynamicBatcher`: as many graphs per supergraph as a fixed budget holds."""

from collections.abc import Mapping

import keras
import numpy as np

from keras_bandgnn.checks import one_of, positive_int
from keras_bandgnn.preprocessing.batcher import Batcher, size_table
from keras_bandgnn.preprocessing.budgets import mean_rule, quantile_rule
from keras_bandgnn.preprocessing.packing import (
    ceil64,
    pack_best_fit,
    pack_sequential,
)


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
        estimate_from: Estimate from so many graphs, the first ones (the paper: 1000);
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
        """Capacities for graphs of these sizes, by name."""
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
        """Room for one graph, with padding."""
        return int(ceil64(largest))

    def pack(self, sizes: Mapping[str, np.ndarray], order, budget: Mapping) -> list:
        """Cuts an order of graphs into supergraphs.

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
        steps = np.array(["@" in name for name in names])
        weight = np.array([float(name in ("node", "edge")) for name in names])
        if steps.any() and len(order):
            # The lists of the steps are computed on; nodes measure whole graphs.
            weight = np.where(steps, table[order].mean(axis=0), 0.0)
            weight[names.index("node")] = weight.max()
        return pack_best_fit(
            table, order, capacity, self.window, weight, bool(steps.any())
        )

    def get_config(self) -> dict:
        """Returns the constructor's arguments, with the adapted budget."""
        return {
            **super().get_config(),
            "packing": self.packing,
            "estimate": self.estimate,
            "window": self.window,
            "estimate_from": self.estimate_from,
        }
