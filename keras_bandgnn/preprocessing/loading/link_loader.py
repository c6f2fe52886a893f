"""`LinkLoader`: batches of pairs of nodes, each with the whole graph."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.assembly.assembler import BatchAssembler, Supergraph
from keras_bandgnn.assembly.padded_rows import picked_rows
from keras_bandgnn.checks import (
    boolean,
    instance,
    optional,
    positive_int,
    refuse,
)
from keras_bandgnn.data.identity import without_types
from keras_bandgnn.data.link_ends import FIELDS, LinkEnds, NodePairs
from keras_bandgnn.graph import EdgeSet, Graph
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.loading.batch_builder import Composer
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loading.loader import Loader, Source, loader_options
from keras_bandgnn.preprocessing.loading.node_order import caller_rows
from keras_bandgnn.preprocessing.loading.sample_loader import estimated_budget
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler
from keras_bandgnn.preprocessing.sampling.sampled_graph import key_of
from keras_bandgnn.preprocessing.sampling.shared_negatives import SharedNegatives

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Pairs

# Steps from which the usual sizes of trees are estimated, and the number that keeps
# their draws apart from those of epochs.
_TRIED, _ESTIMATE = 8, 1 << 40


def LinkLoader(
    graph: Graph,
    pairs: Pairs,
    negatives: NegativeSampler | SharedNegatives | None = None,
    batch_size: int | None = None,
    known: Pairs | None = None,
    shuffle: bool = True,
    seed: int = 0,
    loader: Loader | None = None,
    prefetch: int = 4,
    undirected: bool | None = None,
    edge_set: EdgeSet | None = None,
) -> Loader:
    """The graph once per step, with a part of the pairs and negatives for them.

    Every pair comes once per epoch. A batch has P of them with K negatives each, in
    P (1 + K) pairs: each positive is followed by its negatives. The last batch is
    padded, so all have one shape. What a batch holds follows from `seed` and the
    numbers of the epoch and the step alone.

    Args:
        graph: The graph, whose edges carry messages.
        pairs: `NodePairs` that are true, or int [Q, 2] or [Q, 3]; nodes are numbered as
            in `graph`.
        negatives: `NegativeSampler`, or `SharedNegatives`, whose nodes are beside the
            pairs; None for batches of `pairs` alone.
        batch_size: P; None for all pairs in one batch.
        known: Pairs that are true besides `pairs` and the edges of the graph, which
            negatives avoid.
        shuffle: Whether each epoch has a new order and new negatives; otherwise all
            have those of the first.
        seed: Of the orders and the negatives.
        loader: Loader of the graph alone, such as `task.loader(graph)`, whose plan and
            order of nodes the batches have; by default a plain `GraphLoader`. Of a
            `SampleLoader` batches have the subgraph that its sampler cuts around the
            nodes of the pairs, instead of the whole graph. If it draws by time, both
            nodes of a pair, and of its negatives, have what is before the pair.
        prefetch: Batches to assemble in advance; 0 for none.
        undirected: Whether negatives avoid the reverse of true pairs, too, as of
            `LinkPredictor.fit`. By default if `pairs` have one type, 0.
        edge_set: Edge set of the pairs, whose nodes are numbered as the rows of its two
            sets; negatives join nodes of these sets.

    Returns:
        A `Loader`, whose `graph` is this; its `pairs` are numbered as the nodes.

    Raises:
        ValueError: For several graphs, pairs of other nodes, layers that drop nodes,
            a sampler by time and pairs without times, or a sampler and
            `SharedNegatives`.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [1, 2, 3])
    >>> pairs = [[0, 1], [1, 2], [2, 3]]
    >>> loader = LinkLoader(graph, pairs, NegativeSampler(), batch_size=2)
    >>> x, y, weight = loader[1]
    >>> y.tolist(), weight.tolist()
    ([[1.0, 0.0, 1.0, 0.0]], [[1.0, 1.0, 0.0, 0.0]])
    """
    instance("graph", graph, Graph, "a Graph")
    ends = LinkEnds(graph, edge_set)
    pairs = ends.read("pairs", pairs)
    known = optional(ends.read, "known", known)
    expected, kinds = "a NegativeSampler", (NegativeSampler, SharedNegatives)
    optional(instance, "negatives", negatives, kinds, expected)
    optional(positive_int, "batch_size", batch_size)
    options = loader_options(shuffle, seed, prefetch=prefetch)
    if not len(pairs):
        raise ValueError("Expected `pairs` to have at least one pair. Received: 0.")
    if loader is None:
        loader = GraphLoader([graph], StaticBatcher(1, padding="64"), shuffle=False)
    instance("loader", loader, Loader, "a GraphLoader")
    whole = loader.sampler is not None or len(loader) == 1
    if not whole or loader.starts[-1] != 1 or loader.replicas != 1:
        raise ValueError(
            "Expected `loader` to have one graph in one batch, on one device. "
            f"Received: {loader.starts[-1]} graphs in {len(loader)} batches for "
            f"{loader.replicas} devices."
        )
    if loader.sampler is not None and isinstance(negatives, SharedNegatives):
        expected = "a NegativeSampler with a sampler of neighbours"
        refuse("negatives", expected, negatives, "Subgraphs have few of the nodes.")
    optional(boolean, "undirected", undirected)
    if undirected is None:
        undirected = not pairs.types.any()
    assembler = PairAssembler(
        loader,
        ends,
        pairs,
        negatives=negatives,
        true_pairs=_with_edges(ends, pairs, known),
        undirected=undirected,
        batch_size=batch_size or len(pairs),
    )
    composer = PairComposer(assembler, options["seed"] if shuffle else None)
    digest = hashlib.sha256()
    for name in FIELDS:
        digest.update(getattr(pairs, name))
    if pairs.time is not None:
        digest.update(pairs.time)
    source = Source(
        loader.parts,
        loader.num_edge_types,
        loader.plan,
        loader.edge_weight,
        configs=[
            None if negatives is None else negatives.get_config(),
            batch_size,
            digest.hexdigest(),
            ends.edge_set,
            loader.plan.get_config(),
        ],
        graph=graph,
        pairs=pairs,
    )
    return Loader(source, composer, assembler, **options)


def validation_loader(links: Loader, pairs, seed: int = 0) -> Loader:
    """Return a loader of held-out pairs, the same in every epoch.

    It has the graph, the negatives and the batch size of the loader to train on;
    negatives avoid the pairs of both. Without negatives there it has a uniform one for
    each pair.

    Args:
        links: A `LinkLoader`, to train on.
        pairs: Pairs that are true.
        seed: Of the negatives.
    """
    train = links.assembler
    ends = train.ends
    return LinkLoader(
        links.graph,
        ends.rows(pairs),
        NegativeSampler() if train.negatives is None else train.negatives,
        min(train.batch_size, len(pairs)) or None,
        ends.rows(NodePairs.concatenate([train.true_pairs, _untimed(links.pairs)])),
        shuffle=False,
        seed=seed,
        loader=train.loader,
        prefetch=links.prefetch,
        undirected=train.undirected,
        edge_set=ends.edge_set,
    )


def _with_edges(
    ends: LinkEnds, pairs: NodePairs, true_pairs: NodePairs | None
) -> NodePairs:
    """Return the true pairs and the links of a graph, of one type if pairs are."""
    edges = _untimed(ends.links())
    if not pairs.types.any():
        edges = without_types(edges)
    if true_pairs is None:
        return edges
    return NodePairs.concatenate([_untimed(true_pairs), edges])


_untimed = NodePairs.without_time


class PairComposer(Composer):
    """Deals out pairs.

    Args:
        assembler: Has the pairs and the size of batches.
        seed: Of the orders; None for the same in all epochs.
    """

    item = "pair"

    def __init__(self, assembler: PairAssembler, seed: int | None):
        self.seed, self.count = seed, len(assembler.pairs)
        self.differ = seed is not None
        self.batch_size = assembler.batch_size
        self.length = -(-self.count // self.batch_size)
        self.assembler = assembler
        # Subgraphs above the budget have a larger one.
        self.fixed_shapes = not assembler.samples
        self.sizes = {
            name: np.array([self.length * assembler.used[name]])
            for name in ("graph", "node", "edge")
        }

    @property
    def budgets(self) -> list[dict[str, int]]:
        """Capacities by name."""
        return self.assembler.budgets

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the pairs of each step of an epoch."""
        order = np.arange(self.count)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
        seed, epoch = (0, 0) if self.seed is None else (self.seed, epoch)
        starts = range(0, self.count, self.batch_size)
        budget = self.budgets[0]
        return [
            Supergraph(order[i : i + self.batch_size], budget, (seed, epoch, step))
            for step, i in enumerate(starts)
        ]

    def usage(self, supergraphs: Sequence[Supergraph]) -> dict[str, np.ndarray]:
        """Return the real rows of steps, and all."""
        room = self.budgets[0]["pair"]
        pairs = np.array([len(s.members) for s in supergraphs])
        pairs *= room // self.batch_size
        usage = super().usage(supergraphs)
        return {**usage, "pair": np.array([pairs, np.full(len(pairs), room)])}


class PairAssembler(BatchAssembler):
    """Adds pairs to the batch of a graph, or to the subgraph around their nodes.

    Args:
        loader: Loader of the graph alone, or a `SampleLoader` of it.
        ends: Has the graph, as pairs number its nodes.
        pairs: The positives.
        negatives: Draws negatives, or the nodes that all pairs of a step share; or
            None.
        true_pairs: Pairs that negatives avoid, besides the positives.
        undirected: Whether negatives avoid the reverse of true pairs.
        batch_size: P.
    """

    def __init__(
        self,
        loader: Loader,
        ends: LinkEnds,
        pairs: NodePairs,
        negatives: NegativeSampler | SharedNegatives | None,
        true_pairs: NodePairs,
        undirected: bool,
        batch_size: int,
    ):
        self.loader, self.ends, self.pairs = loader, ends, pairs
        graph = ends.graph
        self.negatives, self.true_pairs, self.undirected = (
            negatives,
            true_pairs,
            undirected,
        )
        self.batch_size = batch_size
        self.per_positive = 0 if negatives is None else negatives.per_positive
        self.sampler = loader.sampler
        self.samples = self.sampler is not None
        self.by_time = self.samples and self.sampler.time is not None
        if self.by_time and pairs.time is None:
            raise ValueError(
                f"Expected pairs with times for {loader.sampler!r}. Received: pairs "
                "without. Give them, in the unit of the times of edges: "
                "NodePairs(senders, receivers, time=t)."
            )
        ((places, _),) = caller_rows([graph], loader)
        if len(places) != graph.num_nodes:
            raise ValueError(
                "Expected a preprocessor that keeps all nodes, which pairs number. "
                f"Received: {len(places)} of {graph.num_nodes} nodes. Apply layers "
                "that drop nodes to the graph first, and then split its edges."
            )
        self._row = np.empty(graph.num_nodes, np.int32)
        self._row[places] = np.arange(graph.num_nodes, dtype=np.int32)
        self._prepare_draws()
        # Real rows of a batch; of samples in the mean.
        self.used = {"graph": 1, "node": graph.num_nodes, "edge": 0}
        if self.by_time:
            self.used |= self._fit_budget()
            return
        if self.samples:
            for name in ("node", "edge"):
                total = int(loader.sizes[name][0])
                self.used[name] = total // loader.batches_per_epoch
            return
        self._x = x = loader.build(0, 0)[0]
        self._budget = {k: x[k]["mask"].shape[1] for k in ("node", "graph")}
        self._budget["edge"] = 1
        if "edge" in x:
            self.used["edge"] = int(x["edge"]["mask"].sum())
            self._budget["edge"] = x["edge"]["mask"].shape[1]

    def _fit_budget(self) -> dict[str, int]:
        """Make room for the trees of pairs, which are larger than those of any nodes.

        Loaders that share a `SampleLoader`, to train and to validate, have one shape.

        Returns:
            The mean numbers of nodes and edges of a batch.
        """
        assembler, tables = self.loader.assembler, []
        size = min(self.batch_size, len(self.pairs))
        for number in range(_TRIED):
            key = (0, _ESTIMATE, number)
            members = key_of(*key).choice(len(self.pairs), size, replace=False)
            columns = self._columns(Supergraph(members, {}, key))[0]
            seeds, _ = self._seeds(columns, Supergraph(members, {}, key))
            tables.append(assembler.needed(assembler.subgraph(seeds)))
        budget = estimated_budget(assembler, tables)
        if assembler.seeds_of_pairs:
            (*_, last) = assembler.budgets
            budget = {name: max(room, last[name]) for name, room in budget.items()}
        assembler.seeds_of_pairs = True
        assembler.budgets = [budget]
        return {k: int(np.mean([t[k] for t in tables])) for k in ("node", "edge")}

    def _prepare_draws(self) -> None:
        self._draw = None
        if isinstance(self.negatives, NegativeSampler):
            graph = self.ends.graph
            self._draw = self.negatives.prepare(
                self.pairs,
                graph.num_nodes,
                self.true_pairs,
                self.negatives.types_of(graph),
                self.undirected,
                self.ends.nodes,
            )

    def __getstate__(self):
        # The function that draws is made again.
        return {k: v for k, v in self.__dict__.items() if k != "_draw"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._prepare_draws()

    @property
    def budgets(self) -> list[dict[str, int]]:
        """The usual budget and, where subgraphs exceeded it, larger ones."""
        budgets = self.loader.budgets if self.samples else [self._budget]
        pairs = {"pair": self.batch_size * (1 + self.per_positive)}
        return [{**budget, **pairs} for budget in budgets]

    def build(self, groups, replicas: int) -> list[tuple]:
        """Build batches of pairs; see `BatchAssembler.build`."""
        del replicas
        return [self._batch(group) for group in groups]

    def _columns(self, group: Supergraph) -> tuple[dict[str, np.ndarray], int]:
        """Return the columns of pairs and negatives, and the number of pairs."""
        true = self.pairs.take(group.members)
        drawn = true.take(slice(0))
        if self._draw is not None and len(true):
            drawn = self._draw(group.members, np.random.default_rng(group.key))
        # Each positive is followed by its negatives.
        columns = {
            name: np.column_stack(
                [getattr(true, field), *_negatives(drawn, field, len(true))]
            ).ravel()
            for name, field in _COLUMNS.items()
        }
        if self.by_time:
            columns["time"] = true.time.repeat(1 + self.per_positive)
        return columns, len(true)

    def _batch(self, group: Supergraph) -> tuple:
        columns, count = self._columns(group)
        step = 1 + self.per_positive
        x, figures = self._around(columns, group)
        rows = picked_rows([np.arange(count * step)], self.batch_size * step)
        mask = rows.mask()[None]
        pair = {name: rows.padded(v, 0)[None] for name, v in columns.items()}
        pair["mask"] = mask
        pair["positive"] = np.arange(0, mask.size, step, dtype=np.int32)[None]
        if isinstance(self.negatives, SharedNegatives):
            pair |= self._shared_nodes(group)
        y = np.zeros(mask.shape, np.float32)
        y[:, ::step] = 1.0
        figures = {**figures, "pair": rows.filled(0, 1)}
        return ({**x, "pair": pair}, y, mask.astype(np.float32)), figures

    def _shared_nodes(self, group: Supergraph) -> dict[str, np.ndarray]:
        """Return the rows of the nodes that all pairs are compared with, [1, C]."""
        nodes = self.ends.nodes
        if nodes is None:
            nodes = dict.fromkeys(self.negatives.ends, np.arange(len(self._row)))
        drawn = self.negatives.draw(nodes, np.random.default_rng(group.key))
        return {
            f"shared_{end}": np.where(ids < 0, -1, self._row[ids])[None]
            for end, ids in drawn.items()
        }

    def _around(self, columns: dict, group: Supergraph) -> tuple[dict, dict]:
        """Return the batch around pairs, whose ends become its rows, and figures."""
        if self.samples:
            seeds, ends = self._seeds(columns, group)
            (((x, *_), figures),) = self.loader.assembler.build([seeds], 1)
            figures = {**figures, "graph": (1, 2)}
        else:
            ends = self._row[np.concatenate([columns["sender"], columns["receiver"]])]
            x, budget = self._x, self._budget
            figures = {name: (n, budget[name]) for name, n in self.used.items()}
        columns["sender"], columns["receiver"] = np.split(ends.astype(np.int32), 2)
        return x, figures

    def _seeds(self, columns: dict, group: Supergraph) -> tuple[Supergraph, np.ndarray]:
        """Return the ends of pairs as seeds, each once, and the seed of each end.

        By time the two ends of a pair are two seeds, and a node is one for each time.
        """
        ends = self._row[np.concatenate([columns["sender"], columns["receiver"]])]
        budget = {k: v for k, v in group.budget.items() if k != "pair"}
        key = (*group.key, 1)
        if not self.by_time:
            nodes, ends = np.unique(ends, return_inverse=True)
            return Supergraph(nodes.astype(np.int64), budget, key), ends
        moments, rank = np.unique(columns.pop("time"), return_inverse=True)
        seeds = ends.astype(np.int64) * len(moments) + np.tile(rank.reshape(-1), 2)
        seeds, ends = np.unique(seeds, return_inverse=True)
        nodes, rank = np.divmod(seeds, max(len(moments), 1))
        return Supergraph(nodes, budget, key, moments[rank]), ends.reshape(-1)


# Columns of `x["pair"]`, and the fields of `NodePairs`.
_COLUMNS = {"sender": "senders", "receiver": "receivers", "type": "types"}


def _negatives(drawn: NodePairs, field: str, count: int) -> np.ndarray:
    """Return a field of the negatives of each positive, [K, count]."""
    return getattr(drawn, field).reshape(count, -1).T if count else []
