"""`ClusterCompile`: nodes by a few large clusters, ordered inside to fill tiles."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import instance, one_of, optional, positive_int, seed_number
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.preprocessing.ordering.metis import line_up, parts
from keras_bandgnn.preprocessing.ordering.rcm import (
    links,
    positions,
    reverse_cuthill_mckee,
    rows_of,
)
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions

WITHIN = ("auto", "metis", "degree", "rcm")
_CPU = Path("/sys/devices/system/cpu")
_FALLBACK_L2 = 2**20
# The free natural number of the paper: 8 clusters for 6 MB and 64 channels.
_PER_CHANNEL = 1536
TILE_ROW = 2**32
# Fine parts of one tile leave half as many edges in full tiles as parts of eight.
_BLOCKS_PER_PART = 8


@dataclasses.dataclass(frozen=True)
class ClusterOrder:
    """An order of nodes in which clusters are contiguous.

    Attributes:
        order: int32 [N], the node that comes k-th, as `graph.subgraph` takes it.
        starts: int32 [k + 1], first place of each cluster, then N.
        within: How nodes of a cluster are ordered: `"metis"`, `"degree"` or `"rcm"`.
    """

    order: np.ndarray
    starts: np.ndarray
    within: str

    @property
    def cluster(self) -> np.ndarray:
        """Cluster of each place, int32 [N], ascending."""
        count = np.arange(self.starts.size - 1, dtype=np.int32)
        return np.repeat(count, np.diff(self.starts))


def cluster_order(
    graph: Graph,
    num_clusters: int,
    within: str = "auto",
    block_size: int = 16,
    seed: int = 0,
) -> ClusterOrder:
    """Return the nodes ordered by METIS clusters, for tiles that hold many edges.

    Clusters that share many edges come near each other. Inside a cluster:

    - `"metis"`: by smaller parts of about eight blocks of nodes, found by METIS in the
      cluster, linked ones near each other; in a part the nodes with most neighbours in
      the cluster come first.
    - `"degree"`: nodes with most neighbours first.
    - `"rcm"`: Reverse Cuthill-McKee of the cluster.
    - `"auto"`: the one of the three whose best tiles hold the most edges, as many tile
      entries as edges given.

    Args:
        graph: Any graph.
        num_clusters: Number of clusters; those that METIS leaves empty are left out.
        within: `"auto"`, `"metis"`, `"degree"` or `"rcm"`.
        block_size: b, nodes of a tile.
        seed: Of METIS.

    Raises:
        ImportError: If METIS is needed and `pymetis` is absent.

    Reference:
        Zhang et al. 2024 (TorchGT), Section III-C; Karypis and Kumar 1998.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [3, 3, 1])
    >>> made = cluster_order(graph, 1, within="degree")
    >>> made.order.tolist(), made.starts.tolist()
    ([1, 3, 0, 2], [0, 4])
    """
    instance("graph", graph, Graph, "a Graph")
    num_clusters = positive_int("num_clusters", num_clusters)
    one_of("within", within, WITHIN)
    block_size = positive_int("block_size", block_size)
    seed = seed_number("seed", seed)
    adjacency = links(graph)
    count = min(num_clusters, graph.num_nodes)
    _, cluster = np.unique(parts(adjacency, count, seed), return_inverse=True)
    count = int(cluster.max()) + 1
    cluster = line_up(adjacency, cluster, count)[cluster]
    sizes = np.bincount(cluster, minlength=count)
    starts = np.append(0, np.cumsum(sizes)).astype(np.int32)
    orders = {
        name: _inside(name, adjacency, cluster, starts, block_size, seed)
        for name in (WITHIN[1:] if within == "auto" else (within,))
    }

    def edges_held(name: str) -> int:
        place = positions(orders[name])
        ends = place[graph.senders], place[graph.receivers]
        _, counts = np.unique(tile_keys(*ends, block_size), return_counts=True)
        counts.sort()
        return int(counts[-max(graph.num_edges // block_size**2, 1) :].sum())

    best = within if within != "auto" else max(orders, key=edges_held)
    return ClusterOrder(orders[best].astype(np.int32), starts, best)


def tile_keys(senders, receivers, block_size: int) -> np.ndarray:
    """Return a key of each edge's tile of b by b, int64 [E], sorted by receiver block.

    It is receiver block * `TILE_ROW` + sender block.
    """
    row = np.asarray(receivers, np.int64) // block_size
    return row * TILE_ROW + np.asarray(senders, np.int64) // block_size


def _inside(within: str, adjacency, cluster, starts, block_size, seed) -> np.ndarray:
    """Return the order by cluster, then as `within` says."""
    if within == "degree":
        return np.lexsort((-np.diff(adjacency.indptr), cluster))
    from scipy.sparse import csr_array

    row, column = rows_of(adjacency), adjacency.indices
    same = cluster[row] == cluster[column]
    inner = csr_array(
        (adjacency.data[same], (row[same], column[same])), shape=adjacency.shape
    )
    inner.sort_indices()
    if within == "rcm":
        return np.lexsort((positions(reverse_cuthill_mckee(inner)), cluster))
    by_cluster = np.argsort(cluster, kind="stable")
    sorted_inner = inner[by_cluster][:, by_cluster]
    part, num_parts = np.empty(cluster.size, np.int64), 0
    for first, last in zip(starts[:-1], starts[1:], strict=True):
        count = -(-int(last - first) // (_BLOCKS_PER_PART * block_size))
        block = sorted_inner[first:last, first:last]
        part[by_cluster[first:last]] = num_parts + parts(block, count, seed)
        num_parts += count
    place = line_up(inner, part, num_parts)
    return np.lexsort((-np.diff(inner.indptr), place[part], cluster))


def l2_cache_bytes() -> int:
    """Return the first core's L2 cache in bytes, or 1 MiB if unknown."""
    for folder in sorted(_CPU.glob("cpu0/cache/index*")):
        try:
            level, size = ((folder / name).read_text() for name in ("level", "size"))
            if int(level) == 2:
                digits = size.strip().rstrip("KM")
                return int(digits) * {"K": 2**10, "M": 2**20}.get(size.strip()[-1], 1)
        except (OSError, ValueError):
            continue
    return _FALLBACK_L2


def num_clusters_for(hidden_dim: int, l2_bytes: int | None = None) -> int:
    """Return the number of clusters for which a pair of them fits the cache.

    k = floor(sqrt(L2 bytes / (1536 * hidden_dim))), at least 1.

    Args:
        hidden_dim: d, width of the states.
        l2_bytes: Size of the second-level cache; that of this machine when omitted.

    Reference:
        Zhang et al. 2024 (TorchGT), Section III-D.

    Example:
    >>> num_clusters_for(64, 6 * 2**20)
    8
    """
    hidden_dim = positive_int("hidden_dim", hidden_dim)
    if l2_bytes is None:
        l2_bytes = l2_cache_bytes()
    l2_bytes = positive_int("l2_bytes", l2_bytes)
    return max(1, math.isqrt(l2_bytes // (_PER_CHANNEL * hidden_dim)))


_LEAST_BLOCKS = 4


@serializable
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
        **kwargs: Unpack[LayerOptions],
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
        """Return the reordered graph with the node feature `"cluster"`."""
        count = self.num_clusters
        if count is None:
            limit = graph.num_nodes // (_LEAST_BLOCKS * self.block_size)
            count = num_clusters_for(self.hidden_dim, self.l2_bytes)
            count = max(1, min(count, limit))
        result = cluster_order(graph, count, self.within, self.block_size)
        graph = graph.subgraph(result.order)
        return graph.replace(node={**graph.node, "cluster": result.cluster})
