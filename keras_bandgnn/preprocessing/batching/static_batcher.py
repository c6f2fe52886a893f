"""`StaticBatcher`: a fixed number of graphs per supergraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import boolean, one_of
from keras_bandgnn.preprocessing.batching.batcher import (
    PER_GRAPH,
    Batcher,
    ceil64,
    round_up_64,
    round_up_power_of_two,
)
from keras_bandgnn.primitives.base import owner_of
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions

_ROUND = {"64": round_up_64, "power_of_two": round_up_power_of_two}


@serializable
class StaticBatcher(Batcher):
    """Puts a fixed number of graphs into each supergraph (Speckhard et al. 2025).

    | padding | nodes | edges | compilations |
    | --- | --- | --- | --- |
    | `"constant"` | ceil64((graphs + 1) * largest) | likewise | 1 |
    | `"64"` | multiple of 64 >= sum + 1 | multiple of 64 >= sum | one per shape |
    | `"power_of_two"` | power of two >= sum + 1 | power of two >= sum | one per shape |

    ceil64 is the next multiple of 64 strictly above; sums are over the graphs of the
    supergraph, largest is over the graphs given to `adapt`. Supergraphs of one step
    (several replicas) are padded to the largest of them. What a plan needs besides,
    such as rows or tiles, has as much room as there are edges, or 1/2, 1/4, 1/8, ... of
    it: at most twice what is needed, and few more shapes than pairs of nodes and edges.

    No graph is lost: the last supergraph of an epoch may hold fewer. The authors' code
    loses every `graphs + 1`-th graph, the one that closes a batch, and the last,
    partly filled batch; `drop_trigger=True` does the same, for replication only.

    Args:
        graphs: Graphs per supergraph. The batch size of the paper is one more, as it
            counts the padding graph.
        padding: `"constant"`, `"64"` or `"power_of_two"`.
        oversize: For `"constant"`, what becomes of graphs larger than all those it was
            adapted to: `"bucket"`, `"drop"` or `"raise"`, see `DynamicBatcher`.
        drop_trigger: Whether to lose the graphs that the authors' code loses.
        budget: The adapted capacities, as `get_config` gives them.

    Example:
    >>> batcher = StaticBatcher(2, padding="64")
    >>> sizes = {"node": np.array([40, 30, 50]), "edge": np.array([64, 1, 0])}
    >>> batcher.adapt(sizes)
    >>> packed = batcher.pack(sizes, np.arange(3), batcher.budget)
    >>> packed
    [array([0, 1]), array([2])]
    >>> shapes = batcher.shapes(sizes, [[members] for members in packed], {})
    >>> [(shape["node"], shape["edge"]) for shape in shapes]
    [(128, 128), (64, 64)]
    """

    def __init__(
        self,
        graphs: int = 32,
        padding: str = "constant",
        oversize: str = "bucket",
        drop_trigger: bool = False,
        budget: Mapping[str, int] | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(graphs, budget, oversize, **kwargs)
        self.padding = one_of("padding", padding, ("constant", "64", "power_of_two"))
        self.drop_trigger = boolean("drop_trigger", drop_trigger)
        self.fixed_shapes = self.padding == "constant"

    def estimate_budget(self, sizes: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return capacities for graphs of these sizes, by name."""
        budget = {"graph": self.graphs + 1, **self.given}
        if self.fixed_shapes:
            for name, values in sizes.items():
                if name not in (*PER_GRAPH, *budget):
                    budget[name] = self.room_for(int(np.asarray(values).max()))
        return budget

    def is_adapted(self, sizes: Mapping[str, np.ndarray]) -> bool:
        """Return whether there is a capacity for every resource that needs one."""
        if self.fixed_shapes:
            return super().is_adapted(sizes)
        needed = {name for name in sizes if name in PER_GRAPH} | {"graph"}
        return not needed - set(self.budget)

    def limits(self, sizes: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the largest graph of which any `graphs` fit, by resource."""
        if not self.fixed_shapes:
            return {name: self.budget[name] for name in PER_GRAPH if name in sizes}
        limits = super().limits(sizes)
        return {
            name: limit if name in PER_GRAPH else limit // self.graphs
            for name, limit in limits.items()
        }

    def room_for(self, largest: int) -> int:
        """Return room for a whole batch of the largest graph."""
        return int(ceil64((self.graphs + 1) * largest))

    def pack(
        self, sizes: Mapping[str, np.ndarray], order: np.ndarray | None, budget: Mapping
    ) -> list:
        """Cut an order of graphs into supergraphs of `graphs` graphs."""
        del sizes, budget
        order = np.asarray(order)
        if not self.drop_trigger:
            return np.split(order, range(self.graphs, len(order), self.graphs))
        whole = len(order) // (self.graphs + 1)
        if not whole:
            return []
        return list(order[: whole * (self.graphs + 1)].reshape(whole, -1)[:, :-1])

    def shapes(
        self, sizes: Mapping[str, np.ndarray], steps: Sequence[Sequence], budget: dict
    ) -> list[dict[str, int]]:
        """Return the padded sizes of each step, whose supergraphs share one shape."""
        if self.fixed_shapes:
            return super().shapes(sizes, steps, budget)
        if not steps:
            return []
        round_up = _ROUND[self.padding]
        members = np.concatenate([m for step in steps for m in step]).astype(np.int64)
        counts = np.array([len(m) for step in steps for m in step])
        starts = np.cumsum(counts) - counts

        def largest_sums(name: str) -> np.ndarray:
            values = np.append(np.asarray(sizes[name], np.int64)[members], 0)
            sums = np.where(counts > 0, np.add.reduceat(values, starts), 0)
            return sums.reshape(len(steps), -1).max(axis=1)

        edges = round_up(largest_sums("edge"))
        padded = {"node": round_up(largest_sums("node") + 1), "edge": edges}
        for name in sizes:
            if name in (*PER_GRAPH, *padded):
                continue
            owner = owner_of(name)
            if owner is not None and not owner.follows_edges:
                padded[name] = round_up(largest_sums(name))
            elif np.array_equal(sizes[name], sizes["edge"]):
                padded[name] = edges
            else:
                # Rows and tiles may be far larger than edges, and far fewer.
                padded[name] = _share(largest_sums(name), edges)
        fixed = {k: v for k, v in budget.items() if k in (*PER_GRAPH, "graph")}
        return [
            {**fixed, **dict(zip(padded, row, strict=True))}
            for row in zip(*(v.tolist() for v in padded.values()), strict=True)
        ]


def _share(needed: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the smallest capacities edges * 2^k, k any integer, that suffice."""
    power = np.ceil(np.log2(np.maximum(needed, 1) / edges))
    return np.maximum(np.ceil(edges * 2.0**power), needed).astype(np.int64)
