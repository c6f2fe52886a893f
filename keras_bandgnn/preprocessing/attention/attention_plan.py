"""`AttentionPlan`: the arrays of a batch for the attention of graph transformers."""

from collections.abc import Mapping

import numpy as np

from keras_bandgnn.checks import (
    non_negative_number,
    one_of,
    optional,
    positive_int,
    positive_number,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.preprocessing.attention.reformation import Reformation, reform
from keras_bandgnn.primitives.edges import Edges, pad
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.primitives.tiles import Tiles

# Measured: 0.29 on two CPU cores, 0.33 on an H200.
_FILL = 0.3


class AttentionPlan(Plan):
    """Attention over single edges, or with some of them in dense tiles.

    Sparse and full attention read the edges and nodes of a batch and need no arrays of
    a plan. With `block_size` the edges inside chosen tiles of b by b nodes are computed
    as dense products (elastic computation reformation), for graphs that
    `ClusterCompile` ordered, one per supergraph: `StaticBatcher(1, "64")`.

    Args:
        block_size: b, or None for no tiles.
        threshold: At least 0. A pair of clusters whose density is below `threshold`
            times that of the graph becomes tiles, see `reform`.
        share: Instead of a threshold: the best tiles, whose entries number
            `share`, at least 0, times the edges.
        least_fill: Instead of both: all tiles of which edges fill at least that share.
            `"auto"`: 0.3, the share above which a tile is faster than single edges.
        rest: What becomes of edges of transferred pairs of clusters that no tile
            holds: `"keep"`, single edges, so that nothing is lost; or `"drop"`.
        filter: Graphs to train on, see `Plan`.

    Its one key is that of `Tiles`, if there are any, and it has no primitives.

    Reference:
        Zhang et al. 2024 (TorchGT), section III-D.

    Example:
    >>> AttentionPlan(block_size=16, share=1.0).get_config()["attention"]["share"]
    1.0
    """

    def __init__(
        self,
        block_size: int | None = None,
        threshold: float = 1.0,
        share: float | None = None,
        rest: str = "keep",
        least_fill: float | str | None = None,
        filter: Mapping[str, int] | None = None,
    ):
        self.block_size = optional(positive_int, "block_size", block_size)
        self._assign((), None, None, filter)
        self.threshold = non_negative_number("threshold", threshold)
        self.share = optional(non_negative_number, "share", share)
        if isinstance(least_fill, str):
            one_of("least_fill", least_fill, ("auto",))
        else:
            least_fill = optional(positive_number, "least_fill", least_fill)
        self.least_fill = least_fill
        self.uncovered = one_of("rest", rest, ("keep", "drop"))
        # Tiles depend on the clusters of the nodes.
        self.reads_nodes = self.block_size is not None

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the arrays in `x["plan"]`."""
        return () if self.block_size is None else (Tiles(self.block_size).key(),)

    def replace(self, **changes: object) -> "AttentionPlan":
        """Return the plan with other arguments.

        Args:
            **changes: Arguments of the constructor; `schedule` may be None alone.
        """
        schedule = changes.pop("schedule", None)
        if schedule is not None:
            raise ValueError(
                "Expected no schedule for an AttentionPlan, whose edges all count in "
                f"every layer. Received: schedule={schedule!r}. Set schedule=None."
            )
        return AttentionPlan(**{**self.get_config()["attention"], **changes})

    def reform(
        self,
        senders: np.ndarray,
        receivers: np.ndarray,
        num_nodes: int,
        cluster: np.ndarray | None,
    ) -> Reformation:
        """The tiles of one graph.

        Args:
            senders: int [E].
            receivers: int [E].
            num_nodes: N.
            cluster: int [N], ascending, or None without a threshold.
        """
        graph, size = (senders, receivers, num_nodes), self.block_size
        if self.least_fill is not None:
            fill = _FILL if self.least_fill == "auto" else self.least_fill
            return reform(*graph, block_size=size, least_fill=fill)
        if self.share is not None:
            number = int(self.share * len(senders) / size**2)
            return reform(*graph, block_size=size, num_tiles=number)
        if cluster is None:
            raise ValueError(
                "Expected the node feature 'cluster' for tiles by threshold. Received: "
                "none. Put ClusterCompile() before AttentionEdges(), or set `share`."
            )
        starts = np.searchsorted(cluster, np.arange(int(cluster[-1]) + 2))
        return reform(*graph, starts, size, self.threshold)

    def _single(self, tiling: Reformation) -> np.ndarray:
        """Edges that stay single edges, bool [E]."""
        if self.uncovered == "keep":
            return ~tiling.covered
        return ~tiling.covered & ~tiling.transferred

    def measure(self, graphs: FlatGraphs, num_types: int) -> dict[str, np.ndarray]:
        """Tiles and single edges of each graph, resource -> int64 [n]."""
        del num_types
        if self.block_size is None:
            return {}
        table = np.zeros((len(graphs), 2), np.int64)
        for index in range(len(graphs)):
            graph = graphs[index]
            attend, cluster = graph.edge.get("attend"), graph.node.get("cluster")
            sent, received = graph.senders, graph.receivers
            if attend is not None:
                sent, received = sent[attend > 0], received[attend > 0]
            tiling = self.reform(sent, received, graph.num_nodes, cluster)
            table[index] = len(tiling.tiles), self._single(tiling).sum()
        (key,) = self.keys
        return {key: table[:, 0], f"{key}.rest": table[:, 1]}

    def _tiling(
        self, edges: Edges, node: Mapping, edge: Mapping
    ) -> tuple[Reformation, np.ndarray]:
        """The tiles of a supergraph, and int [e], the edges that are attended to."""
        real = node["mask"]
        if node["graph_id"][real].any():
            raise ValueError(
                "Expected one graph per supergraph for tiles. Received: several. "
                "Use StaticBatcher(1, padding='64')."
            )
        index = np.arange(len(edges))
        if "attend" in edge:
            index = np.flatnonzero(edge["attend"][: len(edges)] > 0)
        sender, receiver = edges.sender[index], edges.receiver[index]
        cluster = node["cluster"][real] if "cluster" in node else None
        return self.reform(sender, receiver, int(real.sum()), cluster), index

    def pack(
        self,
        edges: Edges,
        budget: Mapping[str, int],
        node: Mapping[str, np.ndarray] | None = None,
        edge: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, dict]:
        """The arrays of a supergraph; see `Plan.pack`."""
        if self.block_size is None:
            return {}
        tiling, index = self._tiling(edges, node, edge)
        sender, receiver = edges.sender[index], edges.receiver[index]
        (key,) = self.keys
        size, none = self.block_size, budget["edge"]
        room = max(budget[key], 1)
        row, column = tiling.tiles.T.astype(np.int32)
        place = np.full((room, size, size), none, np.int32)
        inside = np.flatnonzero(tiling.covered)
        blocks = -(-edges.num_nodes // size)
        keys = tiling.tiles[:, 0].astype(np.int64) * blocks + tiling.tiles[:, 1]
        pair = receiver[inside].astype(np.int64) // size * blocks
        pair += sender[inside] // size
        tile = np.searchsorted(keys, pair)
        row, column = pad(row, room, 0, key), pad(column, room, 0, key)
        within = receiver[inside] % size, sender[inside] % size
        place[tile, *within] = index[inside]
        name = f"{key}.rest"
        outside = index[self._single(tiling)].astype(np.int32)
        outside = pad(outside, max(budget[name], 1), none, name)
        return {key: {"row": row, "column": column, "edge": place, "rest": outside}}

    def dropped(
        self,
        edges: Edges,
        node: Mapping[str, np.ndarray] | None = None,
        edge: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Edges of transferred clusters outside the tiles with rest="drop", bool [E].

        Args:
            edges: The edges of a supergraph.
            node: Its `x["node"]`, which tiles depend on.
            edge: Its `x["edge"]`, likewise.
        """
        dropped = np.zeros(len(edges), bool)
        if self.block_size is not None and self.uncovered == "drop":
            tiling, index = self._tiling(edges, node, edge)
            dropped[index] = ~tiling.covered & ~self._single(tiling)
        return dropped

    def get_config(self) -> dict:
        """Plain description; `AttentionPlan(**config["attention"])` is the plan."""
        options = {
            "block_size": self.block_size,
            "threshold": self.threshold,
            "share": self.share,
            "rest": self.uncovered,
            "least_fill": self.least_fill,
        }
        if self.filter:
            options["filter"] = dict(self.filter)
        return {"attention": options}

    @classmethod
    def from_config(cls, config: Mapping) -> "AttentionPlan":
        """Build a plan from `get_config()`."""
        return cls(**config["attention"])

    def __hash__(self) -> int:
        return hash((self.block_size, self.threshold, self.share, self.uncovered))

    def __repr__(self) -> str:
        options = self.get_config()["attention"]
        if self.block_size is None:
            options = {k: v for k, v in options.items() if k == "filter"}
        shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"AttentionPlan({shown})"
