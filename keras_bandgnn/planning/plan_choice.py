"""`choose_plan`: the cheapest exact plan for graphs, a model and a machine."""

import dataclasses
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_bandgnn import config
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import instance, optional, positive_int, refuse, sequence
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.planning.cost import GROUP_SIZES, Hardware, device
from keras_bandgnn.planning.estimate import Estimate, sampled
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import primitive_classes
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.primitives.receptive_field import ReceptiveField
from keras_bandgnn.primitives.segment import Segment
from keras_bandgnn.primitives.supernode import Supernode

# With more edges in one graph, only a few plans are measured.
_LARGE = 2_000_000
_MOST_BLOCK_BYTES = 2**31
# Estimates do not tell plans apart that differ by less: the simplest is taken.
_ALIKE = 1.15
# Rows per group where a type has many, and where it has `_MANY_ROWS` on JAX: with 1,400
# padding takes more than faster products give, with 2,300 a step takes a tenth less.
_GROUP, _LARGE_GROUP, _MANY_ROWS = 256, 1024, 1750


def auto_plan(
    num_edge_types: int,
    block_size: int = 128,
    schedule: ReceptiveField | None = None,
    nodes: int = 8192,
) -> Plan:
    """Return dense blocks on TPUs, edge lists on CPUs and GPUs; always lossless.

    This is the plan without measurements; `choose_plan` considers graphs and machine.
    On a GPU edge lists were the fastest of all plans, for 3 to 64 edges per node.

    Args:
        num_edge_types: P.
        block_size: S of the banded plan.
        schedule: A `ReceptiveField`, used with edge lists.
        nodes: Nodes of a supergraph.
    """
    rest = Segment()
    if num_edge_types > 1:
        rest = Grouped(_group_size(nodes // num_edge_types))
    if schedule is not None:
        return Plan(rest=rest, schedule=schedule)
    if graph_ops.has_accelerator() and device()[0] != "gpu":
        return Plan(Banded(block_size), rest=rest)
    return Plan(rest=rest)


def cheapest_plan(
    parts: Sequence[FlatGraphs],
    num_types: int,
    nodes: int,
    width: int = 64,
    schedule: ReceptiveField | None = None,
    num_hosts: int = 1,
    block_size: int = 128,
) -> Plan:
    """Return the plan of `plan="auto"`: the cheapest exact one.

    Args:
        parts: The graphs.
        num_types: P.
        nodes: Nodes of a supergraph.
        width: Channels of a state.
        schedule: The schedule that the task allows, or None.
        num_hosts: Hosts that train together.
        block_size: S of banded plans, as of the `RCMKCompile` of the graphs.
    """
    hardware = None
    # Hosts that train together must agree, whatever each has measured.
    if num_hosts == 1 and parts:
        dtype = keras.config.dtype_policy().compute_dtype
        hardware = Hardware.calibrated(dtype)
        if hardware is None and device()[0] != "cpu":
            # On CPUs edge lists are within a tenth of the best estimate.
            hardware = Hardware.current(dtype)
    if hardware is None:
        plan = auto_plan(num_types, block_size, schedule, nodes)
        return _with_large_groups(plan, parts, num_types, nodes, num_hosts)
    return choose_plan(
        parts,
        num_types,
        width=width,
        units=width,
        schedule=schedule,
        nodes=nodes,
        hardware=hardware,
        block_size=block_size,
    ).plan


def reason_of_auto(num_hosts: int = 1) -> str:
    """Return what `plan="auto"` chooses by on this machine.

    Args:
        num_hosts: Hosts that train together.
    """
    kind, _ = device()
    dtype = keras.config.dtype_policy().compute_dtype
    if num_hosts == 1 and Hardware.calibrated(dtype) is not None:
        return "the cheapest by constants of this machine"
    if kind == "cpu":
        return "edge lists, as on every CPU"
    if num_hosts > 1:
        return "dense blocks, as on accelerators"
    return f"the cheapest by constants of a typical {kind.upper()}"


def _group_size(nodes: int) -> int:
    """Return the rows per group, given the nodes per edge type.

    Larger groups are faster, but each type pads one group.
    """
    if _multiplies_runs():
        return 16
    return _GROUP if nodes >= 512 else 64


def _with_large_groups(
    plan: Plan, parts: Sequence[FlatGraphs], num_types: int, nodes: int, num_hosts: int
) -> Plan:
    """Return the plan with groups of 1,024 rows where JAX has rows enough for them.

    XLA then multiplies with all cores. Hosts may have different graphs, but need equal
    plans.
    """
    is_large = isinstance(plan.rest, Grouped) and plan.rest.group_size == _GROUP
    if keras.backend.backend() != "jax" or not is_large or num_hosts > 1:
        return plan
    if not any(map(len, parts)):
        return plan
    sample = sampled(parts)
    nodes = _room(parts, sample, nodes)
    hardware = Hardware.default("jax", "cpu")
    rows = Estimate(sample, num_types, 1, 1, nodes, hardware).mean_rows(plan)
    if rows < _MANY_ROWS * num_types:
        return plan
    return Plan(rest=Grouped(_LARGE_GROUP), schedule=plan.schedule)


def _room(parts: Sequence[FlatGraphs], sample: FlatGraphs, nodes: int) -> int:
    """Return the nodes that a supergraph has, at least those of the largest graph."""
    total = sum(int(part.node_ptr[-1]) for part in parts)
    return max(min(nodes, total), int(sample.num_nodes.max()))


def _multiplies_runs() -> bool:
    """Return whether all groups of a type are one product, so small ones are best."""
    return keras.backend.backend() == "torch" and not graph_ops.has_accelerator()


@dataclasses.dataclass(frozen=True)
class PlanChoice:
    """The cheapest plan, and the estimated costs of the others.

    Args:
        plan: The cheapest, or the first candidate (simple ones come first) that is
            estimated less than 15 % above it.
        table: A dict per plan, the cheapest first: `plan`, `ms` per propagation step
            of a supergraph (forward and backward, only messages), `dense` (share of
            the edges in dense blocks), `flops`, `bytes` and `block_bytes`.
        reason: The constants that were used.
        nodes: Nodes of the supergraph.
    """

    plan: Plan
    table: tuple[dict, ...]
    reason: str
    nodes: int

    def __str__(self) -> str:
        names = [repr(row["plan"]) for row in self.table]
        width = max(map(len, names))
        lines = [f"{'':{width}}  ms/step  dense  GFLOP     MB"]
        for name, row in zip(names, self.table, strict=True):
            lines.append(
                f"{name:{width}} {row['ms']:8.3f} {100 * row['dense']:4.0f} % "
                f"{row['flops'] / 1e9:6.2f} {row['bytes'] / 1e6:6.0f}"
            )
        lines.append(f"supergraphs of {self.nodes:,} nodes; {self.reason}")
        return "\n".join(lines)


def choose_plan(
    parts: Sequence,
    num_types: int,
    width: int = 64,
    units: int = 64,
    schedule: ReceptiveField | None = None,
    nodes: int = 8192,
    hardware: Hardware | None = None,
    candidates: Sequence[Plan] | None = None,
    block_size: int = 128,
) -> PlanChoice:
    """Return the exact plan with the lowest estimated time per propagation step.

    Samples the graphs, measures the resources of every plan, and lets the primitives
    estimate their time for a supergraph of such graphs.

    Args:
        parts: Graphs, as a list of `FlatGraphs`.
        num_types: P.
        width: H, channels of the states.
        units: U, channels of a message.
        schedule: A `ReceptiveField`; only plans that support it are compared.
        nodes: Nodes of a supergraph, limited to the largest graph and the total.
        hardware: Constants of the machine; the current one if omitted.
        candidates: Plans to compare; all promising exact ones if omitted.
        block_size: S that the graphs were ordered for (`RCMKCompile`): that of the
            banded plans that are compared first.

    Raises:
        ValueError: If there are no graphs, or if the blocks of every plan exceed the
            memory.

    Example:
    >>> from keras_bandgnn import Graph
    >>> from keras_bandgnn.data import FlatGraphs
    >>> from keras_bandgnn.planning.cost import Hardware
    >>> graphs = FlatGraphs.from_graphs([Graph(3, [0, 1], [1, 2])] * 50)
    >>> hardware = Hardware.default("torch", "cpu")
    >>> choose_plan([graphs], num_types=1, hardware=hardware).plan
    Plan(rest='segment')
    """
    parts = sequence("parts", parts, "a list of FlatGraphs")
    for number, part in enumerate(parts):
        if not hasattr(part, "node_ptr"):
            refuse(f"parts[{number}]", "a FlatGraphs", part)
    positive_int("num_types", num_types)
    positive_int("block_size", block_size)
    positive_int("width", width)
    positive_int("units", units)
    positive_int("nodes", nodes)
    optional(instance, "schedule", schedule, ReceptiveField, "a ReceptiveField")
    optional(instance, "hardware", hardware, Hardware, "a Hardware")
    if candidates is not None:
        candidates = sequence("candidates", candidates, "a list of plans")
        for plan in candidates:
            instance("candidates", plan, Plan, "a list of plans")
    sample = sampled(parts)
    nodes = _room(parts, sample, nodes)
    if hardware is None:
        hardware = Hardware.current(keras.config.dtype_policy().compute_dtype)
    if candidates is None:
        candidates = list(
            _candidates(num_types, schedule, len(sample.senders), block_size)
        )
    if schedule is not None:
        candidates = [plan.replace(schedule=schedule) for plan in candidates]
    estimate = Estimate(sample, num_types, width, units, nodes, hardware)
    limit, rows = _most_block_bytes(), []
    for plan in candidates:
        best = min((row["ms"] for row in rows), default=np.inf)
        row = estimate.row(plan, best)
        if row is not None and row["block_bytes"] <= limit:
            rows.append(row)
    if not rows:
        raise ValueError(
            f"Expected a plan whose dense blocks take at most {limit:,} bytes. "
            f"Received: {len(candidates)} plans with larger ones. Reduce the nodes per "
            f"supergraph, {nodes:,}."
        )
    limit = _ALIKE * min(row["ms"] for row in rows)
    plan = next(row["plan"] for row in rows if row["ms"] <= limit)
    rows.sort(key=lambda row: row["ms"])
    return PlanChoice(plan, tuple(rows), _reason(hardware), nodes)


def _reason(hardware: Hardware) -> str:
    if hardware.date:
        return f"calibrated on {hardware.date} ({hardware.name})"
    return f"default constants ({hardware.name}): run `bandgnn calibrate`"


def _candidates(
    num_types: int, schedule, num_edges: int, block_size: int
) -> Iterator[Plan]:
    """Return exact plans, simple ones first, with bands of S/2, S and 2 S."""
    blocks = schedule is not None and schedule.order == "blocks"
    rests = (Segment(), Grouped()) if num_types > 1 else (Segment(),)
    if not blocks:
        yield Plan()
        # With one type there is a row per node in any case.
        if num_types > 1:
            sizes = (16,) if _multiplies_runs() else GROUP_SIZES[::-1]
            yield from (Plan(rest=Grouped(size)) for size in sizes)
            yield from (Plan(rest=Grouped(size, "aggregate")) for size in sizes)
        if schedule is not None:
            return
    sizes = (block_size,)
    if num_edges < _LARGE:
        sizes += (max(1, block_size // 2), 2 * block_size)
        sizes = tuple(dict.fromkeys(sizes))
    for rest in rests:
        yield from (Plan(Banded(size), rest=rest) for size in sizes)
    if blocks or num_edges >= _LARGE:
        return
    for rest in rests:
        yield from (Plan(Dense(size), rest=rest) for size in (16, 32, 64))
        yield Plan(Supernode(64), rest=rest)
        yield Plan(Supernode(64), Banded(block_size), rest=rest)
    for size in (16, 32):
        yield Plan(rest=BlockSparse(size))
        # A tile with less than an eighth filled costs more than its edges.
        full = BlockSparse(size, size * size // 8)
        yield from (Plan(full, rest=rest) for rest in rests)
    for kind in primitive_classes().values():
        for primitive in kind.candidates(num_types, block_size):
            if primitive.covers_all:
                yield Plan(rest=primitive)
            else:
                yield from (Plan(primitive, rest=rest) for rest in rests)


def _most_block_bytes() -> int:
    """Return two GiB, or a quarter of the memory if that is less."""
    if graph_ops.has_accelerator():
        return _MOST_BLOCK_BYTES
    return int(min(_MOST_BLOCK_BYTES, config.total_memory() / 4))
