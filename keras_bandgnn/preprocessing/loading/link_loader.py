"""`LinkLoader`: batches of pairs of nodes, each with the whole graph."""

import hashlib
from typing import NamedTuple

import numpy as np

from keras_bandgnn.checks import boolean, instance, optional, positive_int, seed_number
from keras_bandgnn.data.link_splits import FIELDS, NodePairs, as_pairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loading.node_order import caller_rows
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler


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
        known: Pairs that are true besides `pairs`, which negatives avoid.
        shuffle: Whether each epoch has a new order and new negatives; otherwise all
            have those of the first.
        seed: Of the orders and the negatives.
        loader: Loader of the graph alone, such as `task.loader(graph)`, whose plan and
            order of nodes the batches have; by default a plain `GraphLoader`.
        prefetch: Batches to assemble in advance; 0 for none.

    Raises:
        ValueError: For several graphs, pairs of other nodes, or layers that drop nodes.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [1, 2, 3])
    >>> pairs = NodePairs.of_edges(graph)
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
    ):
        super(GraphLoader, self).__init__(workers=1)
        instance("graph", graph, Graph, "a Graph")
        pairs = as_pairs("pairs", pairs, graph.num_nodes)
        known = optional(as_pairs, "known", known, graph.num_nodes)
        expected = "a NegativeSampler"
        optional(instance, "negatives", negatives, NegativeSampler, expected)
        batch_size = optional(positive_int, "batch_size", batch_size)
        self.shuffle = boolean("shuffle", shuffle)
        self.seed = seed_number("seed", seed)
        self.prefetch = positive_int("prefetch", prefetch, 0)
        if not len(pairs):
            raise ValueError("Expected `pairs` to have at least one pair. Received: 0.")
        if loader is None:
            loader = GraphLoader([graph], StaticBatcher(2, padding="64"), shuffle=False)
        instance("loader", loader, GraphLoader, "a GraphLoader")
        if len(loader) != 1 or loader.starts[-1] != 1 or loader.replicas != 1:
            raise ValueError(
                "Expected `loader` to have one graph in one batch, on one device. "
                f"Received: {loader.starts[-1]} graphs in {len(loader)} batches for "
                f"{loader.replicas} devices."
            )
        self.graph = graph
        self.parts, self.num_edge_types = loader.parts, loader.num_edge_types
        self.starts, self.plan = loader.starts, loader.plan
        self.edge_weight, self.num_filtered = loader.edge_weight, 0
        self.replicas = self.num_hosts = self.threads = 1
        self.host = 0
        self.batcher = _OneShape()
        self._assembler = _PairAssembler(
            loader, graph, pairs, negatives, known, batch_size
        )
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


class _OneShape:
    """What a batcher says about shapes: all are equal."""

    fixed_shapes = True


class _PairGroup(NamedTuple):
    """The positives of a batch, what it is padded to, and the key of its draws."""

    members: np.ndarray
    budget: dict[str, int]
    key: tuple[int, ...]


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
        self.batch_size = assembler.batch_size
        self.length = -(-count // self.batch_size)
        self.budgets = [assembler.budget]
        self.sizes = {
            name: np.array([self.length * assembler.used[name]])
            for name in ("graph", "node", "edge")
        }

    def composition(self, epoch: int) -> list[_PairGroup]:
        """Return the groups of pairs of an epoch, one for each step."""
        order = np.arange(self.count)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
        seed, epoch = (0, 0) if self.seed is None else (self.seed, epoch)
        starts = range(0, self.count, self.batch_size)
        return [
            _PairGroup(
                order[start : start + self.batch_size],
                self.budgets[0],
                (seed, epoch, step),
            )
            for step, start in enumerate(starts)
        ]

    def usage(self, groups: list[_PairGroup]) -> dict[str, np.ndarray]:
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
        negatives: Draws negatives, or None.
        known: Further true pairs, or None.
        batch_size: P; None for all.
    """

    def __init__(self, loader, graph, pairs, negatives, known, batch_size):
        self.pairs = pairs
        self.batch_size = batch_size or len(pairs)
        self.per_positive = 0 if negatives is None else negatives.per_positive
        self._draw = None
        if negatives is not None:
            node_types = None
            if negatives.node_type is not None:
                node_types = graph.node.get(negatives.node_type)
            self._draw = negatives.prepare(pairs, graph.num_nodes, known, node_types)
        ((places, _),) = caller_rows([graph], loader)
        if len(places) != graph.num_nodes:
            raise ValueError(
                "Expected a preprocessor that keeps all nodes, which pairs number. "
                f"Received: {len(places)} of {graph.num_nodes} nodes. Apply layers that "
                "drop nodes to the graph first, and then split its edges."
            )
        self._row = np.empty(graph.num_nodes, np.int32)
        self._row[places] = np.arange(graph.num_nodes, dtype=np.int32)
        self._x = loader.build(0, 0)[0]
        shapes = {name: self._x[name]["mask"].shape[1] for name in ("node", "graph")}
        self.used = {"graph": 1, "node": graph.num_nodes, "edge": 0}
        shapes["edge"] = 1
        if "edge" in self._x:
            self.used["edge"] = int(self._x["edge"]["mask"].sum())
            shapes["edge"] = self._x["edge"]["mask"].shape[1]
        self.budget = {**shapes, "pair": self.batch_size * (1 + self.per_positive)}

    def build(self, groups: list[_PairGroup], replicas: int) -> list[tuple]:
        """Return the batches of groups of pairs, and their figures."""
        del replicas
        return [self._batch(group) for group in groups]

    def _batch(self, group: _PairGroup) -> tuple:
        count = len(group.members)
        positive = self.pairs.take(group.members)
        shape = self.batch_size, 1 + self.per_positive
        drawn = positive.take(slice(0))
        if self._draw is not None:
            drawn = self._draw(group.members, np.random.default_rng(group.key))

        def column(name, row=None):
            values = np.zeros(shape, np.int32)
            values[:count, 0] = getattr(positive, name)
            values[:count, 1:] = getattr(drawn, name).reshape(count, -1)
            if row is not None:
                values[:count] = row[values[:count]]
            return values.reshape(1, -1)

        mask, y = np.zeros(shape, bool), np.zeros(shape, np.float32)
        mask[:count], y[:, 0] = True, 1.0
        pair = {
            "sender": column("senders", self._row),
            "receiver": column("receivers", self._row),
            "type": column("types"),
            "mask": mask.reshape(1, -1),
            "positive": np.arange(0, mask.size, shape[1], dtype=np.int32)[None],
        }
        figures = {name: (n, self.budget[name]) for name, n in self.used.items()}
        figures["pair"] = count * shape[1], mask.size
        y = y.reshape(1, -1)
        batch = {**self._x, "pair": pair}, y, pair["mask"].astype(np.float32)
        return batch, figures
