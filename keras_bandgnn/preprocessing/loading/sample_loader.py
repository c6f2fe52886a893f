"""`SampleLoader`: batches of subgraphs of a large graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph, merge_parts, with_edge_types
from keras_bandgnn.checks import boolean, instance, mapping, optional, positive_int
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.batching.batcher import round_up_64
from keras_bandgnn.preprocessing.loading.batch_builder import Composer
from keras_bandgnn.preprocessing.loading.loader import Loader, Source, loader_options
from keras_bandgnn.preprocessing.sampling.sample_assembler import (
    SampleAssembler,
    capacity_names,
    known_labels,
    named_sizes,
)
from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, key_of
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.primitives.plan import Plan

if TYPE_CHECKING:
    from keras_bandgnn.data.store import GraphStore

# Subgraphs from which the usual sizes are estimated.
_TRIED = 12
# Room above the mean, in standard deviations of the sizes.
_DEVIATIONS = 6.0
# Number that keeps the draws of the estimate apart from those of epochs.
_ESTIMATE = 1 << 40


def SampleLoader(
    graph: Graph | FlatGraphs | GraphStore,
    sampler: Sampler,
    trimmed: bool = False,
    rescale: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    num_edge_types: int | None = None,
    replicas: int = 1,
    prefetch: int = 4,
    threads: int = 1,
    host: int = 0,
    num_hosts: int = 1,
    features: Mapping[str, Sequence[str]] | None = None,
    classes: bool = True,
    type_degrees: bool = False,
) -> Loader:
    """Batches that a `Sampler` cuts from a large graph, as `fit(sampler=)` uses them.

    Each item of the sampler (a node to train on, the root of a walk, a cluster) comes
    once per epoch. What a batch holds follows from `seed` and the numbers of the epoch
    and the step alone: any batch can be built at any time by any thread. All batches
    are padded to one shape, with room for six standard deviations of the sizes above
    their mean; the rare subgraph above it is padded to a larger one, which costs a
    compilation and loses nothing.

    Args:
        graph: A large `Graph`; a `FlatGraphs` or an opened store of it, whose features
            may be larger than memory. Several graphs count as one that is not
            connected.
        sampler: A `NeighborSampler`, `ClusterSampler` or `SubgraphSampler`.
        trimmed: Whether each layer of the model computes no more rows than later ones
            read. The sampler has as many fan-outs as the model has layers then.
        rescale: Whether edges are weighed so that sums of messages are unbiased.
        shuffle: Whether each epoch has a new order and new draws; otherwise all epochs
            have those of the first.
        seed: Of the orders and the draws.
        num_edge_types: P, see `GraphLoader`.
        replicas: G, subgraphs per batch.
        prefetch: Batches to assemble in advance; 0 for none.
        threads: Number of threads that sample and assemble.
        host: Index of this host, if several train together.
        num_hosts: Number of hosts that train together; each samples its own part of
            every step. Budgets are the largest possible sizes then, so that all hosts
            have equal shapes.
        features: Names of the features that batches have, of `"node"` and `"edge"`; by
            default all of them.
        classes: Whether labels [N] of -1 are unknown classes; otherwise numbers.
        type_degrees: Whether batches have the edges into each node per type, if there
            are several types, for means over the edges of a type.

    Returns:
        A `Loader`, whose `sampler` is this one.

    Raises:
        ValueError: For no graph, several parts of a store, a graph whose labels are all
            missing, or arguments out of range. Without labels all nodes count.

    Example:
    >>> from keras_bandgnn import Graph
    >>> from keras_bandgnn.preprocessing import NeighborSampler
    >>> graph = Graph(
    ...     4, [0, 1, 2, 3], [1, 2, 3, 0], label=[0, 0, 1, 1], label_level="node"
    ... )
    >>> loader = SampleLoader(graph, NeighborSampler([2, 1], batch_size=2))
    >>> x, y, weight = loader[0]
    >>> len(loader), int(weight.sum())
    (2, 2)
    """
    instance("sampler", sampler, Sampler, "a sampler, such as NeighborSampler([15])")
    options = loader_options(
        shuffle, seed, replicas, prefetch, threads, host, num_hosts
    )
    optional(mapping, "features", features)
    boolean("trimmed", trimmed)
    boolean("rescale", rescale)
    boolean("classes", classes)
    boolean("type_degrees", type_degrees)
    optional(positive_int, "num_edge_types", num_edge_types, 0)
    parts = merge_parts(parts_of([graph] if isinstance(graph, Graph) else graph))
    typed, num_edge_types = with_edge_types(parts, num_edge_types)
    if len(typed) != 1:
        raise ValueError(
            "Expected one graph, in memory or in a store of one shard. Received: "
            f"{len(typed)} parts. Write the graph alone into a store."
        )
    # Samplers may read types of edges that the model does not.
    graph, plan = SampledGraph(parts[0]), Plan()
    targets = _targets(typed[0], classes)
    items = sampler.items(graph, np.flatnonzero(targets))
    if not len(items):
        raise ValueError(
            "Expected nodes with labels to train on. Received: none of "
            f"{graph.num_nodes} nodes has a known label. Check the mask."
        )
    assembler = SampleAssembler(
        graph,
        sampler,
        num_edge_types,
        trimmed,
        rescale,
        targets,
        features,
        type_degrees,
    )
    composer = SampleComposer(
        items, assembler, options["seed"], shuffle, replicas, num_hosts
    )
    groups = composer.length * composer.per_step
    assembler.expect_labels(sampler.label_weight(graph, groups), classes)
    identity = [type(sampler).__name__, sampler.get_config(), trimmed, rescale]
    source = Source(
        typed,
        num_edge_types,
        plan,
        configs=[*identity, plan.get_config()],
        graph=graph,
        sampler=sampler,
    )
    return Loader(source, composer, assembler, **options)


def _targets(flat: FlatGraphs, classes: bool) -> np.ndarray:
    """Return a mask of the nodes with a known label; all if there are no labels."""
    count = int(flat.node_ptr[-1])
    if flat.label is None or flat.label_level != "node":
        return np.ones(count, bool)
    return known_labels(np.asarray(flat.label), classes).any(axis=1)


def largest_sizes(assembler: SampleAssembler) -> dict[str, int]:
    """Return the largest sizes that a subgraph may have, by capacity."""
    sampler = assembler.sampler
    sizes = named_sizes(*sampler.bound(assembler.graph), assembler.trimmed)
    if assembler.sets is not None:
        sizes |= assembler.sets.bounds(sizes["node"], sampler.time is None)
    return {name: int(round_up_64(size)) for name, size in sizes.items()}


def estimated_budget(
    assembler: SampleAssembler, tables: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Return capacities with room for nearly all subgraphs.

    Args:
        assembler: Has the sampler.
        tables: Sizes of a few subgraphs by capacity, see `SampleAssembler.needed`.
    """
    bounds = largest_sizes(assembler)
    budget = {"graph": 2, "item": assembler.sampler.batch_size}

    def room(name: str) -> int:
        sizes = np.array([table[name] for table in tables], float)
        deviation = sizes.std(ddof=1) if len(sizes) > 1 else 0.0
        usual = max(sizes.mean() + _DEVIATIONS * deviation, 1.02 * sizes.max())
        return int(min(round_up_64(int(usual)), bounds[name]))

    for kind in ("node", "edge"):
        before = None
        for name in capacity_names(kind, len(tables[0])):
            if name not in tables[0]:
                break
            # Rows of a layer are the first of those of the layer before it.
            before = room(name) if before is None else min(room(name), before)
            budget[name] = before
    # Tables of node sets.
    names = sorted(tables[0].keys() - budget.keys())
    return {**budget, **{name: room(name) for name in names}}


class SampleComposer(Composer):
    """Deals out the items of a sampler.

    Args:
        ids: int64 [m], the items of an epoch.
        assembler: Samples, for the estimate of sizes; gets its budget.
        seed: Of orders and draws.
        shuffle: Whether epochs differ.
        replicas: Subgraphs per step of a host.
        num_hosts: Number of hosts.
    """

    item = "item"
    # The rare subgraph above the budget has a larger one.
    fixed_shapes = False

    def __init__(
        self,
        ids: np.ndarray,
        assembler: SampleAssembler,
        seed: int,
        shuffle: bool,
        replicas: int,
        num_hosts: int,
    ):
        self.ids, self.count = ids, len(ids)
        self.sampler = sampler = assembler.sampler
        self.seed, self.shuffle = seed, shuffle
        self.differ = shuffle
        self.per_step = replicas * num_hosts
        self.assembler = assembler
        owner = sampler.owners(assembler.graph, ids, num_hosts)
        self.pools = [ids]
        if owner is not None and num_hosts > 1:
            self.pools = [ids[owner == host] for host in range(num_hosts)]
            if not all(map(len, self.pools)):
                raise ValueError(
                    f"Expected nodes to train on for each of {num_hosts} hosts. "
                    f"Received: {list(map(len, self.pools))} of their parts. Choose "
                    "another feature as `part`."
                )
        used = [max(1, round(sampler.share * len(pool))) for pool in self.pools]
        per_step = self.per_step // len(self.pools)
        self.length = max(-(-n // (sampler.batch_size * per_step)) for n in used)
        self._estimate()
        if num_hosts > 1:
            # All hosts have equal shapes: the largest possible sizes.
            (budget,) = assembler.budgets
            assembler.budgets = [{**budget, **self._bounds()}]

    def _estimate(self) -> None:
        """Set the budget and the sizes of an epoch from a few subgraphs."""
        count = min(_TRIED, max(2, self.length))
        tables = []
        for number in range(count):
            key = (self.seed, _ESTIMATE, number)
            size = min(self.sampler.batch_size, len(self.ids))
            members = key_of(*key).choice(self.ids, size, replace=False)
            subgraph = self.assembler.subgraph(Supergraph(members, {}, key))
            tables.append(self.assembler.needed(subgraph))
        budget = estimated_budget(self.assembler, tables)
        self.assembler.budgets = [budget]
        steps = self.length * self.per_step
        names = [
            k for kind in ("node", "edge") for k in capacity_names(kind, len(budget))
        ]
        means = {k: np.mean([t[k] for t in tables]) for k in names if k in tables[0]}
        self.sizes = {k: np.array([int(v * steps)]) for k, v in means.items()}

    def _bounds(self) -> dict[str, int]:
        return largest_sizes(self.assembler)

    @property
    def budgets(self) -> list[dict[str, int]]:
        """Capacities by name."""
        return self.assembler.budgets

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the groups of items of an epoch; each `per_step` make a step."""
        drawn = epoch if self.shuffle else 0
        rng, pieces = key_of(self.seed, drawn), []
        count = self.length * self.per_step // len(self.pools)
        for pool in self.pools:
            if self.sampler.share < 1:
                pieces.append(self._draws(pool, count, rng))
                continue
            order = rng.permutation(pool) if self.shuffle else pool
            # Equal parts, so that no device of a step is without items.
            pieces.append(np.array_split(order, count))
        # Steps one after the other, in each the subgraphs of every pool.
        size = self.per_step // len(self.pools)
        steps = range(0, count, size)
        groups = [g for s in steps for pool in pieces for g in pool[s : s + size]]
        budget = self.assembler.budgets[0]
        return [
            Supergraph(group, budget, (self.seed, drawn, number))
            for number, group in enumerate(groups)
        ]

    def _draws(self, pool: np.ndarray, count: int, rng) -> list[np.ndarray]:
        """Return groups of random items, equally large as estimates assume.

        Without `shuffle`, too: the items in their order would be no fair sample.
        """
        size = min(self.sampler.batch_size, len(pool))
        per_order, groups = len(pool) // size, []
        while len(groups) < count:
            order = rng.permutation(pool)[: per_order * size]
            groups += np.split(order, per_order)
        return groups[:count]

    def usage(self, supergraphs: Sequence[Supergraph]) -> dict[str, np.ndarray]:
        """Return the items of steps as "graph", and estimates of nodes and edges."""
        usage = super().usage(supergraphs)
        items = np.array([len(s.members) for s in supergraphs])
        items = items.reshape(-1, self.per_step).sum(1)
        room = np.full(len(items), self.per_step * self.budgets[0]["item"])
        names = ("node", "edge")
        return {"graph": np.array([items, room]), **{n: usage[n] for n in names}}
