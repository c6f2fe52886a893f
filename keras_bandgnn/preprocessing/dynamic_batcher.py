"""`DynamicBatcher`: as many graphs per supergraph as a fixed budget holds."""

from collections.abc import Mapping

import keras
import numpy as np

from keras_bandgnn.checks import one_of, positive_int
from keras_bandgnn.preprocessing.packing import ceil64, pack_sequential

# Not additive over graphs: capacity is the largest value of one graph.
PER_GRAPH = ("candidate",)


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class DynamicBatcher(keras.layers.Layer):
    """Packs graphs until a budget of nodes, edges, graphs or any resource is met.

    All supergraphs have the shapes of the budget, so a model compiles once. One node
    and one graph of the budget are kept for padding. Speckhard et al. 2025, dynamic
    batching; Balog et al. 2019, sparse batching.

    `adapt` estimates the budget. Nodes get max(ceil64(mean * batch_size),
    ceil64(largest)), as in the paper but over all graphs instead of the first 1000.
    The other resources get what supergraphs with that many nodes need in 95 % of
    the cases, at least what the largest graph needs.

    Args:
        batch_size: Graphs per supergraph on average, the padding graph included.
        budget: Capacities by name, such as `{"node": 8192}`. Resources left out are
            estimated by `adapt`. With "node" given, `batch_size` is not used.
        oversize: What becomes of graphs above the budget: `"bucket"` puts them into
            supergraphs of their own, larger shape (one more compilation), `"drop"`
            leaves them out and counts them, `"raise"` is an error.

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
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.batch_size = positive_int("batch_size", batch_size, 2)
        self.given = {
            name: positive_int(f"budget[{name!r}]", value, 2 if name == "graph" else 1)
            for name, value in (budget or {}).items()
        }
        self.oversize = one_of("oversize", oversize, ("bucket", "drop", "raise"))
        self.budget = dict(self.given)

    def copy(self) -> "DynamicBatcher":
        """Returns a batcher with the same budget that adapts apart from this one."""
        made = DynamicBatcher(self.batch_size, self.given, self.oversize)
        made.budget = dict(self.budget)
        return made

    def adapt(self, sizes: Mapping[str, np.ndarray]) -> None:
        """Estimates the capacities that were not given.

        Args:
            sizes: Resource -> int [n], what each graph needs ("node", "edge", ...).
        """
        count = len(sizes["node"])
        if not count:
            raise ValueError("Expected at least one graph. Received: none.")
        nodes = np.asarray(sizes["node"], np.int64)
        budget = dict(self.given)
        if "node" not in budget:
            mean = ceil64(nodes.mean() * self.batch_size)
            budget["node"] = int(max(mean, ceil64(nodes.max())))
            budget.setdefault("graph", self.batch_size)
        fitting = np.flatnonzero(nodes <= budget["node"] - 1)
        needs = np.stack([nodes, np.ones(count, np.int64)], axis=1)
        capacity = np.array([budget["node"] - 1, budget.get("graph", count + 1) - 1])
        order = np.random.default_rng(0).permutation(fitting)
        packed = pack_sequential(needs, order, capacity)
        for name, values in {**sizes, "graph": needs[:, 1]}.items():
            if name in budget:
                continue
            values = np.asarray(values, np.int64)
            if name in PER_GRAPH:
                budget[name] = int(values.max(initial=1))
                continue
            largest = values[fitting].max(initial=0)
            totals = [values[members].sum() for members in packed]
            usual = np.quantile(totals, 0.95) if totals else 0
            budget[name] = int(ceil64(max(usual, largest)))
        self.budget = budget

    def capacity(self, names: tuple[str, ...], budget: Mapping[str, int]) -> np.ndarray:
        """Capacities for real graphs, int64 [R]: one node and graph are padding."""
        kept = {"node": 1, "graph": 1}
        return np.array([budget[name] - kept.get(name, 0) for name in names], np.int64)

    def fits(self, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Which graphs fit the budget alone, bool [n]."""
        self._check(sizes)
        names = tuple(sizes)
        table = np.stack([np.asarray(sizes[n], np.int64) for n in names], axis=1)
        return (table <= self.capacity(names, self.budget)).all(axis=1)

    def _check(self, sizes: Mapping) -> None:
        missing = sorted(set(sizes) - set(self.budget))
        if missing:
            raise ValueError(
                f"Expected a budget for {sorted(sizes)}. Received: budget="
                f"{self.budget}; {missing} are missing. Call adapt() or name them."
            )

    def bucket(self, sizes: Mapping[str, np.ndarray], too_large: np.ndarray) -> dict:
        """Budget of the supergraphs for the graphs that do not fit, bool [n]."""
        budget = dict(self.budget)
        for name, values in sizes.items():
            largest = int(np.asarray(values)[too_large].max())
            if name in PER_GRAPH:
                budget[name] = max(budget[name], largest)
            else:
                budget[name] = max(budget[name], int(ceil64(largest)))
        return budget

    def pack(self, sizes: Mapping[str, np.ndarray], order, budget: Mapping) -> list:
        """Cuts an order of graphs into supergraphs.

        Args:
            sizes: Resource -> int [n].
            order: int [m], the graphs to pack; each fits the budget.
            budget: Capacities by name.

        Returns:
            List of int arrays, the graphs of each supergraph.
        """
        names = [name for name in sizes if name not in PER_GRAPH]
        table = [np.asarray(sizes[name], np.int64) for name in names]
        table.append(np.ones(len(table[0]), np.int64))
        names = (*names, "graph")
        return pack_sequential(
            np.stack(table, axis=1), np.asarray(order), self.capacity(names, budget)
        )

    def get_config(self) -> dict:
        """Returns the constructor's arguments, with the adapted budget."""
        return {
            **super().get_config(),
            "batch_size": self.batch_size,
            "budget": dict(self.budget),
            "oversize": self.oversize,
        }
