"""`split_links` and `check_leaks`: splits of a graph's edges, and their checks."""

from typing import NamedTuple

import numpy as np

from keras_bandgnn.checks import boolean, fraction, instance, optional, seed_number
from keras_bandgnn.data.identity import (
    leaks,
    link_numbers,
    pair_keys,
    refuse_leaks,
    without_types,
)
from keras_bandgnn.data.link_ends import LinkEnds, NodePairs, is_undirected
from keras_bandgnn.graph import EdgeSet, Graph


class LinkSplit(NamedTuple):
    """A graph's edges in three parts, see `split_links`.

    Attributes:
        train: The graph with message edges alone.
        train_pairs: `NodePairs` to train on.
        valid_pairs: `NodePairs` to validate on.
        test_pairs: `NodePairs` to test on.
        known: `NodePairs` of all edges of the graph, or of its edge set, for filtered
            ranks and negatives that are none of them; of undirected graphs both
            directions.
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
    edge_set: EdgeSet | None = None,
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
        edge_set: (source set, relation, target set), the edges to split in a graph with
            node sets; all others carry messages, but those that join the two nodes of a
            pair that carries none. With `undirected=False` edges of other relations
            between them stay, and only those of the reverse, `rev_<relation>`, go.
            Pairs are then numbered as the rows of the two sets.

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
    ends = LinkEnds(graph, edge_set)
    valid, test = fraction("valid", valid), fraction("test", test)
    rng = np.random.default_rng(seed_number("seed", seed))
    together = optional(boolean, "undirected", undirected) is not False
    if ends.joins_two_sets:
        # The reverse of a pair is none of the edge set.
        undirected = False
    supervised = optional(fraction, "supervised", supervised)
    if valid + test >= 1:
        raise ValueError(
            "Expected `valid` and `test` to leave pairs to train on. Received: "
            f"valid={valid}, test={test}."
        )
    edges = NodePairs.of_edges(graph)
    if undirected is None:
        undirected = is_undirected(edges.take(ends.is_link), graph.num_nodes)
    loops = ends.is_link & (edges.senders == edges.receivers)
    candidates = np.flatnonzero(ends.is_link & ~loops)
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
    messages = loops | ~ends.is_link
    messages[candidates] = np.isin(link[pair.reshape(-1)], train[held:])
    if edge_set is not None:
        silent = pairs.take(~np.isin(link, train[held:]))
        messages &= ~_tell(ends, edges, silent, together)
    all_pairs = edges.take(np.sort(candidates[first]))
    all_pairs = NodePairs.concatenate([all_pairs, edges.take(loops)])
    if undirected:
        all_pairs = NodePairs.concatenate([all_pairs, pairs.reversed()])
    return LinkSplit(
        with_edges(graph, messages),
        *(
            ends.rows(pairs.take(np.isin(link, part)))
            for part in (
                train if supervised is None else train[:held],
                order[: sizes[0]],
                order[sizes[0] : sum(sizes)],
            )
        ),
        ends.rows(all_pairs),
        undirected,
    )


def _tell(ends: LinkEnds, edges: NodePairs, pairs: NodePairs, together: bool):
    """Return which edges of other edge sets give pairs away, bool [E].

    Args:
        ends: Of the edge set.
        edges: All edges of the graph.
        pairs: Pairs whose edges carry no messages.
        together: Whether edges of any relation do, or those of the reverse alone.
    """
    count = ends.graph.num_nodes
    if together:
        return ~ends.is_link & leaks(edges, pairs, count, undirected=True)
    back, pairs = without_types(edges), without_types(pairs.reversed())
    return ends.is_reverse & leaks(back, pairs, count, undirected=False)


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


def check_leaks(
    graph: Graph, pairs, undirected: bool = True, edge_set: EdgeSet | None = None
) -> None:
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
        edge_set: Edge set of the pairs, see `split_links`. With `undirected=False` they
            are compared with the edges of this set and of its reverse.

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
    ends = LinkEnds(graph, edge_set)
    pairs = ends.read("pairs", pairs)
    undirected = boolean("undirected", undirected)
    edges = ends.messages(undirected)
    refuse_leaks(
        "pairs that are no edges of the graph",
        ends.rows(pairs),
        leaks(pairs, edges, graph.num_nodes, undirected),
        undirected,
        "Pass the graph with training edges alone, split_links(...).train. If pairs "
        "and their reverse are facts of their own, pass undirected=False.",
    )
