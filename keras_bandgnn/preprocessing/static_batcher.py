"""`StaticBatcher`: a fixed number of graphs per supergraph."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np

from keras_bandgnn.checks import boolean, one_of
from keras_bandgnn.preprocessing.batcher import PER_GRAPH, Batcher
from keras_bandgnn.preprocessing.packing import (
    ceil64,
    round_up_64,
    round_up_power_of_two,
)

_ROUND = {"64": round_up_64, "power_of_two": round_up_power_of_two}


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class StaticBatcher(Batcher):
    """Puts `batch_size - 1` graphs into each supergraph (Speckhard et al. 2025).

    | padding | nodes | edges | compilations |
    | --- | --- | --- | --- |
    | `"constant"` | ceil64(batch_size * largest) | likewise | 1 |
    | `"64"` | multiple of 64 >= sum + 1 | multiple of 64 >= sum | one per shape |
    | `"power_of_two"` | power of two >= sum + 1 | power of two >= sum | one per shape |

    ceil64 is the next multiple of 64 strictly above; sums are over the graphs of the
    supergraph, largest is over the graphs given to `adapt`. Supergraphs of one step
    (several replicas) are padded to the largest of them. The edge arrays of a plan
    are as long as the edges, so that nothing but nodes and edges makes a shape.

    No graph is lost: the last supergraph of an epoch may hold fewer. The authors' code
    loses every `batch_size`-th graph, the one that closes a batch, and the last,
    partly filled batch; `drop_trigger=True` does the same, for replication only.

    Args:
        batch_size: Graphs per supergraph, the padding graph included.
        padding: `"constant"`, `"64"` or `"power_of_two"`.
        oversize: For `"constant"`, what becomes of graphs larger than all those it was
            adapted to: `"bucket"`, `"drop"` or `"raise"`, see `DynamicBatcher`.
        drop_trigger: Whether to lose the graphs that the authors' code loses.
        budget: The adapted capacities, as `get_config` gives them.

    Example:
    >>> batcher = StaticBatcher(3, padding="64")
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
        batch_size: int = 32,
        padding: str = "constant",
        oversize: str = "bucket",
        drop_trigger: bool = False,
        budget: Mapping[str, int] | None = None,
        **kwargs,
    ):
        super().__init__(batch_size, budget, oversize, **kwargs)
        self.padding = one_of("padding", padding, ("constant", "64", "power_of_two"))
        self.drop_trigger = boolean("drop_trigger", drop_trigger)
        self.fixed_shapes = self.padding == "constant"

    def estimate_budget(self, sizes: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Capacities for graphs of these sizes, by name."""
        budget = {"graph": self.batch_size, **self.given}
        if self.fixed_shapes:
            for name, values in sizes.items():
                if name not in (*PER_GRAPH, *budget):
                    budget[name] = self.room_for(int(np.asarray(values).max()))
        return budget

    def is_adapted(self, sizes: Mapping[str, np.ndarray]) -> bool:
        """Whether there is a capacity for every resource that needs one."""
        if self.fixed_shapes:
            return super().is_adapted(sizes)
        needed = {name for name in sizes if name in PER_GRAPH} | {"graph"}
        return not needed - set(self.budget)

    def fits(self, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Graphs of which any `batch_size - 1` fit the budget, bool [n]."""
        if self.fixed_shapes:
            self._check(sizes)
        fits = np.ones(len(sizes["node"]), bool)
        for name, values in sizes.items():
            if name in PER_GRAPH:
                fits &= np.asarray(values) <= self.budget[name]
            elif self.fixed_shapes:
                (capacity,) = self.capacity([name], self.budget)
                fits &= np.asarray(values) * (self.batch_size - 1) <= capacity
        return fits

    def room_for(self, largest: int) -> int:
        """Room for a whole batch of the largest graph."""
        return int(ceil64(self.batch_size * largest))

    def pack(self, sizes: Mapping[str, np.ndarray], order, budget: Mapping) -> list:
        """Cuts an order of graphs into supergraphs of `batch_size - 1` graphs."""
        del sizes, budget
        order = np.asarray(order)
        if not self.drop_trigger:
            return np.split(
                order, range(self.batch_size - 1, len(order), self.batch_size - 1)
            )
        whole = len(order) // self.batch_size
        if not whole:
            return []
        return list(order[: whole * self.batch_size].reshape(whole, -1)[:, :-1])

    def shapes(
        self, sizes: Mapping[str, np.ndarray], steps: Sequence[Sequence], budget: dict
    ) -> list[dict[str, int]]:
        """The padded sizes of each step, whose supergraphs share one shape."""
        if self.fixed_shapes:
            return super().shapes(sizes, steps, budget)
        round_up = _ROUND[self.padding]
        members = np.concatenate([m for step in steps for m in step])
        counts = np.array([len(m) for step in steps for m in step])
        starts = np.cumsum(counts) - counts
        padded = {}
        # A tile is far larger than an edge: there is room for what is there.
        own = [name for name in sizes if name.startswith("tiles:")]
        for name in ("node", "edge", *own):
            values = np.append(np.asarray(sizes[name], np.int64)[members], 0)
            sums = np.where(counts > 0, np.add.reduceat(values, starts), 0)
            sums = sums.reshape(len(steps), -1).max(axis=1) + (name == "node")
            padded[name] = round_up(sums)
        fixed = {k: v for k, v in budget.items() if k in (*PER_GRAPH, "graph")}
        others = [k for k in sizes if k not in (*PER_GRAPH, *padded)]
        return [
            {
                **fixed,
                **dict.fromkeys(others, row[1]),
                **dict(zip(padded, row, strict=True)),
            }
            for row in zip(*(v.tolist() for v in padded.values()), strict=True)
        ]

    def get_config(self) -> dict:
        """Returns the constructor's arguments, with the adapted budget."""
        return {
            **super().get_config(),
            "padding": self.padding,
            "drop_trigger": self.drop_trigger,
        }
