"""`SequenceLoader`: a large graph as sequences of some of its nodes."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_bandgnn.assembly.assembler import BatchAssembler, Supergraph, with_edge_types
from keras_bandgnn.checks import having, one_of, optional, positive_int, string
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.batching.batcher import ceil64
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.loading.batch_builder import Composer
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.loading.loader import Loader, Source, loader_options
from keras_bandgnn.primitives.plan import Plan

if TYPE_CHECKING:
    from keras_bandgnn.models.task import Task

ORDERS = ("random", "clusters")
# Sequences from which the number of edges is estimated.
_TRIED = 16
# Plans whose budgets are kept.
_CACHED_PLANS = 64
# Epochs whose sequences are kept: the current one, and the next, which is built ahead.
_EPOCHS = 2


class SequenceLoader(Loader):
    """Batches of one sequence of nodes each, with the edges between them.

    Every epoch splits the nodes of a graph into new sequences of equal length; each
    node is in one of them. Full attention on a sequence costs its length squared
    instead of the size of the graph squared. All batches have one shape, unless a
    sequence has more edges than there is room for, which costs one more compilation.

    Give it to `fit` and `evaluate` of a `NodeClassifier` in place of the graph;
    `loader.predict(task)` puts the rows of all sequences together.

    Args:
        graph: A graph that has been through the model's `graph_layers()`. What they
            count, such as degrees, is that of the whole graph.
        length: S, nodes of a sequence.
        order: `"random"`: nodes in random order, as in TorchGT; `"clusters"`: in the
            order of the graph, rotated by a random number of nodes (not rotated
            without `shuffle`), so that sequences consist of neighbouring clusters.
            The graph then has the node feature `"cluster"`, ascending, as
            `ClusterCompile` leaves it.
        mask: Node feature that is true for the nodes whose labels count; all if None.
        plan: As for `GraphLoader`; `AttentionPlan()` for graph transformers.
        num_edge_types: P of the model; as many as the graph has if omitted.
        seed: Of the orders.
        shuffle: Whether each epoch has another order; otherwise all have that of the
            first.

    Raises:
        ValueError: For a graph without labels of nodes or, with
            `order="clusters"`, without clusters, or a mask that is missing.

    Reference:
        Zhang et al. 2024 (TorchGT), section IV.

    Example:
    >>> graph = Graph(
    ...     6, [0, 1, 2, 3], [1, 2, 3, 4], node={"kind": [0] * 6},
    ...     label=[0, 1, 0, 1, 0, 1], label_level="node",
    ... )
    >>> loader = SequenceLoader(graph, length=4)
    >>> len(loader), loader[0][0]["node"]["mask"].sum().item()
    (2, 3)
    """

    def __init__(
        self,
        graph: Graph,
        length: int,
        order: str = "random",
        mask: str | None = None,
        plan: Plan | str = "auto",
        num_edge_types: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ):
        if not isinstance(graph, Graph):
            raise ValueError(
                f"Expected `graph` to be a Graph. Received: {type(graph).__name__}. "
                "Apply the layers one by one: for layer in backbone.graph_layers(): "
                "graph = layer(graph)."
            )
        if graph.label is None or graph.label_level != "node":
            raise ValueError(
                "Expected a graph with labels of nodes. Received: none. Set "
                'Graph(..., label=..., label_level="node").'
            )
        optional(string, "mask", mask)
        if mask is not None and mask not in graph.node:
            raise ValueError(
                f"Expected a node feature {mask!r} as the mask. Received: node "
                f"features {sorted(graph.node)}."
            )
        positive_int("length", length)
        one_of("order", order, ORDERS)
        if order == "clusters":
            _check_clusters(graph)
        options = loader_options(shuffle, seed)
        optional(positive_int, "num_edge_types", num_edge_types)
        if mask is not None:
            rows = np.asarray(graph.node[mask], bool)
            rows = rows.reshape(-1, *[1] * (graph.label.ndim - 1))
            label = np.where(rows, graph.label, np.array(-1, graph.label.dtype))
            graph = graph.replace(label=label)
        kinds = int(graph.edge_type.max(initial=0)) + 1
        num_edge_types = num_edge_types or kinds
        parts, _ = with_edge_types([FlatGraphs.from_graphs([graph])], num_edge_types)
        composer = SequenceComposer(
            graph, length, order, plan, num_edge_types, options["seed"], shuffle
        )
        config = {"length": length, "order": order, "mask": mask}
        source = Source(
            parts,
            num_edge_types,
            composer.plan,
            configs=[config, composer.plan.get_config()],
            graph=graph,
        )
        super().__init__(source, composer, SequenceAssembler(composer), **options)

    def set_threshold(self, threshold: float) -> None:
        """Change the tiles of an `AttentionPlan`, from the next batch on.

        `ElasticTuner(loader.set_threshold)` calls this. Each threshold is one more
        compilation, the first time.

        Args:
            threshold: See `AttentionPlan`.
        """
        from keras_bandgnn.preprocessing.attention.attention_plan import AttentionPlan

        if not isinstance(self.plan, AttentionPlan):
            raise ValueError(
                "Expected plan=AttentionPlan(block_size=...) for tiles. "
                f"Received: plan={self.plan!r}."
            )
        self.plan = self.plan.replace(threshold=threshold, share=None)
        self.stop_threads()
        self.composer.set_plan(self.plan, self.epoch)
        # Without the batches that have been built already.
        self.begin()

    def predict(self, task: Task) -> np.ndarray:
        """Return a task's outputs for nodes, in the order of the graph's nodes.

        Args:
            task: Such as a `NodeClassifier`.

        Returns:
            [N, ...].
        """
        expected = "a task that predicts for nodes, such as a NodeClassifier"
        having("task", task, "predict_on_batch", expected)
        having("task", task, "backbone", expected)
        for part in self.parts:
            task.backbone.check(part)
        out = None
        for index in range(self.batches_per_epoch):
            (x, *_) = self.build(index, self.epoch)
            values = keras.ops.convert_to_numpy(task.predict_on_batch(x))
            sequence = int(x["graph"]["id"][0, 0])
            nodes = self.composer.at(self.epoch).nodes[sequence]
            if out is None:
                shape = (self.graph.num_nodes, *values.shape[2:])
                out = np.zeros(shape, values.dtype)
            out[nodes] = values[0, : len(nodes)]
        return out


@dataclasses.dataclass
class EpochSequences:
    """The sequences of an epoch.

    Attributes:
        nodes: The nodes of each sequence, ascending.
        loader: Loader of the graphs between them.
    """

    nodes: list[np.ndarray]
    loader: GraphLoader


class SequenceComposer(Composer):
    """Splits the nodes of a graph into sequences, each epoch anew.

    Args:
        graph: The graph.
        length: S, nodes of a sequence.
        order: "random" or "clusters".
        plan: A `Plan` or "auto".
        num_edge_types: P.
        seed: Of the orders.
        shuffle: Whether orders by clusters are rotated, and epochs differ.
    """

    item = "sequence"
    # Sequences have as many nodes, but other numbers of edges and tiles.
    fixed_shapes = False
    fixed_sizes = ("graph", "candidate", "node")
    has_one_shape = False

    def __init__(self, graph, length, order, plan, num_edge_types, seed, shuffle):
        self.graph, self.order, self.plan = graph, order, plan
        self.num_edge_types, self.seed, self.shuffle = num_edge_types, seed, shuffle
        self.count = self.length = -(-graph.num_nodes // length)
        self.differ = shuffle and self.length > 1
        # Edges by receiver, then sender. Not a sparse matrix of SciPy, which adds up
        # the entries of parallel edges.
        self._by_receiver = np.lexsort((graph.senders, graph.receivers))
        counts = np.bincount(graph.receivers, minlength=graph.num_nodes)
        self._edge_ptr = np.concatenate([[0], np.cumsum(counts)])
        self._budget = self._estimate()
        self._batchers: dict[str, DynamicBatcher] = {}
        self._lock = threading.RLock()
        self.set_plan(plan, 0)
        self.plan = self.at(0).loader.plan

    def set_plan(self, plan: Plan | str, epoch: int) -> None:
        """Change the plan; its budget is that of an epoch if it is new."""
        with self._lock:
            self.plan = plan
            # The budget of a plan is kept, so that its batches keep their shape.
            batcher = self._batchers.pop(str(plan), None)
            batcher = batcher or DynamicBatcher(1, budget=dict(self._budget))
            self._batchers[str(plan)] = self._batcher = batcher
            while len(self._batchers) > _CACHED_PLANS:
                del self._batchers[next(iter(self._batchers))]
            self._epochs: collections.OrderedDict = collections.OrderedDict()
            loader = self.at(epoch).loader
            self.sizes, self.budgets = loader.sizes, loader.budgets

    def at(self, epoch: int) -> EpochSequences:
        """Return the sequences of an epoch, and a loader of the graphs between them."""
        # The whole graph is the same in every epoch.
        epoch = epoch if self.length > 1 else 0
        with self._lock:
            if epoch not in self._epochs:
                nodes = self._sequences(epoch)
                parts = [self.subgraph(part) for part in nodes]
                loader = GraphLoader(
                    FlatGraphs.from_graphs(parts),
                    self._batcher,
                    self.plan,
                    shuffle=False,
                    num_edge_types=self.num_edge_types,
                )
                self._epochs[epoch] = EpochSequences(nodes, loader)
                while len(self._epochs) > _EPOCHS:
                    self._epochs.popitem(last=False)
            return self._epochs[epoch]

    def composition(self, epoch: int) -> list[Supergraph]:
        """Return the sequences of an epoch, by their numbers."""
        steps = self.at(epoch).loader.composition(0)
        return [
            sequence._replace(key=(self.seed, epoch, step))
            for step, sequence in enumerate(steps)
        ]

    def usage(self, supergraphs: Sequence[Supergraph]) -> dict[str, np.ndarray]:
        """Return the real and padded sizes of an epoch's steps; see `Loader.usage`."""
        _, epoch, _ = supergraphs[0].key
        return self.at(epoch).loader.composer.usage(supergraphs)

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def _sequences(self, epoch: int) -> list[np.ndarray]:
        """Return the nodes of each sequence of an epoch, ascending."""
        count = self.graph.num_nodes
        rng = np.random.default_rng((self.seed, epoch))
        if self.order == "random":
            order = rng.permutation(count)
        else:
            turn = int(rng.integers(count)) if self.shuffle else 0
            order = np.roll(np.arange(count), turn)
        return [np.sort(part) for part in np.array_split(order, self.length)]

    def _between(self, nodes: np.ndarray) -> np.ndarray:
        """Return ids of the edges among ascending nodes, by receiver and sender."""
        first = self._edge_ptr[nodes]
        counts = self._edge_ptr[nodes + 1] - first
        shift = first - (np.cumsum(counts) - counts)
        edge = self._by_receiver[np.arange(counts.sum()) + shift.repeat(counts)]
        inside = np.zeros(self.graph.num_nodes, bool)
        inside[nodes] = True
        return edge[inside[self.graph.senders[edge]]]

    def subgraph(self, nodes: np.ndarray) -> Graph:
        """Return the graph between some nodes, with all edges between them.

        Args:
            nodes: int [S], ascending.
        """
        graph = self.graph
        if len(nodes) == graph.num_nodes:
            return graph.replace(origin=np.asarray(nodes))
        edge = self._between(nodes)
        return Graph(
            len(nodes),
            np.searchsorted(nodes, graph.senders[edge]),
            np.searchsorted(nodes, graph.receivers[edge]),
            edge_type=graph.edge_type[edge],
            node={name: values[nodes] for name, values in graph.node.items()},
            edge={name: values[edge] for name, values in graph.edge.items()},
            context=graph.context,
            label=graph.label[nodes],
            label_level="node",
            origin=nodes,
            sets=graph.sets,
        )

    def _estimate(self) -> dict[str, int]:
        sizes = [len(self._between(nodes)) for nodes in self._sequences(0)[:_TRIED]]
        # Random sequences differ little.
        edges = int(1.1 * max(sizes)) + 64
        longest = -(-self.graph.num_nodes // self.length)
        return {
            "node": int(ceil64(longest + 1)),
            "edge": int(ceil64(edges)),
            "graph": 2,
        }


class SequenceAssembler(BatchAssembler):
    """Makes the batches of sequences.

    Args:
        composer: Has the sequences of each epoch.
    """

    def __init__(self, composer: SequenceComposer):
        self.composer = composer

    def build(self, supergraphs: Sequence[Supergraph], replicas: int) -> list[tuple]:
        """Build batches; see `BatchAssembler.build`."""
        _, epoch, _ = supergraphs[0].key
        return self.composer.at(epoch).loader.assembler.build(supergraphs, replicas)


def _check_clusters(graph: Graph) -> None:
    """Raise a ValueError unless each cluster's nodes are consecutive."""
    cluster = graph.node.get("cluster")
    if cluster is not None and cluster.ndim == 1 and (np.diff(cluster) >= 0).all():
        return
    received = "none" if cluster is None else "one that is not in ascending order"
    raise ValueError(
        "Expected a graph in the order of its clusters, with the node feature "
        f"'cluster', for order='clusters'. Received: {received}. Write graph = "
        "ClusterCompile()(graph), or order='random'."
    )
