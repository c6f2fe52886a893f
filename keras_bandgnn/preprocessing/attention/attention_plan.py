"""`AttentionPlan`: what a batch holds for the attention of graph transformers."""

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
from keras_bandgnn.planning.cost import Hardware
from keras_bandgnn.preprocessing.attention.reformation import Reformation, reform
from keras_bandgnn.primitives.base import Edges, pad
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.primitives.segment import Segment


class AttentionPlan(Plan):
    """Attention over single edges, or with some of them in dense tiles.

    Sparse and full attention read the edges and nodes of a batch and need no arrays of
    a plan. With `block_size` the edges inside chosen tiles of b by b nodes are computed
    as dense products (elastic computation reformation), for graphs that
    `ClusterCompile` ordered, one per supergraph: `StaticBatcher(2, "64")`.

    Args:
        block_size: b, or None for no tiles.
        threshold: Pairs of clusters below so many times the density of the graph
            become tiles, see `reform`.
        share: Instead of a threshold: as many of the best tiles as have `share` times
            as many entries as there are edges.
        least_fill: Instead of both: all tiles of which edges fill that share or more.
            `"auto"`: the share from which on a tile is faster than single edges by
            the constants of this machine (`bandgnn calibrate`), about 30 % on CPUs.
        rest: What becomes of edges of transferred pairs of clusters that no tile
            holds: `"keep"`, single edges, so that nothing is lost; or `"drop"`.

    Resources: `"tiles:b"`, tiles; `"tiles:b.rest"`, single edges.

    `x["plan"]["tiles:b"]` has `row` and `column`, int32 [G, T], the receiver and the
    sender block of each tile; `edge` int32 [G, T, b, b], the edge of each pair (row,
    column), E where there is none; `rest` int32 [G, R], the single edges, E where
    padded.

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
    ):
        self.block_size = None
        if block_size is not None:
            self.block_size = positive_int("block_size", block_size)
        super().__init__(Segment())
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
        return () if self.block_size is None else (f"tiles:{self.block_size}",)

    def replace(self, **changes) -> "AttentionPlan":
        """Returns the plan with other arguments."""
        changes.pop("filter", None)
        return AttentionPlan(**{**self.get_config()["attention"], **changes})

    def reform(self, senders, receivers, num_nodes: int, cluster) -> Reformation:
        """The tiles of one graph.

        Args:
            senders: int [E].
            receivers: int [E].
            num_nodes: N.
            cluster: int [N], ascending, or None without a threshold.
        """
        facts = (senders, receivers, num_nodes)
        if self.least_fill is not None:
            fill = self.least_fill
            fill = Hardware.current().tile_fill if fill == "auto" else fill
            return reform(*facts, block_size=self.block_size, least_fill=fill)
        if self.share is not None:
            number = int(self.share * len(senders) / self.block_size**2)
            return reform(*facts, block_size=self.block_size, num_tiles=number)
        if cluster is None:
            raise ValueError(
                "Expected the node feature 'cluster' for tiles by threshold. Received: "
                "none. Put ClusterCompile() before AttentionEdges(), or set `share`."
            )
        starts = np.searchsorted(cluster, np.arange(int(cluster[-1]) + 2))
        return reform(*facts, starts, self.block_size, self.threshold)

    def _single(self, made: Reformation) -> np.ndarray:
        """Edges that stay single edges, bool [E]."""
        if self.uncovered == "keep":
            return ~made.covered
        return ~made.covered & ~made.transferred

    def measure(self, part: FlatGraphs) -> dict[str, np.ndarray]:
        """Tiles and single edges of each graph, resource -> int64 [n]."""
        if self.block_size is None:
            return {}
        table = np.zeros((len(part), 2), np.int64)
        for index in range(len(part)):
            graph = part[index]
            attend, cluster = graph.edge.get("attend"), graph.node.get("cluster")
            sent, received = graph.senders, graph.receivers
            if attend is not None:
                sent, received = sent[attend > 0], received[attend > 0]
            made = self.reform(sent, received, graph.num_nodes, cluster)
            table[index] = len(made.tiles), self._single(made).sum()
        (key,) = self.keys
        return {key: table[:, 0], f"{key}.rest": table[:, 1]}

    def sizes(self, edges: Edges, graph_of_edge, num_graphs: int) -> dict:
        """Nothing that edges alone tell; see `measure`."""
        return {}

    def pack(self, edges: Edges, budget: Mapping[str, int], node=None, edge=None):
        """The arrays of a supergraph.

        Args:
            edges: Its edges.
            budget: Capacities by name.
            node: Its node features and `graph_id` [N], for tiles.
            edge: Its edge features [E], for tiles.
        """
        if self.block_size is None:
            return {}
        real = node["mask"]
        if node["graph_id"][real].any():
            raise ValueError(
                "Expected one graph per supergraph for tiles. Received: several. "
                "Use StaticBatcher(2, padding='64')."
            )
        chosen = np.arange(len(edges))
        if "attend" in edge:
            chosen = np.flatnonzero(edge["attend"][: len(edges)] > 0)
        sender, receiver = edges.sender[chosen], edges.receiver[chosen]
        cluster = node["cluster"][real] if "cluster" in node else None
        made = self.reform(sender, receiver, int(real.sum()), cluster)
        (key,) = self.keys
        size, none = self.block_size, budget["edge"]
        room = max(budget[key], 1)
        row, column = made.tiles.T.astype(np.int32)
        place = np.full((room, size, size), none, np.int32)
        inside = np.flatnonzero(made.covered)
        blocks = -(-edges.num_nodes // size)
        keys = made.tiles[:, 0].astype(np.int64) * blocks + made.tiles[:, 1]
        own = receiver[inside].astype(np.int64) // size * blocks
        tile = np.searchsorted(keys, own + sender[inside] // size)
        row, column = pad(row, room, 0, key), pad(column, room, 0, key)
        within = receiver[inside] % size, sender[inside] % size
        place[tile, *within] = chosen[inside]
        name = f"{key}.rest"
        rest = chosen[self._single(made)].astype(np.int32)
        rest = pad(rest, max(budget[name], 1), none, name)
        return {key: {"row": row, "column": column, "edge": place, "rest": rest}}

    def dropped(self, edges: Edges) -> np.ndarray:
        """Nothing is known to be left out from the edges alone, bool [E]."""
        return np.zeros(len(edges), bool)

    def get_config(self) -> dict:
        """Plain description; `AttentionPlan(**config["attention"])` is the plan."""
        return {
            "attention": {
                "block_size": self.block_size,
                "threshold": self.threshold,
                "share": self.share,
                "rest": self.uncovered,
                "least_fill": self.least_fill,
            }
        }

    @classmethod
    def from_config(cls, config: Mapping) -> "AttentionPlan":
        """Builds a plan from `get_config()`."""
        return cls(**config["attention"])

    def __hash__(self) -> int:
        return hash(tuple(self.get_config()["attention"].values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.get_config() == other.get_config()

    def __repr__(self) -> str:
        given = ", ".join(
            f"{k}={v!r}" for k, v in self.get_config()["attention"].items()
        )
        return f"AttentionPlan({given})" if self.block_size else "AttentionPlan()"
