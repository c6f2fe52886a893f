"""`SequenceLoader`: a large graph as sequences of some of its nodes."""

import keras
import numpy as np

from keras_bandgnn.checks import (
    boolean,
    having,
    one_of,
    optional,
    positive_int,
    seed_number,
    string,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.optional import optional_import
from keras_bandgnn.preprocessing.batching.batcher import ceil64
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.primitives.plan import Plan

ORDERS = ("random", "clusters")
# Sequences from which the number of edges is estimated.
_TRIED = 16
# Plans whose budgets are kept.
_KEPT = 64


class SequenceLoader(keras.utils.PyDataset):
    """Batches of one sequence of nodes each, with the edges between them.

    Every epoch splits the nodes of a graph into new sequences of equal length; each
    node is in one of them. Full attention on a sequence costs its length squared
    instead of the size of the graph squared. All batches have one shape, unless a
    sequence has more edges than there is room for, which costs one more compilation.

    Give it to `fit` and `evaluate` of a `NodeClassifier` in place of the graph;
    `predict` puts the rows of all sequences together.

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
        super().__init__()
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
        self.length = positive_int("length", length)
        self.order = one_of("order", order, ORDERS)
        if order == "clusters":
            _check_clusters(graph)
        self.plan, self.shuffle = plan, boolean("shuffle", shuffle)
        self.seed = seed_number("seed", seed)
        optional(positive_int, "num_edge_types", num_edge_types)
        if mask is not None:
            rows = np.asarray(graph.node[mask], bool)
            rows = rows.reshape(-1, *[1] * (graph.label.ndim - 1))
            label = np.where(rows, graph.label, np.array(-1, graph.label.dtype))
            graph = graph.replace(label=label)
        self.graph = graph
        kinds = int(graph.edge_type.max(initial=0)) + 1
        self.num_edge_types = num_edge_types or kinds
        # Edges by receiver, then sender. Not a sparse matrix of SciPy, which adds up
        # the entries of parallel edges.
        self._by_receiver = np.lexsort((graph.senders, graph.receivers))
        counts = np.bincount(graph.receivers, minlength=graph.num_nodes)
        self._edge_ptr = np.concatenate([[0], np.cumsum(counts)])
        self.epoch = 0
        self._budget = self._estimate()
        self._batchers: dict[str, DynamicBatcher] = {}
        self._start()

    def __len__(self) -> int:
        return -(-self.graph.num_nodes // self.length)

    def _sequences(self, epoch: int) -> list[np.ndarray]:
        """Return the nodes of each sequence of an epoch, ascending."""
        count = self.graph.num_nodes
        rng = np.random.default_rng((self.seed, epoch))
        if self.order == "random":
            order = rng.permutation(count)
        else:
            turn = int(rng.integers(count)) if self.shuffle else 0
            order = np.roll(np.arange(count), turn)
        return [np.sort(part) for part in np.array_split(order, len(self))]

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
        )

    def _estimate(self) -> dict[str, int]:
        sizes = [len(self._between(nodes)) for nodes in self._sequences(0)[:_TRIED]]
        # Random sequences differ little.
        edges = int(1.1 * max(sizes)) + 64
        longest = -(-self.graph.num_nodes // len(self))
        return {
            "node": int(ceil64(longest + 1)),
            "edge": int(ceil64(edges)),
            "graph": 2,
        }

    def _start(self) -> None:
        parts = [self.subgraph(nodes) for nodes in self._sequences(self.epoch)]
        # The budget of a plan is kept, so that its batches keep their shape.
        batcher = self._batchers.pop(str(self.plan), None)
        batcher = batcher or DynamicBatcher(1, budget=dict(self._budget))
        self._batchers[str(self.plan)] = batcher
        while len(self._batchers) > _KEPT:
            del self._batchers[next(iter(self._batchers))]
        self._loader = GraphLoader(
            FlatGraphs.from_graphs(parts),
            batcher,
            self.plan,
            shuffle=False,
            num_edge_types=self.num_edge_types,
        )
        self._nodes = [part.origin for part in parts]
        self._whole = None

    def __getitem__(self, index: int):
        if len(self) > 1:
            return self._loader[index]
        # The whole graph is the same in every epoch.
        if self._whole is None:
            self._whole = self._loader[index]
        return self._whole

    def on_epoch_end(self) -> None:
        """Split the nodes into new sequences."""
        if self.shuffle:
            self.epoch += 1
            if len(self) > 1:
                self._start()

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
        self._start()

    def to_tf_data(self):
        """Return a `tf.data.Dataset` of the batches; each pass over it is an epoch.

        Numbers of edges and tiles may differ from batch to batch, as its signature
        says. `fit` and `evaluate` of tasks use it on TensorFlow.
        """
        tf = optional_import("tensorflow", "keras-bandgnn[tensorflow]", "this data set")

        def spec(array, path):
            shape = list(array.shape)
            if "edge" in path or "plan" in path:
                shape[1] = None
            return tf.TensorSpec(shape, array.dtype)

        def specs(tree, path=()):
            if isinstance(tree, dict):
                return {k: specs(v, (*path, k)) for k, v in tree.items()}
            return spec(tree, path)

        passes = []

        def batches():
            if passes:
                self.on_epoch_end()
            passes.append(None)
            for index in range(len(self)):
                yield self[index]

        dataset = tf.data.Dataset.from_generator(
            batches, output_signature=tuple(specs(part) for part in self[0])
        )
        return dataset.apply(tf.data.experimental.assert_cardinality(len(self)))

    def check(self, task) -> None:
        """Raise a ValueError if the graph lacks what a task's backbone reads."""
        for part in self._loader.parts:
            task.backbone.check(part)

    def predict(self, task) -> np.ndarray:
        """Return a task's outputs for nodes, in the order of the graph's nodes.

        Args:
            task: Such as a `NodeClassifier`.

        Returns:
            [N, ...].
        """
        expected = "a task that predicts for nodes, such as a NodeClassifier"
        having("task", task, "predict_on_batch", expected)
        self.check(having("task", task, "backbone", expected))
        out = None
        for index in range(len(self)):
            (x, *_) = self[index]
            values = keras.ops.convert_to_numpy(task.predict_on_batch(x))
            graph = int(x["graph"]["id"][0, 0])
            nodes = self._nodes[graph]
            if out is None:
                shape = (self.graph.num_nodes, *values.shape[2:])
                out = np.zeros(shape, values.dtype)
            out[nodes] = values[0, : len(nodes)]
        return out


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
