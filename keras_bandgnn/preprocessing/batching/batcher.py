"""`Batcher`: which graphs may share a supergraph, and how large it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import mapping, one_of, positive_int
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.preprocessing.graph_layer import HostLayer
from keras_bandgnn.primitives.base import is_resource

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions

_LOG = logging.getLogger("keras_bandgnn")
# Per supergraph: more would fit neither memory nor 32-bit node ids.
MOST_GRAPHS = 2**24
# Not additive over graphs: capacity is the largest value of one graph.
PER_GRAPH = ("candidate",)
# Graphs above the budget that the warning lists.
_NAMED = 5


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


class Batcher(HostLayer):
    """Base class of batchers: which graphs share a supergraph, and its padded sizes.

    A batcher works on sizes alone: a dict from the name of a resource ("node", "edge",
    those of a plan) to int [n], what each graph needs. So the batches of an epoch are
    known before any array is touched. The loader calls:

    | method | when | default |
    | --- | --- | --- |
    | `check_names(sizes)` | once | refuses a budget of unknown resources |
    | `is_adapted(sizes)` | once | whether every resource has a capacity |
    | `complete(sizes)` | if not adapted | `adapt`, keeping known capacities |
    | `split(sizes)` | once | budget of each graph, by `fits` and `oversize` |
    | `pack(sizes, order, budget)` | per epoch and budget | none: define it |
    | `shapes(sizes, steps, budget)` | per epoch and budget | the budget |

    A subclass defines `estimate_budget(sizes)`, the capacities that were not given;
    `pack`, which must use every graph of `order` once and keep each supergraph within
    the budget; and `room_for(largest)`, the capacity for graphs above the budget. One
    node and one graph of a budget are padding. `pack` and `shapes` must depend on
    their arguments alone: epochs are reproducible, and hosts that train together
    agree without communication. Sizes vary from step to step only if `fixed_shapes` is
    False, and `shapes` then returns them. `get_config()` adds the subclass's own
    arguments; registered with `keras.saving.register_keras_serializable`, a batcher
    is saved in presets.

    Args:
        graphs: Graphs per supergraph, without the padding graph.
        budget: Capacities by name.
        oversize: What becomes of graphs above the budget: `"bucket"` puts them into
            supergraphs of their own, larger shape (one more compilation), `"drop"`
            leaves them out and counts them, `"raise"` is an error.

    Attributes:
        budget: The capacities by name, those of `adapt` included.
        given: The capacities that the constructor got.
        fixed_shapes: Whether all supergraphs of a budget have the same shape.

    Example:
    >>> class Pairs(Batcher):
    ...     def __init__(self, graphs=2, budget=None, oversize="bucket", **kwargs):
    ...         super().__init__(graphs, budget, oversize, **kwargs)
    ...     def estimate_budget(self, sizes):
    ...         most = {name: 2 * int(values.max()) for name, values in sizes.items()}
    ...         return {**most, "node": most["node"] + 1, "graph": 3, **self.given}
    ...     def pack(self, sizes, order, budget):
    ...         return np.split(order, range(2, len(order), 2))
    ...     def room_for(self, largest):
    ...         return 2 * largest + 1
    >>> batcher = Pairs()
    >>> batcher.adapt({"node": np.array([3, 5, 4]), "edge": np.array([2, 4, 3])})
    >>> batcher.budget
    {'node': 11, 'edge': 8, 'graph': 3}
    """

    fixed_shapes = True

    def __init__(
        self,
        graphs: int,
        budget: Mapping[str, int] | None,
        oversize: str,
        **kwargs: Unpack[LayerOptions],
    ):
        if "batch_size" in kwargs:
            raise ValueError(
                "Expected `graphs`, the graphs of a supergraph. Received: batch_size="
                f"{kwargs['batch_size']!r}, which counted the padding graph, too. Pass "
                "graphs=B - 1 for batch_size=B."
            )
        super().__init__(**kwargs)
        self.graphs = positive_int("graphs", graphs, 1, MOST_GRAPHS)
        self.given = {
            name: positive_int(f"budget[{name!r}]", value, 2 if name == "graph" else 1)
            for name, value in mapping("budget", budget or {}).items()
        }
        self.oversize = one_of("oversize", oversize, ("bucket", "drop", "raise"))
        self.budget = dict(self.given)

    def adapt(self, sizes: Mapping[str, np.ndarray]) -> None:
        """Estimate the capacities that were not given.

        Args:
            sizes: Resource -> int [n], what each graph needs ("node", "edge", ...).
        """
        if not len(sizes["node"]):
            raise ValueError("Expected at least one graph. Received: none.")
        budget = self.estimate_budget(sizes)
        for name in PER_GRAPH:
            if name in sizes:
                largest = int(np.asarray(sizes[name]).max(initial=1))
                budget.setdefault(name, largest)
        self.budget = budget

    def complete(self, sizes: Mapping[str, np.ndarray]) -> None:
        """Adapt to graphs, but keep the capacities that are known."""
        capacities = dict(self.budget)
        self.adapt(sizes)
        if len(capacities) > len(self.given):
            self.budget = {**self.budget, **capacities}

    def estimate_budget(self, sizes: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return capacities for graphs of these sizes, by name."""
        raise NotImplementedError

    def is_adapted(self, sizes: Mapping[str, np.ndarray]) -> bool:
        """Return whether there is a capacity for every resource."""
        return not {*sizes, "graph"} - set(self.budget)

    def check_names(self, sizes: Mapping[str, np.ndarray]) -> None:
        """Raise a ValueError for a capacity of a resource that nothing measures."""
        # A saved budget may hold the resources of another plan.
        resources = {*sizes, "graph", *PER_GRAPH}
        unknown = [n for n in self.given if n not in resources and not is_resource(n)]
        if unknown:
            raise ValueError(
                f"Expected a budget of {sorted({*sizes, 'graph'})}. "
                f"Received: unknown resources {unknown}."
            )

    def _check(self, sizes: Mapping) -> None:
        missing = sorted({*sizes, "graph"} - set(self.budget))
        if missing:
            raise ValueError(
                f"Expected a budget for {sorted({*sizes, 'graph'})}. Received: budget="
                f"{self.budget}; {missing} are missing. Call adapt() or name them."
            )

    def capacity(self, names: Sequence[str], budget: Mapping[str, int]) -> np.ndarray:
        """Return capacities for real graphs, int64 [R], less the padding."""
        padding = {"node": 1, "graph": 1}
        return np.array(
            [budget[name] - padding.get(name, 0) for name in names], np.int64
        )

    def limits(self, sizes: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the largest graph that fits the budget, by resource.

        Args:
            sizes: Resource -> int [n], what each graph needs.
        """
        self._check(sizes)
        padding = {"node": 1}
        return {name: self.budget[name] - padding.get(name, 0) for name in sizes}

    def fits(self, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which graphs fit the budget, bool [n]."""
        fits = np.ones(len(sizes["node"]), bool)
        for name, limit in self.limits(sizes).items():
            fits &= np.asarray(sizes[name]) <= limit
        return fits

    def bucket(self, sizes: Mapping[str, np.ndarray], too_large: np.ndarray) -> dict:
        """Return the budget of supergraphs for the graphs that do not fit, bool [n]."""
        budget = dict(self.budget)
        for name in set(sizes) & set(budget):
            largest = int(np.asarray(sizes[name])[too_large].max())
            room = largest if name in PER_GRAPH else self.room_for(largest)
            budget[name] = max(budget[name], room)
        return budget

    def room_for(self, largest: int) -> int:
        """Return the capacity of supergraphs for graphs above the budget.

        Args:
            largest: What the largest of them needs.
        """
        raise NotImplementedError

    def split(self, sizes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[dict]]:
        """Sort graphs by the budget that holds them.

        Returns:
            int8 [n], the budget of each graph, and the budgets. Graphs that are
            dropped have a number beyond the budgets.
        """
        large = ~self.fits(sizes)
        if not large.any():
            return large.astype(np.int8), [dict(self.budget)]
        if self.oversize == "raise":
            first = int(large.argmax())
            raise ValueError(
                "Expected every graph to fit the budget. Received: "
                f"{large.sum()} graphs above it, first graph {first}; "
                f"{self._largest(sizes)}. Raise the budget (--batch-nodes). In "
                "Python, pass oversize='bucket'."
            )
        if self.oversize == "drop":
            return np.where(large, 2, 0).astype(np.int8), [dict(self.budget)]
        larger = self.bucket(sizes, large)
        _LOG.warning("%s", self._warning(sizes, large, larger))
        return large.astype(np.int8), [dict(self.budget), larger]

    def _largest(self, sizes: Mapping[str, np.ndarray]) -> str:
        """Describe the graph that exceeds the budget most, and by which resource."""
        limits = self.limits(sizes)
        needs = {name: int(np.asarray(sizes[name]).max()) for name in limits}
        name = max(needs, key=lambda name: needs[name] / max(limits[name], 1))
        graph = int(np.asarray(sizes[name]).argmax())
        return (
            f"graph {graph} needs {needs[name]:,} of {name!r} where {limits[name]:,} "
            "fit"
        )

    def _warning(self, sizes: Mapping, large: np.ndarray, larger: Mapping) -> str:
        """Describe which graphs exceed the budget, how far, and at which cost."""
        numbers = np.flatnonzero(large)
        named = ", ".join(str(number) for number in numbers[:_NAMED])
        named += ", ..." if len(numbers) > _NAMED else ""
        ratio = max(larger[name] / max(self.budget[name], 1) for name in self.budget)
        nodes, edges = (larger.get(name, 0) for name in ("node", "edge"))
        return (
            f"{len(numbers):,} of {len(large):,} graphs ({named}) are above the "
            f"budget: {self._largest(sizes)}. They get supergraphs of their own, of "
            f"{nodes:,} nodes and {edges:,} edges: one more compilation, and steps "
            f"with up to {ratio:.1f} times the usual memory. Raise the budget "
            "(--batch-nodes), or leave these graphs out (in Python oversize='drop')."
        )

    def pack(
        self, sizes: Mapping[str, np.ndarray], order: np.ndarray | None, budget: Mapping
    ) -> list:
        """Cut an order of graphs into supergraphs.

        Args:
            sizes: Resource -> int [n].
            order: int [m], the graphs to pack; each fits the budget.
            budget: Capacities by name.

        Returns:
            List of int arrays, the graphs of each supergraph.
        """
        raise NotImplementedError

    def shapes(
        self, sizes: Mapping[str, np.ndarray], steps: Sequence[Sequence], budget: dict
    ) -> list[dict[str, int]]:
        """Return the padded sizes of each step, whose supergraphs share one shape.

        Args:
            sizes: Resource -> int [n].
            steps: For each step its supergraphs, each an int array of graphs.
            budget: The budget that they were packed for.
        """
        del sizes
        return [budget] * len(steps)

    def copy(self) -> Batcher:
        """Return a batcher with the same budget, which adapts independently.

        Attributes of subclasses that are changed in place are those of both.
        """
        # Building a layer of Keras takes longer than a prediction for a small graph.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, budget=dict(self.budget))
        return other

    def __reduce__(self):
        return _rebuild, (type(self), self.whole_config(), dict(self.given))

    def get_config(self) -> dict:
        """Return the constructor's arguments, with the adapted budget."""
        return {
            **super().get_config(),
            "graphs": self.graphs,
            "budget": dict(self.budget),
            "oversize": self.oversize,
        }

    def identity(self) -> dict:
        """Return the arguments as fingerprints of loaders have them since 0.2.0."""
        config = self.plain_config()
        return {
            **{"batch_size" if k == "graphs" else k: v for k, v in config.items()},
            "batch_size": self.graphs + 1,
        }

    @classmethod
    def from_config(cls, config: Mapping) -> Batcher:
        """Build a batcher; files of 0.2.0 count the padding graph in `batch_size`."""
        config = dict(config)
        if "batch_size" in config:
            config["graphs"] = config.pop("batch_size") - 1
        return cls(**config)


def _rebuild(cls: type[Batcher], config: dict, user_budget: dict) -> Batcher:
    batcher = cls.from_config({**config, "budget": user_budget})
    batcher.budget = dict(config["budget"])
    return batcher


def supergraph_nodes(parts: Sequence[FlatGraphs], batcher: Batcher) -> int:
    """Return the nodes of a supergraph: those of the budget, or of average graphs."""
    nodes = batcher.budget.get("node")
    if nodes is not None:
        return nodes
    total = sum(int(part.node_ptr[-1]) for part in parts)
    return int((batcher.graphs + 1) * total / max(sum(map(len, parts)), 1))
