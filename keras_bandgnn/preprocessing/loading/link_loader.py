"""`LinkLoader`: batches of pairs of nodes, each with the whole graph."""

import hashlib

import numpy as np

from keras_bandgnn.checks import boolean, instance, optional, positive_int, seed_number
from keras_bandgnn.data.link_splits import FIELDS, NodePairs, as_pairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loading.node_order import caller_rows
from keras_bandgnn.preprocessing.loading.sample_loader import SampleLoader
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sample_assembler import SampledGroup


class LinkLoader(GraphLoader):
    """The graph once per step, with a part of the pairs and negatives for them.

    Every pair comes once per epoch. A batch has P of them with K negatives each, in
    P (1 + K) pairs: each positive is followed by its negatives. The last batch is
    padded, so all have one shape. What a batch holds follows from `seed` and the
    numbers of the epoch and the step alone.

    Args:
        graph: The graph, whose edges carry messages.
        pairs: `NodePairs` that are true, or int [Q, 2] or [Q, 3]; nodes are numbered as
            in `graph`.
        negatives: `NegativeSampler`; None for batches of `pairs` alone.
        batch_size: P; None for all pairs in one batch.
        known: Pairs that are true besides `pairs` and the edges of the graph, which
            negatives avoid.
        shuffle: Whether each epoch has a new order and new negatives; otherwise all
            have those of the first.
        seed: Of the orders and the negatives.
        loader: Loader of the graph alone, such as `task.loader(graph)`, whose plan and
            order of nodes the batches have; by default a plain `GraphLoader`. Of a
            `SampleLoader` batches have the subgraph that its sampler cuts around the
            nodes of the pairs, instead of the whole graph.
        prefetch: Batches to assemble in advance; 0 for none.
        undirected: Whether negatives avoid the reverse of true pairs, too, as of
            `LinkPredictor.fit`. By default if `pairs` have one type, 0.

    Raises:
        ValueError: For several graphs, pairs of other nodes, or layers that drop nodes.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [1, 2, 3])
    >>> pairs = [[0, 1], [1, 2], [2, 3]]
    >>> loader = LinkLoader(graph, pairs, NegativeSampler(), batch_size=2)
    >>> x, y, weight = loader[1]
    >>> y.tolist(), weight.tolist()
    ([[1.0, 0.0, 1.0, 0.0]], [[1.0, 1.0, 0.0, 0.0]])
    """

    def __init__(
        self,
        graph: Graph,
        pairs,
        negatives: NegativeSampler | None = None,
        batch_size: int | None = None,
        known=None,
        shuffle: bool = True,
        seed: int = 0,
        loader: GraphLoader | None = None,
        prefetch: int = 4,
        undirected: bool | None = None,
    ):
        super(GraphLoader, self).__init__(workers=1)
        instance("graph", graph, Graph, "a Graph")
        pairs = as_pairs("pairs", pairs, graph.num_nodes)
        known = _with_edges(
            graph, pairs, optional(as_pairs, "known", known, graph.num_nodes)
        )
        expected = "a NegativeSampler"
        optional(instance, "negatives", negatives, NegativeSampler, expected)
        batch_size = optional(positive_int, "batch_size", batch_size)
        self.shuffle = boolean("shuffle", shuffle)
        self.seed = seed_number("seed", seed)
        self.prefetch = positive_int("prefetch", prefetch, 0)
        if not len(pairs):
            raise ValueError("Expected `pairs` to have at least one pair. Received: 0.")
        if loader is None:
            loader = GraphLoader([graph], StaticBatcher(1, padding="64"), shuffle=False)
        instance("loader", loader, GraphLoader, "a GraphLoader")
        sampled = isinstance(loader, SampleLoader)
        whole = sampled or len(loader) == 1
        if not whole or loader.starts[-1] != 1 or loader.replicas != 1:
            raise ValueError(
                "Expected `loader` to have one graph in one batch, on one device. "
                f"Received: {loader.starts[-1]} graphs in {len(loader)} batches for "
                f"{loader.replicas} devices."
            )
        self.graph, self.pairs = graph, pairs
        self._known, self._negatives, self._loader = known, negatives, loader
        self._undirected = optional(boolean, "undirected", undirected)
        if undirected is None:
            self._undirected = not pairs.types.any()
        self.parts, self.num_edge_types = loader.parts, loader.num_edge_types
        self.starts, self.plan = loader.starts, loader.plan
        self.edge_weight, self.num_filtered = loader.edge_weight, 0
        self.replicas = self.num_hosts = self.threads = 1
        self.host = 0
        self.batcher = loader.batcher if sampled else _OneShape()
        assembler = _SampledPairAssembler if sampled else _PairAssembler
        draw = None
        if negatives is not None:
            draw = negatives.prepare(
                pairs,
                graph.num_nodes,
                known,
                negatives.types_of(graph),
                self._undirected,
            )
        count = 0 if negatives is None else negatives.per_positive
        self._assembler = assembler(loader, graph, pairs, draw, count, batch_size)
        self._epochs = _PairEpochs(
            self._assembler, self.seed if self.shuffle else None, len(pairs)
        )
        self.sizes = self._epochs.sizes
        digest = hashlib.sha256()
        for name in FIELDS:
            digest.update(getattr(pairs, name))
        self._configs = [
            None if negatives is None else negatives.get_config(),
            batch_size,
            digest.hexdigest(),
            self.plan.get_config(),
        ]
        self._resumed_batches, self._hold_resume = 0, False
        self.epoch = 0
        self.begin()

    def build_as(self, groups: list[np.ndarray], budget: dict[str, int]):
        """Build a batch of chosen pairs, padded to a budget.

        Args:
            groups: The ids of pairs, one array.
            budget: Capacities by name.
        """
        groups = [SampledGroup(np.asarray(ids, np.int64), budget) for ids in groups]
        return self._assembler.build(groups, 1)[0][0]

    def validation_loader(self, pairs, seed: int = 0) -> "LinkLoader":
        """Return a loader of held-out pairs, the same in every epoch.

        It has the graph, the negatives and the batch size of this loader; negatives
        avoid the pairs of both. Without negatives here it has a uniform one for each
        pair.

        Args:
            pairs: Pairs that are true.
            seed: Of the negatives.
        """
        negatives = NegativeSampler() if self._negatives is None else self._negatives
        return LinkLoader(
            self.graph,
            pairs,
            negatives,
            min(self._assembler.batch_size, len(pairs)) or None,
            NodePairs.concatenate([self._known, self.pairs]),
            shuffle=False,
            seed=seed,
            loader=self._loader,
            prefetch=self.prefetch,
            undirected=self._undirected,
        )

    @property
    def num_dropped(self) -> int:
        """Pairs of an epoch that are left out: none."""
        return 0

    @property
    def num_oversized(self) -> int:
        """Batches above the budget: none."""
        return 0

    def __repr__(self) -> str:
        return (
            f"LinkLoader(pairs={self._epochs.count}, batches={len(self)}, "
            f"budget={self.budgets[0]}, plan={self.plan})"
        )


def _with_edges(graph: Graph, pairs: NodePairs, known: NodePairs | None) -> NodePairs:
    """Return the known pairs and the edges of a graph, of one type if pairs are."""
    edges = NodePairs.of_edges(graph)
    if not pairs.types.any():
        edges = NodePairs(edges.senders, edges.receivers)
    return edges if known is None else NodePairs.concatenate([known, edges])


class _OneShape:
    """What a batcher says about shapes: all are equal."""

    fixed_shapes = True


class _PairEpochs:
    """Which pairs form which batch, epoch by epoch.

    Args:
        assembler: Has the size of batches.
        seed: Of the orders; None for the same in all epochs.
        count: Number of pairs.
    """

    per_step = 1

    def __init__(self, assembler: "_PairAssembler", seed: int | None, count: int):
        self.seed, self.count = seed, count
        self.differ = seed is not None
        self.batch_size = assembler.batch_size
        self.length = -(-count // self.batch_size)
        self.assembler = assembler
        self.sizes = {
            name: np.array([self.length * assembler.used[name]])
            for name in ("graph", "node", "edge")
        }

    @property
    def budgets(self) -> list[dict[str, int]]:
        """Capacities by name."""
        return self.assembler.budgets

    def composition(self, epoch: int) -> list[SampledGroup]:
        """Return the groups of pairs of an epoch, one for each step."""
        order = np.arange(self.count)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
        seed, epoch = (0, 0) if self.seed is None else (self.seed, epoch)
        starts = range(0, self.count, self.batch_size)
        return [
            SampledGroup.of(
                order[start : start + self.batch_size],
                self.budgets[0],
                (seed, epoch, step),
            )
            for step, start in enumerate(starts)
        ]

    def usage(self, groups: list[SampledGroup]) -> dict[str, np.ndarray]:
        """Return the real rows of steps, and all."""
        budget = self.budgets[0]
        usage = {}
        for name, sizes in self.sizes.items():
            used = np.full(len(groups), int(sizes[0]) // self.length)
            usage[name] = np.array([used, np.full(len(groups), budget[name])])
        per_positive = budget["pair"] // self.batch_size
        pairs = np.array([len(group.members) * per_positive for group in groups])
        usage["pair"] = np.array([pairs, np.full(len(groups), budget["pair"])])
        return usage


class _PairAssembler:
    """Adds pairs to the batch of a graph.

    Args:
        loader: Loader of the graph alone.
        graph: The graph, as pairs number its nodes.
        pairs: The positives.
        draw: Draws negatives for some of the pairs, or None.
        per_positive: K; 0 without negatives.
        batch_size: P; None for all.
    """

    def __init__(self, loader, graph, pairs, draw, per_positive, batch_size):
        self.pairs = pairs
        self.batch_size = batch_size or len(pairs)
        self.per_positive, self._draw = per_positive, draw
        ((places, _),) = caller_rows([graph], loader)
        if len(places) != graph.num_nodes:
            raise ValueError(
                "Expected a preprocessor that keeps all nodes, which pairs number. "
                f"Received: {len(places)} of {graph.num_nodes} nodes. Apply layers "
                "that drop nodes to the graph first, and then split its edges."
            )
        self._row = np.empty(graph.num_nodes, np.int32)
        self._row[places] = np.arange(graph.num_nodes, dtype=np.int32)
        self._begin(loader)

    @property
    def pairs_per_batch(self) -> int:
        """Pairs of a batch, positives and negatives."""
        return self.batch_size * (1 + self.per_positive)

    def _begin(self, loader: GraphLoader) -> None:
        """Build the batch of the whole graph."""
        self._x = loader.build(0, 0)[0]
        shapes = {name: self._x[name]["mask"].shape[1] for name in ("node", "graph")}
        self.used = {"graph": 1, "node": len(self._row), "edge": 0}
        shapes["edge"] = 1
        if "edge" in self._x:
            self.used["edge"] = int(self._x["edge"]["mask"].sum())
            shapes["edge"] = self._x["edge"]["mask"].shape[1]
        self.budgets = [{**shapes, "pair": self.pairs_per_batch}]

    def build(self, groups: list[SampledGroup], replicas: int) -> list[tuple]:
        """Return the batches of groups of pairs, and their figures."""
        del replicas
        return [self._batch(group) for group in groups]

    def _batch(self, group: SampledGroup) -> tuple:
        pair, y, weight = self._pairs_of(group)
        for name in ("sender", "receiver"):
            pair[name] = np.where(pair["mask"], self._row[pair[name]], 0)
        figures = {name: (n, self.budgets[0][name]) for name, n in self.used.items()}
        figures["pair"] = int(pair["mask"].sum()), pair["mask"].size
        return ({**self._x, "pair": pair}, y, weight), figures

    def _pairs_of(self, group: SampledGroup) -> tuple[dict, np.ndarray, np.ndarray]:
        """Return `x["pair"]` in the caller's numbers, labels and weights."""
        count = len(group.members)
        positive = self.pairs.take(group.members)
        shape = self.batch_size, 1 + self.per_positive
        drawn = positive.take(slice(0))
        if self._draw is not None and count:
            drawn = self._draw(group.members, np.random.default_rng(group.key))

        def column(name):
            values = np.zeros(shape, np.int32)
            values[:count, 0] = getattr(positive, name)
            values[:count, 1:] = getattr(drawn, name).reshape(count, self.per_positive)
            return values.reshape(1, -1)

        mask, y = np.zeros(shape, bool), np.zeros(shape, np.float32)
        mask[:count], y[:, 0] = True, 1.0
        pair = {
            "sender": column("senders"),
            "receiver": column("receivers"),
            "type": column("types"),
            "mask": mask.reshape(1, -1),
            "positive": np.arange(0, mask.size, shape[1], dtype=np.int32)[None],
        }
        return pair, y.reshape(1, -1), pair["mask"].astype(np.float32)


class _SampledPairAssembler(_PairAssembler):
    """Adds pairs to the subgraph around their nodes.

    Takes what `_PairAssembler` takes, with a `SampleLoader`.
    """

    def _begin(self, loader: SampleLoader) -> None:
        """Take the assembler of subgraphs."""
        self._subgraphs = loader.assembler
        self.used = {"graph": 1}
        for name in ("node", "edge"):
            self.used[name] = int(loader.sizes[name][0]) // loader.batches_per_epoch
        self._subgraphs.budgets[0]["pair"] = self.pairs_per_batch

    @property
    def budgets(self) -> list[dict[str, int]]:
        """The usual budget and, where subgraphs exceeded it, larger ones."""
        return self._subgraphs.budgets

    def _batch(self, group: SampledGroup) -> tuple:
        pair, y, weight = self._pairs_of(group)
        ends = [self._row[pair[name][pair["mask"]]] for name in ("sender", "receiver")]
        nodes = np.unique(np.concatenate(ends)).astype(np.int64)
        seeds = SampledGroup.of(nodes, group.budget, (*group.key, 1))
        ((batch, figures),) = self._subgraphs.build([seeds], 1)
        for name, rows in zip(("sender", "receiver"), ends, strict=True):
            pair[name] = np.zeros_like(pair[name])
            pair[name][pair["mask"]] = np.searchsorted(nodes, rows)
        figures = {**figures, "pair": (int(pair["mask"].sum()), pair["mask"].size)}
        return ({**batch[0], "pair": pair}, y, weight), {**figures, "graph": (1, 2)}
