"""`choose_plan`: the cheapest exact plan for graphs, a model and a machine."""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.assembly.assembler import resource_sizes
from keras_bandgnn.assembly.schedule_assembler import ScheduleAssembler
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import (
    Load,
    of_step,
    primitive_classes,
    step_resource,
)
from keras_bandgnn.primitives.grouped import Grouped, group_sizes
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.primitives.receptive_field import ReceptiveField
from keras_bandgnn.primitives.segment import Segment

# A sample is enough to compare plans, which differ by factors.
_GRAPHS, _EDGES = 200, 100_000
# With more edges in one graph, only lists and bands are measured.
_LARGE = 2_000_000
# Estimates do not tell plans apart that differ by less: the simplest is taken.
_ALIKE = 1.15
# With 1,400 rows per type padding of large groups takes more than faster products give
# on JAX, with 2,300 a step takes a tenth less.
_LARGE_GROUP, _MANY_ROWS = 1024, 1750


@dataclasses.dataclass(frozen=True)
class PlanChoice:
    """The cheapest plan, and the estimated costs of the others.

    Args:
        plan: The cheapest, or the first candidate (simple ones come first) that is
            estimated less than 15 % above it.
        table: A dict per plan, the cheapest first: `plan`, `ms` per propagation step
            of a supergraph (forward and backward, only messages), and `dense`, the
            share of the edges in dense blocks.
        reason: The constants that were used.
    """

    plan: Plan
    table: tuple[dict, ...]
    reason: str

    def __str__(self) -> str:
        names = [repr(row["plan"]) for row in self.table]
        width = max(map(len, names), default=0)
        lines = [f"{'':{width}}  ms/step  dense"]
        for name, row in zip(names, self.table, strict=True):
            lines.append(f"{name:{width}} {row['ms']:8.3f} {100 * row['dense']:4.0f} %")
        return "\n".join([*lines, self.reason])


def auto_plan(
    num_edge_types: int,
    block_size: int = 128,
    schedule: ReceptiveField | None = None,
    nodes: int = 8192,
) -> Plan:
    """Return the plan without measurements: edge lists, on TPUs with dense blocks.

    On a GPU edge lists were the fastest of all plans, for 3 to 64 edges per node.
    """
    fallback = Segment()
    if num_edge_types > 1:
        # Larger groups are faster, but each type pads one group.
        large = nodes // num_edge_types >= 512
        fallback = Grouped(max(group_sizes()) if large else min(64, max(group_sizes())))
    is_block = schedule is not None and schedule.order == "blocks"
    on_tpu = graph_ops.has_accelerator() and backend.device()[0] != "gpu"
    if is_block or (schedule is None and on_tpu):
        return Plan(Banded(block_size), rest=fallback, schedule=schedule)
    return Plan(rest=fallback, schedule=schedule)


def reason_of_auto(num_hosts: int = 1) -> str:
    """Return why `plan="auto"` chooses as it does on this machine."""
    dtype = keras.config.dtype_policy().compute_dtype
    if num_hosts == 1 and Hardware.calibrated(dtype) is not None:
        return "the cheapest by constants of this machine"
    kind = backend.device()[0]
    what = "edge lists" if kind in ("cpu", "gpu") else "dense blocks"
    return f"{what}, as on every {kind.upper()}"


def choose_plan(
    parts: Sequence[FlatGraphs],
    num_types: int,
    width: int = 64,
    schedule: ReceptiveField | None = None,
    nodes: int = 8192,
    hardware: Hardware | None = None,
    block_size: int = 128,
    num_hosts: int = 1,
) -> PlanChoice:
    """Return the plan of `plan="auto"`: the cheapest exact one.

    Samples the graphs, measures the resources of every plan, and lets the primitives
    estimate their time for a supergraph of such graphs. Without measured constants it
    is the plan of `auto_plan`, with an empty table.

    Args:
        parts: Graphs, as a list of `FlatGraphs`.
        num_types: P.
        width: H, channels of states and messages.
        schedule: A `ReceptiveField`; only plans that support it are compared.
        nodes: Nodes of a supergraph, limited to the largest graph and the total.
        hardware: Constants of the machine; those of `bandgnn calibrate` if omitted.
        block_size: S that the graphs were ordered for (`RCMKCompile`): that of the
            banded plans that are compared first.
        num_hosts: Hosts that train together.
    """
    plan = auto_plan(num_types, block_size, schedule, nodes)
    # Hosts that train together must agree, whatever each has measured.
    if num_hosts > 1 or not any(map(len, parts)):
        return PlanChoice(plan, (), reason_of_auto(num_hosts))
    dtype = keras.config.dtype_policy().compute_dtype
    hardware = hardware or Hardware.calibrated(dtype)
    if hardware is None:
        plan = _with_large_groups(plan, parts, num_types, nodes)
        return PlanChoice(plan, (), reason_of_auto())
    sample, nodes = sampled(parts, nodes)
    rows = []
    for plan in _candidates(num_types, len(sample.senders), block_size, schedule):
        steps = step_sizes(sample, plan, num_types, nodes)
        edges = sum(sizes["edge"] for sizes in steps)
        listed = [p.key() for p in plan.primitives if p.bipartite]
        listed = sum(sizes[key] for sizes in steps for key in listed)
        dense = max(1 - listed / edges, 0.0) if edges else 0.0
        loads = [Load(sizes, num_types, width, width) for sizes in steps]
        seconds = sum(plan_seconds(plan, load, hardware) for load in loads)
        ms = 1e3 * seconds / len(loads)
        rows.append({"plan": plan, "ms": ms, "dense": dense})
    alike = _ALIKE * min(row["ms"] for row in rows)
    plan = next(row["plan"] for row in rows if row["ms"] <= alike)
    rows.sort(key=lambda row: row["ms"])
    reason = f"supergraphs of {nodes:,} nodes; {hardware.name} {hardware.date}".strip()
    return PlanChoice(plan, tuple(rows), reason)


def _with_large_groups(plan: Plan, parts: Sequence, num_types: int, nodes: int) -> Plan:
    """Return the plan with groups that XLA multiplies with all cores, where it pays."""
    primitive = plan.primitives[0]
    if keras.backend.backend() != "jax" or primitive != Grouped(max(group_sizes())):
        return plan
    sample, nodes = sampled(parts, nodes)
    steps = step_sizes(sample, plan, num_types, nodes)
    rows = np.mean([sizes[f"{primitive.key()}.row"] for sizes in steps])
    large = Plan(rest=Grouped(_LARGE_GROUP), schedule=plan.schedule)
    return large if rows >= _MANY_ROWS * num_types else plan


def plan_seconds(plan: Plan, load: Load, hardware: Hardware) -> float:
    """Return the estimated seconds of a propagation step under a plan."""
    seconds = sum(primitive.cost(load, hardware) for primitive in plan.primitives)
    # The sums of several primitives are multiplied by the kernel once.
    shared = max(sum(not p.transforms for p in plan.primitives) - 1, 0)
    rows = load.sizes["node"] * load.num_types
    return seconds - shared * hardware.matmul_seconds(rows, load.width, load.units)


def _candidates(num_types: int, num_edges: int, block_size: int, schedule):
    """Return exact plans that can follow a schedule, simple ones first."""
    kinds = primitive_classes().values()
    parts = [p for kind in kinds for p in kind.candidates(num_types, block_size)]
    if num_edges >= _LARGE or schedule is not None:
        parts = [p for p in parts if p.bipartite or isinstance(p, Banded)]
    if schedule is not None:
        is_block = schedule.order == "blocks"
        parts = [p for p in parts if isinstance(p, Banded) == is_block]
    rests = [Segment(), Grouped()][: 1 + (num_types > 1)]
    plans = [Plan(rest=p, schedule=schedule) for p in parts if p.covers_all]
    blocks = [p for p in parts if not p.covers_all]
    plans += [
        Plan(p, rest=fallback, schedule=schedule) for fallback in rests for p in blocks
    ]
    return sorted(plans, key=lambda plan: (len(plan.keys), plan.keys[0] != "segment"))


def step_sizes(
    sample: FlatGraphs, plan: Plan, num_types: int, nodes: int
) -> list[dict[str, float]]:
    """Return the resources of a supergraph, for each step of a schedule of lists."""
    schedule = plan.schedule
    if schedule is None or schedule.order == "blocks":
        table = resource_sizes([sample], plan.replace(schedule=None), num_types)
        steps = [{name: values.sum() for name, values in table.items()}]
    else:
        table = ScheduleAssembler([sample], plan, num_types, False).sizes()
        table = {name: values.sum() for name, values in table.items()}
        steps = [of_step(table, number) for number in range(schedule.steps)]
        for number, sizes in enumerate(steps, 1):
            # A step computes the next list of nodes from all its edges.
            sizes["node"] = table[step_resource("node", number)]
            sizes["edge"] = sizes[plan.keys[-1]]
    factor = nodes / max(int(sample.node_ptr[-1]), 1)
    return [{k: float(v) * factor for k, v in sizes.items()} for sizes in steps]


def sampled(parts: Sequence[FlatGraphs], nodes: int) -> tuple[FlatGraphs, int]:
    """Return up to 200 evenly spaced graphs, with about 100,000 edges.

    Also return the nodes of a supergraph of such graphs, at most `nodes` if it holds
    the largest graph.
    """
    count, edges = sum(map(len, parts)), sum(len(part.senders) for part in parts)
    step = min(count, max(-(-count // _GRAPHS), -(-edges // _EDGES), 1))
    taken, start = [], 0
    for part in parts:
        taken.append(part.take(np.arange((step // 2 - start) % step, len(part), step)))
        start += len(part)
    sample = FlatGraphs.concatenate([part for part in taken if len(part)])
    total = sum(int(part.node_ptr[-1]) for part in parts)
    return sample, max(min(nodes, total), int(sample.num_nodes.max()))
