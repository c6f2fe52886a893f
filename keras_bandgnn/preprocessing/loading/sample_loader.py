"""`SampleLoader`: batches of subgraphs of a large graph."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.assembly.assembler import merge_parts, with_edge_types
from keras_bandgnn.checks import (
    boolean,
    instance,
    mapping,
    optional,
    positive_int,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.data.sources import parts_of
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.batching.batcher import round_up_64
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.sampling.sample_assembler import (
    SampleAssembler,
    SampledGroup,
    capacity_names,
    known_labels,
    named_sizes,
    needed_sizes,
)
from keras_bandgnn.preprocessing.sampling.sampled_graph import SampledGraph, key_of
from keras_bandgnn.preprocessing.sampling.sampler import Sampler
from keras_bandgnn.primitives.plan import Plan

# Subgraphs from which the usual sizes are estimated.
_TRIED = 12
# Room above the mean, in standard deviations of the sizes.
_DEVIATIONS = 6.0
# Number that keeps the draws of the estimate apart from those of epochs.
_ESTIMATE = 1 << 40


class SampleLoader(GraphLoader):
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

    def __init__(
        self,
        graph,
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
    ):
        super(GraphLoader, self).__init__(workers=1)
        instance(
            "sampler", sampler, Sampler, "a sampler, such as NeighborSampler([15])"
        )
        self.sampler = sampler
        self._take_options(shuffle, seed, replicas, prefetch, threads, host, num_hosts)
        optional(mapping, "features", features)
        boolean("trimmed", trimmed)
        boolean("rescale", rescale)
        boolean("classes", classes)
        optional(positive_int, "num_edge_types", num_edge_types, 0)
        parts = merge_parts(parts_of([graph] if isinstance(graph, Graph) else graph))
        self.parts, self.num_edge_types = with_edge_types(parts, num_edge_types)
        if len(self.parts) != 1:
            raise ValueError(
                "Expected one graph, in memory or in a store of one shard. Received: "
                f"{len(self.parts)} parts. Write the graph alone into a store."
            )
        (flat,) = self.parts
        # Samplers may read types of edges that the model does not.
        self.graph = SampledGraph(parts[0])
        targets = _targets(flat, classes)
        self.plan = Plan()
        self.edge_weight, self.num_filtered = None, 0
        self.starts = np.array([0, len(flat)])
        items = sampler.items(self.graph, np.flatnonzero(targets))
        if not len(items):
            raise ValueError(
                "Expected nodes with labels to train on. Received: none of "
                f"{self.graph.num_nodes} nodes has a known label. Check the mask."
            )
        self._assembler = SampleAssembler(
            self.graph,
            sampler,
            self.num_edge_types,
            trimmed,
            rescale,
            targets,
            {},
            features,
        )
        self._epochs = SampledEpochs(
            items,
            sampler,
            self.seed,
            self.shuffle,
            self.replicas,
            self.num_hosts,
            self._assembler,
        )
        if num_hosts > 1:
            self._epochs.take_bounds()
        groups = self._epochs.length * self._epochs.per_step
        weight = sampler.label_weight(self.graph, groups)
        self._assembler.expect_labels(weight, classes)
        self.sizes = self._epochs.sizes
        self.batcher = _Shapes()
        self._configs = [
            type(sampler).__name__,
            sampler.get_config(),
            trimmed,
            rescale,
            self.plan.get_config(),
        ]
        self._resumed_batches, self._hold_resume = 0, False
        self.epoch = 0
        self.begin()

    @property
    def budgets(self) -> list[dict[str, int]]:
        """The usual budget and, where subgraphs exceeded it, larger ones."""
        return self._assembler.budgets

    @property
    def assembler(self) -> SampleAssembler:
        """What samples and lays out batches."""
        return self._assembler

    @property
    def num_dropped(self) -> int:
        """Items of an epoch that are left out: none."""
        return 0

    @property
    def num_oversized(self) -> int:
        """Budgets beyond the usual one that batches needed so far."""
        return len(self.budgets) - 1

    def build_as(self, groups: list[np.ndarray], budget: dict[str, int]):
        """Build a batch of chosen items, padded to a budget.

        Args:
            groups: For each subgraph of the batch the ids of its items.
            budget: Capacities by name.
        """
        key = (self.seed, 0, 0)
        groups = [SampledGroup.of(np.asarray(i, np.int64), budget, key) for i in groups]
        return self._assembler.build(groups, len(groups))[0][0]

    def supergraphs(self, index: int, epoch: int) -> list[SampledGroup]:
        """Return the groups of items of this host in batch `index` of an epoch."""
        return self._builder.supergraphs(index, epoch)

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "_builder"}

    def __repr__(self) -> str:
        return (
            f"SampleLoader(nodes={self.graph.num_nodes}, edges={self.graph.num_edges}, "
            f"batches={len(self)}, sampler={self.sampler}, budget={self.budgets[0]})"
        )


class _Shapes:
    """What a batcher says about shapes: sizes may grow."""

    fixed_shapes = False


def _targets(flat: FlatGraphs, classes: bool) -> np.ndarray:
    """Return a mask of the nodes with a known label; all if there are no labels."""
    count = int(flat.node_ptr[-1])
    if flat.label is None or flat.label_level != "node":
        return np.ones(count, bool)
    return known_labels(np.asarray(flat.label), classes).any(axis=1)


class SampledEpochs:
    """Which items form which subgraph, epoch by epoch.

    Args:
        ids: int64 [m], the items of an epoch.
        sampler: What cuts subgraphs of them.
        seed: Of orders and draws.
        shuffle: Whether epochs differ.
        replicas: Subgraphs per step of a host.
        num_hosts: Number of hosts.
        assembler: Samples, for the estimate of sizes; gets its budget.
    """

    def __init__(
        self,
        ids: np.ndarray,
        sampler: Sampler,
        seed: int,
        shuffle: bool,
        replicas: int,
        num_hosts: int,
        assembler: SampleAssembler,
    ):
        self.ids = ids
        self.sampler = sampler
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

    def _estimate(self) -> None:
        """Set the budget and the sizes of an epoch from a few subgraphs."""
        count = min(_TRIED, max(2, self.length))
        tables = []
        for number in range(count):
            key = (self.seed, _ESTIMATE, number)
            size = min(self.sampler.batch_size, len(self.ids))
            members = key_of(*key).choice(self.ids, size, replace=False)
            subgraph = self.assembler.subgraph(SampledGroup.of(members, {}, key))
            tables.append(needed_sizes(subgraph, self.assembler.trimmed))
        bounds = self._bounds()
        budget = {"graph": 2, "item": self.sampler.batch_size}
        means = {}
        for kind in ("node", "edge"):
            before = None
            for name in capacity_names(kind, len(tables[0])):
                if name not in tables[0]:
                    break
                sizes = np.array([table[name] for table in tables], float)
                means[name] = sizes.mean()
                room = sizes.mean() + _DEVIATIONS * sizes.std(ddof=1)
                room = max(room, 1.02 * sizes.max())
                room = int(min(round_up_64(int(room)), bounds[name]))
                # Rows of a layer are the first of those of the layer before it.
                before = room if before is None else min(room, before)
                budget[name] = before
        self.assembler.budgets = [budget]
        steps = self.length * self.per_step
        self.sizes = {k: np.array([int(v * steps)]) for k, v in means.items()}

    def _bounds(self) -> dict[str, int]:
        nodes, edges = self.sampler.bound(self.assembler.graph)
        sizes = named_sizes(nodes, edges, self.assembler.trimmed)
        return {name: int(round_up_64(size)) for name, size in sizes.items()}

    def take_bounds(self) -> None:
        """Make the largest possible sizes the budget."""
        (budget,) = self.assembler.budgets
        self.assembler.budgets = [{**budget, **self._bounds()}]

    @property
    def budgets(self) -> list[dict[str, int]]:
        """Capacities by name."""
        return self.assembler.budgets

    def composition(self, epoch: int) -> list[SampledGroup]:
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
            SampledGroup.of(group, budget, (self.seed, drawn, number))
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

    def usage(self, groups: list[SampledGroup]) -> dict[str, np.ndarray]:
        """Return the items of steps, and estimates of nodes and edges.

        Args:
            groups: Those of an epoch.
        """
        items = [len(group.members) for group in groups]
        items = np.array(items).reshape(-1, self.per_step).sum(1)
        budget, steps = self.assembler.budgets[0], len(items)
        usage = {"graph": (items, self.per_step * budget["item"])}
        for name in ("node", "edge"):
            usage[name] = (
                int(self.sizes[name][0]) // steps,
                self.per_step * budget[name],
            )
        return {
            name: np.array([np.broadcast_to(used, steps), np.full(steps, room)])
            for name, (used, room) in usage.items()
        }
