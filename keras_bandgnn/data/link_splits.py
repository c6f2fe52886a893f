"""`NodePairs` and `split_links`: pairs of nodes, and splits of a graph's edges."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from keras_bandgnn.arrays import INT32_MAX, checked_ids
from keras_bandgnn.checks import boolean, fraction, instance, optional, seed_number
from keras_bandgnn.data.identity import leaks, link_numbers, pair_keys, refuse_leaks
from keras_bandgnn.graph import Graph


@dataclasses.dataclass(frozen=True, eq=False)
class NodePairs:
    """Pairs of nodes that are, or are not, joined by an edge.

    Attributes:
        senders: int32 [Q], first node of each pair.
        receivers: int32 [Q], second node of each pair.
        types: int32 [Q], edge type (relation) of each pair; all 0 if omitted.

    Raises:
        ValueError: For arrays of other shapes, or ids below 0.

    Example:
    >>> pairs = NodePairs([0, 1], [2, 2])
    >>> len(pairs), pairs.types.tolist()
    (2, [0, 0])
    """

    senders: np.ndarray
    receivers: np.ndarray
    types: np.ndarray | None = None

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

    def __len__(self) -> int:
        return len(self.senders)

    def take(self, index) -> "NodePairs":
        """Return some of the pairs.

        Args:
            index: int or bool [n], or a slice.
        """
        return NodePairs(*(getattr(self, name)[index] for name in FIELDS))

    def reversed(self) -> "NodePairs":
        """Return the pairs with their nodes exchanged."""
        return NodePairs(self.receivers, self.senders, self.types)

    @classmethod
    def concatenate(cls, parts: Iterable["NodePairs"]) -> "NodePairs":
        """Return the pairs of several parts, one after the other."""
        parts = list(parts)
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in FIELDS))

    @classmethod
    def of_edges(cls, graph: Graph) -> "NodePairs":
        """Return the edges of a graph as pairs."""
        return cls(graph.senders, graph.receivers, graph.edge_type)


FIELDS = ("senders", "receivers", "types")


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


def is_undirected(graph: Graph) -> bool:
    """Return whether the reverse of every edge is an edge of the same type."""
    pairs = NodePairs.of_edges(graph)
    pairs = pairs.take(pairs.senders != pairs.receivers)
    keys, back = (pair_keys(p, graph.num_nodes) for p in (pairs, pairs.reversed()))
    return len(keys) > 0 and bool(np.isin(back, keys).all())


class LinkSplit(NamedTuple):
    """A graph's edges in three parts, see `split_links`.

    Attributes:
        train: The graph with message edges alone.
        train_pairs: `NodePairs` to train on.
        valid_pairs: `NodePairs` to validate on.
        test_pairs: `NodePairs` to test on.
        known: `NodePairs` of all edges of the graph, for filtered ranks and negatives
            that are none of them; of undirected graphs both directions.
        undirected: Whether an edge and its reverse are one pair.
    """

    train: Graph
    train_pairs: NodePairs
    valid_pairs: NodePairs
    test_pairs: NodePairs
    known: NodePairs
    undirected: bool


def split_links(
    graph: Graph,
    valid: float = 0.05,
    test: float = 0.10,
    seed: int = 0,
    undirected: bool | None = None,
    supervised: float | None = None,
) -> LinkSplit:
    """Split the edges of a graph into those to train on, to validate and to test.

    A link is a pair of nodes, in either direction and of any type. All edges of a link
    go to the same part, so that no message carries what is to be predicted: not the
    reverse of a pair, whether or not it has a type of its own, and not a parallel edge.
    Self-loops stay message edges and are in no part.

    Parts list each sender, receiver and type once; if every edge has a reverse of the
    same type, or with `undirected=True`, of an edge and its reverse one.

    Args:
        graph: The graph, with all its edges.
        valid: Share of the links to validate on.
        test: Share of the links to test on.
        seed: Seed of the split.
        undirected: Whether an edge and its reverse are one pair, by default whether
            every edge has a reverse of the same type. False splits senders, receivers
            and types as they are, each for itself: for triples of knowledge graphs, and
            where (a, b) says nothing of (b, a).
        supervised: Share of the training links that are trained on and carry no
            messages, while the others carry messages alone. By default all training
            links do both.

    Returns:
        A `LinkSplit`.

    Raises:
        ValueError: For shares out of range, or too few edges.

    Example:
    >>> ring = Graph(20, [*range(20)], [*range(1, 20), 0])
    >>> split = split_links(ring, valid=0.1, test=0.2)
    >>> split.train.num_edges, len(split.valid_pairs), len(split.test_pairs)
    (14, 2, 4)
    """
    instance("graph", graph, Graph, "a Graph")
    valid, test = fraction("valid", valid), fraction("test", test)
    rng = np.random.default_rng(seed_number("seed", seed))
    together = optional(boolean, "undirected", undirected) is not False
    supervised = optional(fraction, "supervised", supervised)
    if valid + test >= 1:
        raise ValueError(
            "Expected `valid` and `test` to leave pairs to train on. Received: "
            f"valid={valid}, test={test}."
        )
    if undirected is None:
        undirected = is_undirected(graph)
    edges = NodePairs.of_edges(graph)
    loops = edges.senders == edges.receivers
    candidates = np.flatnonzero(~loops)
    keys = pair_keys(edges, graph.num_nodes, undirected)[candidates]
    _, first, pair = np.unique(keys, return_index=True, return_inverse=True)
    pairs = edges.take(candidates[first])
    link = np.arange(len(pairs))
    if together:
        link = link_numbers(pairs, graph.num_nodes)
    count = int(link.max(initial=-1)) + 1
    sizes = [round(valid * count), round(test * count)]
    order = rng.permutation(count)
    train = order[sum(sizes) :]
    held = 0 if supervised is None else round(supervised * len(train))
    if len(train) - held < 1 or supervised is not None and not held:
        raise ValueError(
            "Expected at least one pair for messages and one to train on. Received: "
            f"a graph of {count} pairs, valid={valid}, test={test}, "
            f"supervised={supervised}."
        )
    messages = loops.copy()
    messages[candidates] = np.isin(link[pair.reshape(-1)], train[held:])
    all_pairs = edges.take(np.sort(candidates[first]))
    all_pairs = NodePairs.concatenate([all_pairs, edges.take(loops)])
    if undirected:
        all_pairs = NodePairs.concatenate([all_pairs, pairs.reversed()])
    return LinkSplit(
        with_edges(graph, messages),
        *(
            pairs.take(np.isin(link, part))
            for part in (
                train if supervised is None else train[:held],
                order[: sizes[0]],
                order[sizes[0] : sum(sizes)],
            )
        ),
        all_pairs,
        undirected,
    )


def with_edges(graph: Graph, keep: np.ndarray) -> Graph:
    """Return a graph with some of its edges.

    Args:
        graph: The graph.
        keep: bool [E].
    """
    changes = {} if graph.label_level != "edge" else {"label": graph.label[keep]}
    return graph.replace(
        senders=graph.senders[keep],
        receivers=graph.receivers[keep],
        edge_type=graph.edge_type[keep],
        edge={name: values[keep] for name, values in graph.edge.items()},
        **changes,
    )


def check_leaks(graph: Graph, pairs, undirected: bool = True) -> None:
    """Raise a ValueError if a pair to predict is among the edges of a graph.

    An edge is a pair, too, if it has the reverse direction or another type: layers such
    as `ToUndirected` make one of the other, and models read both.

    Args:
        graph: The graph that carries the messages.
        pairs: `NodePairs` to validate or test on, or int [Q, 2] or [Q, 3].
        undirected: Whether pairs are compared in both directions and without types.
            False compares sender, receiver and type, for data in which the reverse of
            a pair says nothing of it, or is public by the rules of its official split,
            as in WN18RR.

    Raises:
        ValueError: If there are such pairs; the message counts them.

    Example:
    >>> graph = Graph(3, [0], [1])
    >>> check_leaks(graph, NodePairs([1], [2]))
    >>> check_leaks(graph, NodePairs([1], [0]), undirected=False)
    >>> check_leaks(graph, NodePairs([1], [0]))
    Traceback (most recent call last):
    ...
    ValueError: Expected pairs that are no edges of the graph. Received: 1 of 1 ...
    """
    instance("graph", graph, Graph, "a Graph")
    pairs = as_pairs("pairs", pairs, graph.num_nodes)
    undirected = boolean("undirected", undirected)
    refuse_leaks(
        "pairs that are no edges of the graph",
        pairs,
        leaks(pairs, NodePairs.of_edges(graph), graph.num_nodes, undirected),
        undirected,
        "Pass the graph with training edges alone, split_links(...).train. If pairs "
        "and their reverse are facts of their own, pass undirected=False.",
    )
