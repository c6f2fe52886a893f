"""`NodePairs`, and the nodes that pairs of a graph may join."""

import dataclasses
import logging
from collections.abc import Iterable

import numpy as np

from keras_bandgnn.arrays import (
    INT32_MAX,
    TIME,
    checked_ids,
    checked_times,
    frozen,
)
from keras_bandgnn.checks import refuse
from keras_bandgnn.data.identity import pair_keys, without_types
from keras_bandgnn.graph import EdgeSet, Graph, edge_sets

FIELDS = ("senders", "receivers", "types")
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class NodePairs:
    """Pairs of nodes that are, or are not, joined by an edge.

    Attributes:
        senders: int32 [Q], first node of each pair.
        receivers: int32 [Q], second node of each pair.
        types: int32 [Q], edge type (relation) of each pair; all 0 if omitted.
        edge_set: (source set, relation, target set) if senders are numbered as the rows
            of the source set, and receivers as those of the target set; None if both
            are numbered as the nodes of the graph. `in_graph` converts.
        time: int64 [Q], time of each pair, in the unit of the edges' times; None for
            pairs without.

    Raises:
        ValueError: For arrays of other shapes, ids below 0, or times that are no
            integers.

    Example:
    >>> pairs = NodePairs([0, 1], [2, 2])
    >>> len(pairs), pairs.types.tolist()
    (2, [0, 0])
    """

    senders: np.ndarray
    receivers: np.ndarray
    types: np.ndarray | None = None
    edge_set: EdgeSet | None = None
    time: np.ndarray | None = None

    def __post_init__(self):
        senders, receivers = (
            checked_ids(name, getattr(self, name), INT32_MAX, "2**31 - 1")
            for name in ("senders", "receivers")
        )
        types = np.zeros(len(senders), np.int32)
        if self.types is not None:
            types = checked_ids("types", self.types, INT32_MAX, "2**31 - 1")
        if not len(senders) == len(receivers) == len(types):
            raise ValueError(
                "Expected as many `senders` as `receivers` and `types`. Received: "
                f"{len(senders)}, {len(receivers)} and {len(types)}."
            )
        for name, ids in zip(FIELDS, (senders, receivers, types), strict=True):
            object.__setattr__(self, name, ids)
        if self.time is not None:
            time = frozen(checked_times("time", self.time))
            if len(time) != len(senders):
                raise ValueError(
                    "Expected one `time` for each pair. Received: "
                    f"{len(time)} times of {len(senders)} pairs."
                )
            object.__setattr__(self, "time", time)
        object.__setattr__(self, "edge_set", edge_set_name(self.edge_set))

    def __len__(self) -> int:
        return len(self.senders)

    def take(self, index: np.ndarray | slice) -> "NodePairs":
        """Return some of the pairs.

        Args:
            index: int or bool [n], or a slice.
        """
        time = None if self.time is None else self.time[index]
        columns = (getattr(self, name)[index] for name in FIELDS)
        return NodePairs(*columns, self.edge_set, time)

    def reversed(self) -> "NodePairs":
        """Return the pairs with their nodes exchanged."""
        if self.edge_set is not None and self.edge_set[0] != self.edge_set[2]:
            expected = "pairs of one node set, or numbered as the nodes of the graph"
            refuse("pairs", expected, self.edge_set, "Use pairs.in_graph(graph).")
        ends = self.receivers, self.senders
        return NodePairs(*ends, self.types, self.edge_set, self.time)

    def in_graph(self, graph: Graph) -> "NodePairs":
        """Return the pairs numbered as the nodes of a graph.

        Args:
            graph: A graph with the edge set of the pairs.
        """
        return LinkEnds(graph, self.edge_set).read("pairs", self)

    @classmethod
    def concatenate(cls, parts: Iterable["NodePairs"]) -> "NodePairs":
        """Return the pairs of several parts, one after the other."""
        parts = list(parts)
        names = {part.edge_set for part in parts}
        if len(names) > 1:
            refuse("parts", "pairs of one edge set", names)
        timed = [part.time is not None for part in parts if len(part)]
        if any(timed) and not all(timed):
            refuse("parts", "pairs that all have times, or none", timed)
        columns = (np.concatenate([getattr(p, n) for p in parts]) for n in FIELDS)
        time = None
        if any(timed):
            time = np.concatenate([p.time for p in parts if len(p)])
        return cls(*columns, *names, time=time)

    @classmethod
    def of_edges(cls, graph: Graph) -> "NodePairs":
        """Return the edges of a graph as pairs, numbered as its nodes."""
        ends = graph.senders, graph.receivers
        return cls(*ends, graph.edge_type, time=graph.edge.get(TIME))

    def without_time(self) -> "NodePairs":
        """Return the pairs without their times."""
        if self.time is None:
            return self
        return dataclasses.replace(self, time=None)


def edge_set_name(edge_set) -> EdgeSet | None:
    """Return an argument `edge_set` as a tuple, or None.

    Raises:
        ValueError: Unless it names a source set, a relation and a target set.
    """
    if edge_set is None:
        return None
    names = tuple(edge_set) if isinstance(edge_set, list | tuple) else ()
    if len(names) != 3 or not all(isinstance(name, str) for name in names):
        refuse("edge_set", "(source set, relation, target set), or None", edge_set)
    return names


def as_pairs(name: str, pairs, num_nodes: int, num_types: int | None = None):
    """Return pairs of nodes of a graph, or raise a ValueError.

    Args:
        name: The argument, for errors.
        pairs: `NodePairs`, or int [Q, 2] or [Q, 3] of sender, receiver and type.
        num_nodes: Nodes of the graph.
        num_types: Types that a model knows; None for any.
    """
    if not isinstance(pairs, NodePairs):
        array = np.asarray(pairs) if isinstance(pairs, list | np.ndarray) else None
        if array is None or array.ndim != 2 or array.shape[1] not in (2, 3):
            shape = type(pairs).__name__ if array is None else f"shape {array.shape}"
            raise ValueError(
                f"Expected `{name}` to be NodePairs, or an array [Q, 2] or [Q, 3] of "
                f"sender, receiver and type. Received: {name} of {shape}. Write "
                "NodePairs(senders, receivers, types)."
            )
        columns = [checked_ids(name, c, INT32_MAX, "2**31 - 1") for c in array.T]
        pairs = NodePairs(*columns)
    if pairs.edge_set is not None:
        raise ValueError(
            f"Expected `{name}` numbered as the nodes of the graph. Received: rows of "
            f"the node sets of {pairs.edge_set}. Pass edge_set={pairs.edge_set}, or "
            "pairs.in_graph(graph)."
        )
    largest = max(
        int(pairs.senders.max(initial=-1)), int(pairs.receivers.max(initial=-1))
    )
    if largest >= num_nodes:
        raise ValueError(
            f"Expected `{name}` with node ids in [0, {num_nodes}), as the graph has "
            f"{num_nodes} nodes. Received: node {largest}."
        )
    kind = int(pairs.types.max(initial=0))
    if num_types is not None and kind >= num_types:
        raise ValueError(
            f"Expected `{name}` with types in [0, {num_types}), as "
            f"num_relations={num_types}. Received: type {kind}. Raise num_relations."
        )
    return pairs


def is_undirected(pairs: NodePairs, num_nodes: int) -> bool:
    """Return whether the reverse of every pair is a pair of the same type.

    Args:
        pairs: Edges of a graph.
        num_nodes: Nodes of the graph.
    """
    pairs = pairs.take(pairs.senders != pairs.receivers)
    keys, back = (pair_keys(p, num_nodes) for p in (pairs, pairs.reversed()))
    return len(keys) > 0 and bool(np.isin(back, keys).all())


def warn_of_units(name: str, times, edge_times) -> None:
    """Warn if the times of pairs are likely of another unit than those of edges.

    Pairs in milliseconds are later than all edges in seconds, so that no check of
    times would say that the edges give them away.

    Args:
        name: The argument with the pairs, for the warning.
        times: int64 [Q], times of pairs to predict, or None.
        edge_times: int64 [E], times of the messages, or None.
    """
    if times is None or edge_times is None or not len(times) or not len(edge_times):
        return
    first, last = int(edge_times.min()), int(edge_times.max())
    if int(times.min()) - last > 100 * (last - first) > 0:
        _LOG.warning(
            "The first of `%s` is of time %d, and the edges are of %d to %d: the gap "
            "is over 100 times as long as their history. Times of pairs and of edges "
            "have one unit, such as seconds.",
            name,
            int(times.min()),
            first,
            last,
        )


class LinkEnds:
    """The nodes that pairs of a graph may join: any, or those of an edge set.

    Args:
        graph: The graph.
        edge_set: (source set, relation, target set), whose pairs are numbered as the
            rows of the two sets; None for pairs numbered as the nodes.

    Attributes:
        is_link: bool [E], which edges are links of the edge set.
        is_reverse: bool [E], which edges are those of its reverse, `rev_<relation>`.
        nodes: `"sender"` and `"receiver"` -> int64, the nodes of each end, ascending;
            None for all nodes.

    Raises:
        ValueError: For a graph without the edge set.
    """

    def __init__(self, graph: Graph, edge_set: EdgeSet | None = None):
        self.graph, self.edge_set = graph, edge_set_name(edge_set)
        self.is_link = np.ones(graph.num_edges, bool)
        self.is_reverse = ~self.is_link
        self.nodes: dict[str, np.ndarray] | None = None
        if self.edge_set is None:
            return
        sets = edge_sets(graph) if graph.sets else []
        if self.edge_set not in sets:
            refuse("edge_set", f"one of the edge sets of the graph, {sets}", edge_set)
        source, relation, target = self.edge_set
        self.is_link = graph.edge_type == sets.index(self.edge_set)
        back = relation.removeprefix("rev_")
        back = (target, f"rev_{relation}" if back == relation else back, source)
        if back in sets:
            self.is_reverse = graph.edge_type == sets.index(back)
        self._by_row = {
            "sender": _nodes_of_rows(graph, source),
            "receiver": _nodes_of_rows(graph, target),
        }
        self.nodes = {
            end: np.sort(nodes[nodes >= 0]) for end, nodes in self._by_row.items()
        }

    @property
    def joins_two_sets(self) -> bool:
        """Return whether senders and receivers are of different node sets."""
        return self.edge_set is not None and self.edge_set[0] != self.edge_set[2]

    def read(self, name: str, pairs, num_types: int | None = None) -> NodePairs:
        """Return pairs numbered as the nodes of the graph, or raise a ValueError.

        Args:
            name: The argument, for errors.
            pairs: `NodePairs` of the edge set, or int [Q, 2], rows of the two sets;
                without one see `as_pairs`.
            num_types: See `as_pairs`.
        """
        pairs = self._read(name, pairs, num_types)
        warn_of_units(name, pairs.time, self.graph.edge.get(TIME))
        return pairs

    def _read(self, name: str, pairs, num_types: int | None) -> NodePairs:
        if self.edge_set is None:
            return as_pairs(name, pairs, self.graph.num_nodes, num_types)
        if isinstance(pairs, NodePairs) and pairs.edge_set != self.edge_set:
            received = pairs.edge_set or "pairs numbered as the nodes of the graph"
            raise ValueError(
                f"Expected `{name}` of the edge set {self.edge_set}. Received: "
                f"{received}. Pass an array [Q, 2] of rows of {self.edge_set[0]!r} and "
                f"{self.edge_set[2]!r}, or pairs of split_links(graph, edge_set=...)."
            )
        if not isinstance(pairs, NodePairs):
            if np.shape(pairs)[1:] == (3,):
                expected = f"an array [Q, 2] of rows, as all are of {self.edge_set}"
                refuse(name, expected, np.shape(pairs))
            pairs = as_pairs(name, pairs, INT32_MAX)
        return NodePairs(
            self.nodes_of(name, pairs.senders, "sender"),
            self.nodes_of(name, pairs.receivers, "receiver"),
            time=pairs.time,
        )

    def nodes_of(self, name: str, rows, end: str) -> np.ndarray:
        """Return the nodes of rows of the set of an end, or raise a ValueError.

        Args:
            name: The argument, for errors.
            rows: int [n]; None for all rows. Without an edge set they are nodes.
            end: `"sender"` or `"receiver"`.
        """
        if self.edge_set is None:
            count, owner = self.graph.num_nodes, "nodes of the graph"
            nodes = np.arange(count)
        else:
            owner = f"rows of {self.edge_set[0 if end == 'sender' else 2]!r}"
            nodes = self._by_row[end]
        rows = np.arange(len(nodes)) if rows is None else rows
        rows = checked_ids(name, rows, len(nodes), owner)
        if (nodes[rows] < 0).any():
            row = int(rows[np.argmin(nodes[rows])])
            expected = f"{owner} that are nodes of the graph"
            refuse(name, expected, row, "The node of this row was dropped.")
        return nodes[rows]

    def answers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes that receivers may be, in the order of rows, and the rows.

        Returns:
            int64 [C] each; without an edge set both are all nodes.
        """
        if self.edge_set is None:
            return (np.arange(self.graph.num_nodes),) * 2
        nodes = self._by_row["receiver"]
        rows = np.flatnonzero(nodes >= 0)
        return nodes[rows], rows

    def rows(self, pairs: NodePairs) -> NodePairs:
        """Return pairs of nodes numbered as `read` takes them."""
        if self.edge_set is None:
            return pairs
        row = self.graph.node["set_row"]
        rows = row[pairs.senders], row[pairs.receivers]
        return NodePairs(*rows, edge_set=self.edge_set, time=pairs.time)

    def links(self) -> NodePairs:
        """Return the edges that are links, numbered as the nodes of the graph."""
        edges = NodePairs.of_edges(self.graph)
        if self.edge_set is None:
            return edges
        return without_types(edges.take(self.is_link))

    def messages(self, undirected: bool) -> NodePairs:
        """Return the edges that give a pair away if they join its nodes.

        Args:
            undirected: Whether edges of any type do, in either direction; otherwise
                those of the edge set, and of its reverse in the direction of the pair.
        """
        edges = NodePairs.of_edges(self.graph)
        if self.edge_set is None or undirected:
            return edges
        back = edges.take(self.is_reverse).reversed()
        return NodePairs.concatenate([self.links(), without_types(back)])


def _nodes_of_rows(graph: Graph, name: str) -> np.ndarray:
    """Return the node of each row of a node set, -1 for rows without one."""
    table = next(iter(graph.sets[name].values()))
    out = np.full(len(table), -1, np.int64)
    members = np.flatnonzero(graph.node["set"] == [*graph.sets].index(name))
    out[graph.node["set_row"][members]] = members
    return out
