"""`Estimate`: estimated costs of plans for graphs, a model and a machine."""

from collections.abc import Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import resource_sizes
from keras_bandgnn.assembly.schedule_assembler import ScheduleAssembler
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.primitives.base import STEPS, Load, of_step, step_resource
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.plan import Plan

# A sample is enough to compare plans, which differ by factors.
_GRAPHS, _EDGES = 200, 100_000
# Tiles are measured for each alignment with the grid, which is slow.
_TILE_EDGES = 20_000
# Blocks with a smaller share of the edges are not worth a second primitive.
_LEAST_DENSE = 0.01


def sampled(parts: Sequence[FlatGraphs], most_edges: int = _EDGES) -> FlatGraphs:
    """Return up to 200 evenly spaced graphs, with about `most_edges` edges."""
    counts = np.concatenate([part.num_edges for part in parts] or [[]])
    if not len(counts):
        raise ValueError("Expected at least one graph. Received: none. Pass graphs.")
    step = max(len(counts) / _GRAPHS, counts.sum() / most_edges, 1.0)
    # The middles of equal intervals, so that sorted data gives an unbiased sample.
    size = max(int(len(counts) / step), 1)
    ids = ((np.arange(size) + 0.5) * (len(counts) / size)).astype(np.int64)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    chosen = [
        part.take(ids[(ids >= low) & (ids < high)] - low)
        for part, low, high in zip(parts, starts[:-1], starts[1:], strict=True)
        if ((ids >= low) & (ids < high)).any()
    ]
    return chosen[0] if len(chosen) == 1 else FlatGraphs.concatenate(chosen)


class Estimate:
    """Costs of plans for a supergraph of graphs that resemble a sample.

    Args:
        sample: The graphs.
        num_types: P.
        width: H.
        units: U.
        nodes: Nodes of the supergraph.
        hardware: Constants of the machine.
    """

    def __init__(
        self,
        sample: FlatGraphs,
        num_types: int,
        width: int,
        units: int,
        nodes: int,
        hardware: Hardware,
    ):
        self.sample = sample
        self.shape = (num_types, width, units)
        self.nodes = nodes
        self.hardware = hardware
        self._assembler = None

    def row(self, plan: Plan, best: float) -> dict | None:
        """Return a row of `PlanChoice.table`, or None if the plan cannot be better.

        Measuring tiles is slow, and blocks without edges are useless.

        Args:
            plan: The plan.
            best: Milliseconds of another plan.
        """
        sample = self.sample
        for primitive in plan.primitives:
            if isinstance(primitive, BlockSparse):
                least = primitive.cost(
                    self._load(self._least(primitive)), self.hardware
                )
                if 1e3 * least >= best:
                    return None
                sample = sampled([sample], _TILE_EDGES)
        steps = self._steps(plan, sample)
        meter = _Meter(self.hardware)
        seconds = sum(self._seconds(plan, sizes, meter) for sizes in steps)
        edges = sum(sizes["edge"] for sizes in steps)
        left = 0.0
        if plan.rest is not None and not isinstance(plan.rest, BlockSparse):
            left = sum(sizes[plan.rest.key()] for sizes in steps)
        dense = 1 - left / edges if edges else 0.0
        shares = [dense]
        for key in (p.key() for p in plan.primitives if p != plan.rest):
            covered = sum(sizes.get(f"{key}.edge", sizes[key]) for sizes in steps)
            shares.append(covered / max(edges, 1))
        if min(shares) < _LEAST_DENSE and len(plan.primitives) > 1:
            return None
        return {
            "plan": plan,
            "ms": 1e3 * seconds / len(steps),
            "dense": dense,
            "flops": meter.flops / len(steps),
            "bytes": meter.bytes / len(steps),
            "block_bytes": STEPS * meter.written * self.hardware.itemsize,
        }

    def mean_rows(self, plan: Plan) -> float:
        """Return the rows of a step's products by type, on average over the steps.

        Args:
            plan: A plan whose `rest` is a `Grouped`.
        """
        steps = self._steps(plan, self.sample)
        return sum(sizes[f"{plan.rest.key()}.row"] for sizes in steps) / len(steps)

    def _load(self, sizes: dict) -> Load:
        return Load(sizes, *self.shape)

    def _seconds(self, plan: Plan, sizes: dict, meter: "_Meter") -> float:
        load = self._load(sizes)
        seconds = sum(p.cost(load, meter) for p in plan.primitives)
        # The sums of several primitives are multiplied by the kernel once.
        shared_products = sum(not p.transforms for p in plan.primitives) - 1
        meter.sign = -1
        for _ in range(shared_products):
            rows = sizes["node"] * load.num_types
            seconds -= meter.matmul_seconds(rows, load.width, load.units)
        meter.sign = 1
        return seconds

    def _steps(self, plan: Plan, sample: FlatGraphs) -> list[dict]:
        """Return the resources of a supergraph, per step if these differ."""
        schedule = plan.schedule
        if schedule is None or schedule.order == "blocks":
            table = resource_sizes([sample], plan.replace(schedule=None), self.shape[0])
            steps = [{name: values.sum() for name, values in table.items()}]
        else:
            if self._assembler is None:
                # The tables of the steps are shared by all plans.
                self._assembler = ScheduleAssembler(
                    [sample], plan, self.shape[0], False
                )
            self._assembler.plan = plan
            table = {k: v.sum() for k, v in self._assembler.sizes().items()}
            steps = [_step_sizes(table, plan, t) for t in range(schedule.steps)]
        return [self._scaled(step, sample) for step in steps]

    def _scaled(self, sizes: dict, sample: FlatGraphs) -> dict:
        factor = self.nodes / max(int(sample.node_ptr[-1]), 1)
        return {name: float(value) * factor for name, value in sizes.items()}

    def _least(self, primitive: BlockSparse) -> dict:
        """Return the resources of tiles at the current alignment, a lower bound."""
        sample, size, key = self.sample, primitive.block_size, primitive.key()
        num_nodes = int(sample.node_ptr[-1])
        edges, _ = Edges.of_graphs(sample, self.shape[0])
        edges = edges.keep(primitive.cover(edges))
        blocks = -(-num_nodes // size)
        pair = edges.type.astype(np.int64) * blocks + edges.receiver // size
        sizes = {
            "node": num_nodes,
            key: len(np.unique(pair * blocks + edges.sender // size)),
            f"{key}.row": len(np.unique(pair)),
            f"{key}.edge": len(edges),
        }
        return self._scaled(sizes, sample)


def _step_sizes(table: dict, plan: Plan, number: int) -> dict:
    """Return the resources of a step, with the names they have without a schedule."""
    sizes = of_step(table, number)
    # A step computes the next list of nodes from all its edges.
    sizes["node"] = table[step_resource("node", number + 1)]
    return {**sizes, "edge": sizes[plan.keys[-1]]}


class _Meter:
    """A `Hardware` that also counts FLOPs and bytes."""

    def __init__(self, hardware: Hardware):
        self.hardware = hardware
        self.sign = 1
        self.flops = self.bytes = self.written = 0.0

    def _count(self, flops: float, numbers: float) -> None:
        self.flops += self.sign * flops
        self.bytes += self.sign * numbers * self.hardware.itemsize

    def matmul_seconds(self, rows, inner, columns, blocks=False):
        times = 2 if blocks else 3
        numbers = rows * inner + inner * columns + rows * columns
        self._count(times * 2 * rows * inner * columns, times * numbers)
        return self.hardware.matmul_seconds(rows, inner, columns, blocks)

    def grouped_seconds(self, rows, width, units, group_size):
        self._count(6 * rows * width * units, 3 * rows * (width + units))
        return self.hardware.grouped_seconds(rows, width, units, group_size)

    def gather_seconds(self, rows, width):
        # One read and one write, forward and backward.
        self._count(0, 4 * rows * width)
        return self.hardware.gather_seconds(rows, width)

    def scatter_seconds(self, rows, width):
        self._count(0, 4 * rows * width)
        return self.hardware.scatter_seconds(rows, width)

    def sparse_seconds(self, entries, rows, width):
        self._count(4 * entries * width, 2 * (entries + rows) * width)
        return self.hardware.sparse_seconds(entries, rows, width)

    def write_seconds(self, entries):
        self.written += entries
        self._count(0, entries)
        return self.hardware.write_seconds(entries)
