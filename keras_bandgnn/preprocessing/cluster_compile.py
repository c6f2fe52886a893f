"""`ClusterCompile`: reorder each graph by clusters, for tiles that hold many edges."""

import keras

from keras_bandgnn.checks import one_of, optional, positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.clusters import (
    WITHIN,
    cluster_order,
    num_clusters_for,
)
from keras_bandgnn.preprocessing.graph_layer import GraphLayer

_LEAST_BLOCKS = 4


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ClusterCompile(GraphLayer):
    """Reorders the nodes of a graph so that clusters are contiguous.

    Every field that belongs to nodes moves with them, `graph.origin` keeps the
    permutation, and the node feature `"cluster"`, int32 [N], ascending, says which
    cluster a node is in (it replaces a feature of that name). `reform` finds the dense
    tiles of a graph in this order.

    Args:
        num_clusters: k, or None for `num_clusters_for(hidden_dim, l2_bytes)`, but so
            that a cluster has four blocks or more.
        block_size: b, nodes of a tile.
        within: Order inside clusters: `"auto"`, `"metis"`, `"degree"` or `"rcm"`, see
            `cluster_order`.
        hidden_dim: Width of the states, for `num_clusters=None`.
        l2_bytes: Size of the second-level cache, for `num_clusters=None`. That of the
            machine when omitted: the order then depends on the machine.

    Raises:
        ImportError: When a graph is compiled and pymetis is absent.

    Reference:
        Zhang et al. 2024 (TorchGT), Sections III-C and III-D.

    Example:
    >>> compiled = ClusterCompile(1, within="degree")(Graph(4, [0, 1, 2], [3, 3, 1]))
    >>> compiled.origin.tolist(), compiled.node["cluster"].tolist()
    ([1, 3, 0, 2], [0, 0, 0, 0])
    """

    def __init__(
        self,
        num_clusters: int | None = None,
        block_size: int = 16,
        within: str = "auto",
        hidden_dim: int = 64,
        l2_bytes: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        num_clusters = optional(positive_int, "num_clusters", num_clusters)
        l2_bytes = optional(positive_int, "l2_bytes", l2_bytes)
        self.num_clusters = num_clusters
        self.block_size = positive_int("block_size", block_size)
        self.within = one_of("within", within, WITHIN)
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.l2_bytes = l2_bytes

    def call(self, graph: Graph) -> Graph:
        """Returns the reordered graph with the node feature `"cluster"`."""
        count = self.num_clusters
        if count is None:
            most = graph.num_nodes // (_LEAST_BLOCKS * self.block_size)
            count = num_clusters_for(self.hidden_dim, self.l2_bytes)
            count = max(1, min(count, most))
        made = cluster_order(graph, count, self.within, self.block_size)
        graph = graph.subgraph(made.order)
        return graph.replace(node={**graph.node, "cluster": made.cluster})

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_clusters": self.num_clusters,
            "block_size": self.block_size,
            "within": self.within,
            "hidden_dim": self.hidden_dim,
            "l2_bytes": self.l2_bytes,
        }
