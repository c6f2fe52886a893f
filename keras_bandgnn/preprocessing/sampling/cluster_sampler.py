"""`ClusterSampler`: clusters with few edges between them."""

import numpy as np

from keras_bandgnn.checks import optional, positive_int, seed_number, string
from keras_bandgnn.preprocessing.ordering.metis import parts
from keras_bandgnn.preprocessing.ordering.rcm import links
from keras_bandgnn.preprocessing.sampling.sampled_graph import (
    SampledGraph,
    Subgraph,
    node_ids,
    ranges,
)
from keras_bandgnn.preprocessing.sampling.sampler import Sampler


class ClusterSampler(Sampler):
    """Trains on a few clusters at a time, with all edges within and between them.

    METIS cuts the graph into clusters of about equal size with few edges between them.
    Every epoch groups them anew, so that each edge is in a batch at times. A batch is a
    graph of its own: degrees are those in the batch, and nodes lack the neighbours in
    other clusters, so gradients are biased. Suits any backbone.

    Args:
        num_clusters: Number of clusters of the graph.
        batch_size: Clusters per step and device.
        feature: Node feature, an id from 0, that names the cluster of each node
            instead of METIS, such as `"cluster"` after `ClusterCompile`.
        seed: Of the random choices of METIS.

    Raises:
        ImportError: From `fit`, without `pymetis` or `feature`.
        ValueError: For arguments out of range; from `fit` for fewer nodes than
            clusters, or a feature that is missing or no id.

    Reference:
        Chiang et al. 2019 (Cluster-GCN), https://arxiv.org/abs/1905.07953, Algorithm 1.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     4, [0, 1, 2, 3], [1, 0, 3, 2], node={"kind": [0, 0, 1, 1]},
    ...     label=[0, 0, 1, 1], label_level="node",
    ... )
    >>> task = kb.models.NodeClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> sampler = ClusterSampler(2, batch_size=1, feature="kind")
    >>> len(task.loader(graph, sampler=sampler))
    2
    """

    def __init__(
        self,
        num_clusters: int,
        batch_size: int = 1,
        feature: str | None = None,
        seed: int = 0,
    ):
        self.num_clusters = positive_int("num_clusters", num_clusters)
        self.batch_size = positive_int("batch_size", batch_size)
        self.feature = optional(string, "feature", feature)
        self.seed = seed_number("seed", seed)

    def items(self, graph: SampledGraph, targets: np.ndarray) -> np.ndarray:
        """Return the clusters that have nodes to train on."""
        cluster, _, _ = self.remembered(graph, self._members)
        return np.unique(cluster[targets])

    def _members(self, graph: SampledGraph) -> tuple:
        """Return the cluster of each node, nodes by cluster, and the first of each."""
        cluster = self._clusters(graph)
        order = np.argsort(cluster, kind="stable")
        starts = np.searchsorted(cluster[order], np.arange(cluster.max() + 2))
        return cluster, order, starts

    def _clusters(self, graph: SampledGraph) -> np.ndarray:
        """Return the cluster of each node, int64 [N]."""
        if self.feature is not None:
            cluster = node_ids(graph, self.feature, "feature")
            if cluster.max() >= self.num_clusters:
                raise ValueError(
                    f"Expected ids in [0, {self.num_clusters}) in node"
                    f"[{self.feature!r}], as num_clusters={self.num_clusters}. "
                    f"Received: {cluster.max()}. Raise num_clusters."
                )
            return cluster
        if self.num_clusters > graph.num_nodes:
            raise ValueError(
                "Expected at most as many clusters as nodes. Received: num_clusters="
                f"{self.num_clusters}, {graph.num_nodes} nodes."
            )
        return np.asarray(parts(links(graph), self.num_clusters, self.seed), np.int64)

    def subgraph(
        self,
        graph: SampledGraph,
        items: np.ndarray,
        rng: np.random.Generator,
        rescale: bool = False,
    ) -> Subgraph:
        """Return the nodes of some clusters, and the edges between them.

        Args:
            graph: The graph.
            items: Numbers of the items of the batch.
            rng: Generator of random numbers.
            rescale: Without effect: clusters have all of their edges.
        """
        _, order, starts = self.remembered(graph, self._members)
        counts = starts[items + 1] - starts[items]
        return graph.induced(np.sort(order[ranges(starts[items], counts)]))

    def label_weight(self, graph: SampledGraph, groups: int) -> float:
        """Return the chance of a label: each comes once per epoch."""
        del graph
        return 1.0 / groups

    def bound(self, graph: SampledGraph) -> tuple[list[int], list[int]]:
        """Return the most nodes and edges of a batch."""
        _, _, starts = self.remembered(graph, self._members)
        largest = np.sort(np.diff(starts))[::-1]
        return [int(largest[: self.batch_size].sum())], [graph.num_edges]
