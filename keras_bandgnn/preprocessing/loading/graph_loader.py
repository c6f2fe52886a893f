"""`GraphLoader`: batches of graphs for `fit`, `evaluate` and `predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.assembly.assembler import (
    Assembler,
    Supergraph,
    apply_filter,
    merge_parts,
    resource_sizes,
    with_edge_types,
)
from keras_bandgnn.checks import instance, optional, positive_int, string
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.default_backend import backend_required
from keras_bandgnn.preprocessing.batching.batcher import (
    PER_GRAPH,
    Batcher,
    supergraph_nodes,
)
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.loading.batch_builder import Composer
from keras_bandgnn.preprocessing.loading.loader import Loader, Source, loader_options
from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
from keras_bandgnn.primitives.plan import Plan

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Graphs

_TRIALS = 9
_FEW_TRIALS = 3
_MANY_GRAPHS = 20_000
_ATTEMPTS = 64
# Shapes among which the first two batches are chosen.
_MOST_COMPARED = 200


class GraphLoader(Loader):
    """Supergraphs of static shapes, assembled ahead of the device.

    The composition of an epoch follows from the graphs' sizes, `seed` and the number
    of the epoch alone: the length is known and the same in every epoch, any batch can
    be built at any time by any number of threads, and every graph occurs exactly once
    per epoch.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs`, an opened store, or anything else
            that yields graphs: a generator, a data set of torch, TensorFlow or Grain.
        batcher: `DynamicBatcher` or `StaticBatcher`; one without a budget is adapted
            to these graphs.
        plan: A `Plan`, or `"auto"`: the cheapest exact one by the constants that
            `bandgnn calibrate` has measured on this machine (see
            `planning.choose_plan`). Without them: `Grouped` for typed edges
            and `Segment` for untyped ones on CPUs, `Banded` with an exact rest on
            GPUs and TPUs. `Banded` takes the `block_size` of the `RCMKCompile` that
            ordered the graphs.
        shuffle: Whether each epoch has a new order.
        seed: Seed of the orders.
        num_edge_types: P; by default one more than the largest type that occurs. With
            0 types are not read, and P is 1.
        replicas: G, supergraphs per batch.
        prefetch: Batches to assemble in advance; 0 for none.
        threads: Number of threads that assemble batches.
        host: Index of this host, if several train together.
        num_hosts: Number of hosts that train together. Each gets its own supergraphs of
            every step; all have as many batches, of equal shapes.
        edge_weight: Edge feature, a number per edge, that is the factor of its
            message; 1 for all edges if omitted.

    By default, Keras' `fit` shuffles the batches of a `PyDataset` once more. Pass
    `shuffle=False` to the `fit` of a model that is not a task: the loader defines the
    order.

    Raises:
        ValueError: For no graphs, graphs that disagree, or graphs above the budget
            when the batcher says `oversize="raise"`.

    Example:
    >>> from keras_bandgnn import Graph
    >>> loader = GraphLoader([Graph(2, [0], [1], label=1.5)] * 10)
    >>> x, y, weight = loader[0]
    >>> int(weight.sum())
    10
    """

    def __init__(
        self,
        graphs: Graphs,
        batcher: Batcher | None = None,
        plan: Plan | str = "auto",
        shuffle: bool = True,
        seed: int = 0,
        num_edge_types: int | None = None,
        replicas: int = 1,
        prefetch: int = 2,
        threads: int = 1,
        host: int = 0,
        num_hosts: int = 1,
        edge_weight: str | None = None,
    ):
        # Checked before the graphs are read, which may take minutes.
        expected = "a batcher, such as DynamicBatcher(32)"
        optional(instance, "batcher", batcher, Batcher, expected)
        if not isinstance(plan, str) or plan != "auto":
            instance("plan", plan, Plan, "'auto' or a keras_bandgnn.plans.Plan")
        options = loader_options(
            shuffle, seed, replicas, prefetch, threads, host, num_hosts
        )
        optional(positive_int, "num_edge_types", num_edge_types, 0)
        optional(string, "edge_weight", edge_weight)
        parts = merge_parts(parts_of(graphs))
        parts, num_edge_types = with_edge_types(parts, num_edge_types)
        batcher = DynamicBatcher() if batcher is None else batcher
        if plan == "auto":
            with backend_required():
                from keras_bandgnn.planning.plan_choice import choose_plan

            plan = choose_plan(
                parts,
                num_edge_types,
                nodes=supergraph_nodes(parts, batcher),
                num_hosts=num_hosts,
                block_size=block_size_of(graphs),
            ).plan
        parts, num_filtered = apply_filter(parts, plan)
        assembler, sizes = make_assembler(parts, plan, num_edge_types, edge_weight)
        composer = GraphComposer(
            sizes,
            batcher,
            options["seed"] if shuffle else None,
            replicas * num_hosts,
        )
        self.batcher = batcher
        source = Source(
            parts,
            num_edge_types,
            plan,
            edge_weight,
            num_filtered,
            # A copy: the batcher may be adapted to other graphs later.
            configs=[batcher.identity(), plan.get_config()],
        )
        super().__init__(source, composer, assembler, **options)


class GraphComposer(Composer):
    """Packs whole graphs by a batcher.

    All epochs have the same number of steps, and each holds every graph once (except
    those that the batcher drops). `differ` says whether each has an order of its own.

    Args:
        sizes: Resource -> int64 [n], what each graph needs.
        batcher: What packs. One without a budget is adapted to the graphs.
        seed: Seed of the orders; None for the given order in every epoch.
        per_step: Supergraphs per step, over all replicas and hosts.
    """

    def __init__(
        self,
        sizes: Mapping[str, np.ndarray],
        batcher: Batcher,
        seed: int | None,
        per_step: int,
    ):
        self.sizes = sizes
        self.batcher = batcher
        self.seed = seed
        self.per_step = per_step
        batcher.check_names(sizes)
        if not batcher.is_adapted(sizes):
            batcher.complete(sizes)
        self.bucket, self.budgets = batcher.split(sizes)
        self.count = len(self.bucket)
        self.length = self._plan_length()
        self.differ = seed is not None and len(self.bucket) > 1

    @property
    def fixed_shapes(self) -> bool:
        """Whether the batcher pads to its budget."""
        return self.batcher.fixed_shapes

    @property
    def has_one_shape(self) -> bool:
        """Whether all batches have one shape."""
        return self.fixed_shapes and len(self.budgets) == 1

    @property
    def num_oversized(self) -> int:
        """Graphs above the budget."""
        return int((self.bucket > 0).sum())

    def num_dropped(self, supergraphs: Sequence[Supergraph]) -> int:
        """Return how many graphs the batcher drops."""
        return self.count - sum(len(s.members) for s in supergraphs)

    def _pack(self, order: np.ndarray) -> list[list[np.ndarray]]:
        """Pack an order of all graphs into supergraphs: whole steps for each bucket."""
        out = []
        for bucket, budget in enumerate(self.budgets):
            members = order[self.bucket[order] == bucket]
            packed = self.batcher.pack(self.sizes, members, budget)
            packed = [m for m in packed if m.size]
            out.append(spread(packed, -(-len(packed) // self.per_step) * self.per_step))
        return out

    def _order(self, epoch: int, attempt: int) -> np.ndarray:
        total = len(self.bucket)
        if self.seed is None:
            return np.arange(total)
        return np.random.default_rng([self.seed, epoch, attempt]).permutation(total)

    def _steps(self, packed: list) -> int:
        return sum(map(len, packed)) // self.per_step

    def _plan_length(self) -> int:
        """Return the steps of every epoch: the median over a few orders."""
        trials = _TRIALS if len(self.bucket) < _MANY_GRAPHS else _FEW_TRIALS
        if self.seed is None:
            trials = 1
        counts = [self._steps(self._pack(self._order(0, a))) for a in range(trials)]
        if not max(counts):
            raise ValueError(
                "Expected at least one graph within the budget "
                f"{self.batcher.budget}. Received: none (oversize="
                f"{self.batcher.oversize!r})."
            )
        self._shortest = int(np.argmin(counts))
        return int(np.median(counts))

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the supergraphs of an epoch; each `per_step` of them make a step."""
        for attempt in range(_ATTEMPTS):
            packed = self._pack(self._order(epoch, attempt))
            if self._steps(packed) <= self.length:
                break
        else:
            packed = self._pack(self._order(0, self._shortest))
        # Keras reads the length once per fit, so all epochs have the same.
        missing = (self.length - self._steps(packed)) * self.per_step
        # Supergraphs with most graphs are split, so that no step is empty.
        largest = [max(map(len, supergraphs), default=0) for supergraphs in packed]
        fullest = int(np.argmax(largest))
        packed[fullest] = spread(packed[fullest], len(packed[fullest]) + missing)
        steps, budgets = [], []
        for bucket, members in enumerate(packed):
            groups = [
                members[i : i + self.per_step]
                for i in range(0, len(members), self.per_step)
            ]
            steps += groups
            if groups:
                budgets += self.batcher.shapes(self.sizes, groups, self.budgets[bucket])
        order = np.arange(len(steps))
        if self.seed is not None and len(self.budgets) > 1:
            rng = np.random.default_rng([self.seed, epoch, _ATTEMPTS])
            order = rng.permutation(len(steps))
        return [
            Supergraph(members, budgets[step])
            for step in _show_shapes_first(order, budgets)
            for members in steps[step]
        ]

    def usage(self, supergraphs: Sequence[Supergraph]) -> dict[str, np.ndarray]:
        """Return the real and padded sizes of steps; see `Loader.usage`.

        Args:
            supergraphs: Those of an epoch.
        """
        members = np.concatenate([s.members for s in supergraphs])
        owner = np.repeat(
            np.arange(len(supergraphs)), [len(s.members) for s in supergraphs]
        )
        sizes = {k: v[members] for k, v in self.sizes.items() if k not in PER_GRAPH}
        sizes["graph"] = np.ones(len(members), np.int64)
        usage = {}
        for name, needed in sizes.items():
            used = np.bincount(owner, needed, len(supergraphs))
            padded = [s.budget[name] for s in supergraphs]
            counts = np.array([used, padded]).astype(np.int64)
            usage[name] = counts.reshape(2, -1, self.per_step).sum(-1)
        return usage


def spread(supergraphs: list, count: int) -> list:
    """Split the fullest supergraphs until there are `count`.

    Supergraphs that cannot be split further are followed by empty ones.
    """
    out = list(supergraphs)
    while len(out) < count:
        fullest = max(range(len(out)), key=lambda i: len(out[i]), default=None)
        if fullest is None or len(out[fullest]) < 2:
            out.append(np.zeros(0, np.int64))
            continue
        half = len(out[fullest]) // 2
        out.append(out[fullest][half:])
        out[fullest] = out[fullest][:half]
    return out


def _show_shapes_first(order: np.ndarray, budgets: Sequence[Mapping]) -> list[int]:
    """Move two steps to the front that differ in as many sizes as possible.

    TensorFlow takes its signature from the first two batches of a fit: sizes that
    differ there may vary.
    """
    first_with: dict[tuple, int] = {}
    for step in order.tolist():
        first_with.setdefault(tuple(budgets[step].values()), step)
    if len(first_with) == 1:
        return order.tolist()
    shapes = np.array(list(first_with))[:_MOST_COMPARED]
    steps = list(first_with.values())[:_MOST_COMPARED]
    differing = (shapes[:, None] != shapes[None]).sum(axis=2)
    pair = np.unravel_index(int(differing.argmax()), differing.shape)
    # The larger first: memory that suffices for it suffices for all.
    pair = sorted(pair, key=lambda i: -shapes[i].sum())
    lead = [steps[i] for i in pair]
    return lead + [step for step in order.tolist() if step not in lead]


def make_assembler(
    parts: Sequence[FlatGraphs], plan: Plan, num_types: int, edge_weight: str | None
) -> tuple:
    """Return the assembler of a plan's batches, and the needs of each graph.

    Args:
        parts: The graphs.
        plan: Which primitive processes which edges, with or without a schedule.
        num_types: P.
        edge_weight: Edge feature that is the factor of each message, or None.

    Returns:
        The assembler, and resource -> int64 [n].
    """
    _check_weight(parts, plan, edge_weight)
    # Batches have the same keys throughout: slots only if every graph has one.
    slots = all(part.slot.min() >= 0 for part in parts)
    if plan.schedule is None:
        sizes = resource_sizes(parts, plan, num_types)
        return Assembler(parts, plan, num_types, slots, edge_weight), sizes
    if parts[0].sets:
        raise ValueError(
            "Expected a plan without a schedule for graphs with node sets. Received: "
            f"{plan}. Pass Plan(..., schedule=None)."
        )
    if any(p.label is not None and p.label_level == "edge" for p in parts):
        raise ValueError(
            "Expected a plan without a schedule for labels of edges, as schedules "
            f"leave out nodes that are not read. Received: {plan}. Pass Plan(..., "
            "schedule=None)."
        )
    from keras_bandgnn.assembly.block_assembler import BlockAssembler
    from keras_bandgnn.assembly.schedule_assembler import ScheduleAssembler

    blocks = plan.schedule.order == "blocks"
    cls = BlockAssembler if blocks else ScheduleAssembler
    assembler = cls(parts, plan, num_types, slots)
    return assembler, assembler.sizes()


def _check_weight(parts: Sequence[FlatGraphs], plan: Plan, name: str | None) -> None:
    if name is None:
        return
    if plan.schedule is not None:
        raise ValueError(
            "Expected a plan without a schedule for weighted edges. Received: "
            f"edge_weight={name!r}, plan={plan}."
        )
    for part in parts:
        if name not in part.edge or part.edge[name].ndim != 1:
            features = {k: v.shape[1:] for k, v in part.edge.items()}
            raise ValueError(
                f"Expected `edge_weight` to be an edge feature, {name!r}, a number per "
                f"edge. Received: edge features {features} (with the shape of an "
                "edge's entry)."
            )
