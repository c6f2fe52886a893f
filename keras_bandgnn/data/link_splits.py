"""Splits of a graph's edges, drawn or as masks say, and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_bandgnn.arrays import LAST_TIME, TIME
from keras_bandgnn.batch import AGE
from keras_bandgnn.checks import (
    boolean,
    fraction,
    instance,
    optional,
    positive_int,
    refuse,
    seed_number,
)
from keras_bandgnn.data.identity import (
    both_ways,
    leaks,
    link_numbers,
    pair_keys,
    refuse_later,
    refuse_leaks,
    without_types,
)
from keras_bandgnn.data.link_ends import LinkEnds, NodePairs, is_undirected
from keras_bandgnn.graph import EdgeSet, Graph

if TYPE_CHECKING:
    from keras_bandgnn.aliases import MaybeNone, Pairs

# Edge features of the parts of a split.
MASKS = ("train_mask", "valid_mask", "test_mask")


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
        cutoffs: Of a split by time the times from which on pairs are of the validation
            and of the test; otherwise None.
    """

    train: Graph
    train_pairs: NodePairs
    valid_pairs: NodePairs
    test_pairs: NodePairs
    known: NodePairs
    undirected: bool
    cutoffs: tuple[int, int] | MaybeNone = None


def split_links(
    graph: Graph,
    valid: float = 0.05,
    test: float = 0.10,
    seed: int = 0,
    undirected: bool | None = None,
    supervised: float | None = None,
    edge_set: EdgeSet | None = None,
    time: bool | tuple[int, int] | None = None,
) -> LinkSplit:
    """Split the edges of a graph into those to train on, to validate and to test.

    A link is a pair of nodes, in either direction and of any type. All edges of a link
    go to the same part, so that no message carries what is to be predicted: not the
    reverse of a pair, whether or not it has a type of its own, and not a parallel edge.
    Self-loops stay message edges and are in no part.

    Parts list each sender, receiver and type once; if every edge has a reverse of the
    same type, or with `undirected=True`, of an edge and its reverse one.

    By `time` the parts are the earlier, the later and the latest pairs. Two nodes that
    are joined several times are a pair at each of these times, and may be in several
    parts: that they met before is history. The graph to train on has all edges before
    those of the validation, of any type; `edges_before` gives that of the test.

    Args:
        graph: The graph, with all its edges.
        valid: Share of the links to validate on; by time of the pairs.
        test: Share of the links to test on; by time of the pairs.
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
        time: None for a split at random. True for one by `edge["time"]`, in which pairs
            of the time of a cut are all in the later part, so that parts may be larger
            than their shares. (t_valid, t_test) for the times from which on pairs are
            of the validation and of the test. Then `seed` has no effect.

    Returns:
        A `LinkSplit`.

    Raises:
        ValueError: For shares out of range, too few edges, or a split by time of edges
            without times.

    Example:
    >>> ring = Graph(20, [*range(20)], [*range(1, 20), 0])
    >>> split = split_links(ring, valid=0.1, test=0.2)
    >>> split.train.num_edges, len(split.valid_pairs), len(split.test_pairs)
    (14, 2, 4)
    """
    instance("graph", graph, Graph, "a Graph")
    ends = LinkEnds(graph, edge_set)
    valid, test = fraction("valid", valid), fraction("test", test)
    seed = seed_number("seed", seed)
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
    if time is not None and time is not False:
        if supervised is not None:
            advice = "Samplers by time show each pair what was before it."
            refuse("supervised", "None for a split by time", supervised, advice)
        return _split_by_time(ends, valid, test, undirected, time)
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
    order = np.random.default_rng(seed).permutation(count)
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


def _split_by_time(
    ends: LinkEnds, valid: float, test: float, undirected: bool | None, time
) -> LinkSplit:
    """Split the links of a graph by their times; see `split_links`."""
    graph = ends.graph
    moments = edge_times(graph, "split_links(time=...)")
    edges = NodePairs.of_edges(graph)
    links = edges.take(ends.is_link)
    if undirected is None:
        undirected = is_undirected(links, graph.num_nodes)
    # Once per sender, receiver, type and time, in the order of time.
    keys = pair_keys(links, graph.num_nodes, undirected)
    order = np.lexsort((keys, links.time))
    order = order[links.senders[order] != links.receivers[order]]
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(keys[order]) != 0) | (np.diff(links.time[order]) != 0)
    pairs = links.take(order[new])
    cutoffs = _cutoffs(pairs.time, valid, test, time)
    first, second = np.searchsorted(pairs.time, cutoffs)
    if not first:
        raise ValueError(
            "Expected pairs to train on before those to validate on. Received: "
            f"{len(pairs)} pairs, none of them before the time {cutoffs[0]}. Choose "
            "smaller shares, or later cutoffs."
        )
    if time is not True and first == len(pairs):
        raise ValueError(
            "Expected pairs at or after the first cutoff, in the unit of the edges' "
            f"times. Received: time={cutoffs}, after all {len(pairs)} pairs, the last "
            f"of which is of {int(pairs.time[-1])}."
        )
    true_pairs = both_ways(links) if undirected else links
    parts = slice(0, first), slice(first, second), slice(second, None)
    return LinkSplit(
        with_edges(graph, moments < cutoffs[0]),
        *(ends.rows(pairs.take(part)) for part in parts),
        ends.rows(true_pairs),
        undirected,
        cutoffs,
    )


def _cutoffs(moments: np.ndarray, valid: float, test: float, time) -> tuple[int, int]:
    """Return the times from which on pairs are of the validation, and of the test.

    Args:
        moments: int64 [Q], ascending.
        valid: Share of the pairs to validate on.
        test: Share of the pairs to test on.
        time: See `split_links`.
    """
    if time is not True:
        expected = "True, or the integers (t_valid, t_test), ascending"
        if not isinstance(time, list | tuple | np.ndarray) or len(time) != 2:
            refuse("time", expected, time)
        whole = all(
            isinstance(t, int | np.integer) and not isinstance(t, bool) for t in time
        )
        if not whole or time[0] > time[1]:
            refuse("time", expected, time)
        return int(time[0]), int(time[1])
    cutoffs, count = [], len(moments)
    for share in (valid + test, test):
        size = round(share * count)
        # Without pairs of a part the cut is after all of them.
        end = int(moments[-1]) + 1 if count else 0
        cutoffs.append(int(moments[count - size]) if size else end)
    return cutoffs[0], cutoffs[1]


def edge_times(graph: Graph, what: str) -> np.ndarray:
    """Return the times of the edges of a graph, int64 [E], or raise a ValueError.

    Args:
        graph: The graph.
        what: What needs them, for errors.
    """
    if TIME not in graph.edge:
        raise ValueError(
            f"Expected edges with times for {what}. Received: edge features "
            f"{sorted(graph.edge)}. Give them, integers of one unit: "
            "Graph(..., edge={'time': t})."
        )
    return graph.edge[TIME]


def edges_before(graph: Graph, time: int, age: bool = False) -> Graph:
    """Return a graph with the edges that are strictly earlier than a time.

    It is what a model may see that predicts for this time, such as the pairs of a test:
    `edges_before(graph, split.cutoffs[1])`.

    Args:
        graph: A graph whose edges have times.
        time: The time, in the unit of the edges' times, from 0, or negative.
        age: Whether edges get the feature `age`, float32: the time minus theirs, for
            models that read it from batches of samplers by time.

    Raises:
        ValueError: For edges without times, or a time that is no integer.

    Example:
    >>> graph = Graph(3, [0, 1, 2], [1, 2, 0], edge={"time": [10, 20, 30]})
    >>> edges_before(graph, 20).edge["time"].tolist()
    [10]
    """
    instance("graph", graph, Graph, "a Graph")
    time = positive_int("time", time, -LAST_TIME, LAST_TIME)
    before = with_edges(graph, edge_times(graph, "edges_before") < time)
    if not boolean("age", age):
        return before
    if AGE in graph.edge:
        refuse("graph", f"a graph whose edges have no {AGE!r}", [*graph.edge])
    ages = (time - before.edge[TIME]).astype(np.float32)
    return before.replace(edge={**before.edge, AGE: ages})


def split_by_masks(
    graph: Graph, undirected: bool | None = None, edge_set: EdgeSet | None = None
) -> LinkSplit:
    """Split the edges of a graph as its edge features say, such as a published split.

    The features `train_mask`, `valid_mask` and `test_mask` say which edges are of a
    part; one of the last two may be absent. Messages are the training edges, the
    self-loops and, with an edge set, the edges of others that do not give a pair of the
    other parts away. The graph to train on has no masks.

    Args:
        graph: The graph, with all its edges.
        undirected: As for `split_links`. Pairs of the other parts must be no messages,
            unless it is False.
        edge_set: The edges to split in a graph with node sets; see `split_links`.

    Returns:
        A `LinkSplit`.

    Raises:
        ValueError: For a graph without these features, or if messages give a pair away.

    Example:
    >>> masks = {"train_mask": [True, False], "test_mask": [False, True]}
    >>> split = split_by_masks(Graph(3, [0, 1], [1, 2], edge=masks))
    >>> split.train.num_edges, split.test_pairs.senders.tolist()
    (1, [1])
    """
    instance("graph", graph, Graph, "a Graph")
    ends = LinkEnds(graph, edge_set)
    together = optional(boolean, "undirected", undirected) is not False
    masks = [graph.edge.get(name) for name in MASKS]
    if masks[0] is None or masks[1] is None and masks[2] is None:
        raise ValueError(
            "Expected a graph with the edge features train_mask and test_mask, or "
            f"valid_mask. Received: edge features {sorted(graph.edge)}. Draw a split "
            "with split_links."
        )
    edges = NodePairs.of_edges(graph)
    loops = ends.is_link & (edges.senders == edges.receivers)
    links = ends.is_link & ~loops
    if ends.joins_two_sets:
        undirected = False
    elif undirected is None:
        undirected = is_undirected(edges.take(ends.is_link), graph.num_nodes)
    none = np.zeros(graph.num_edges, bool)
    parts = [none if mask is None else links & (mask != 0) for mask in masks]
    keys = pair_keys(edges, graph.num_nodes, undirected)
    train, valid, test = (edges.take(_first_of_each(keys, part)) for part in parts)
    messages = ~ends.is_link | loops | parts[0]
    if edge_set is not None:
        silent = NodePairs.concatenate([valid, test])
        messages &= ~_tell(ends, edges, silent, together)
    whole = [edges.take(_first_of_each(keys, links)), edges.take(loops)]
    if undirected:
        whole.append(whole[0].reversed())
    others = {name: v for name, v in graph.edge.items() if name not in MASKS}
    split = LinkSplit(
        with_edges(graph.replace(edge=others), messages),
        *(ends.rows(pairs) for pairs in (train, valid, test)),
        ends.rows(NodePairs.concatenate(whole)),
        undirected,
    )
    for pairs in (split.valid_pairs, split.test_pairs):
        check_leaks(split.train, pairs, together, edge_set)
    return split


def _first_of_each(keys: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the first place of each key in a mask, int64 [n], ascending."""
    places = np.flatnonzero(mask)
    return places[np.sort(np.unique(keys[places], return_index=True)[1])]


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
    graph: Graph, pairs: Pairs, undirected: bool = True, edge_set: EdgeSet | None = None
) -> None:
    """Raise a ValueError if a pair to predict is among the edges of a graph.

    An edge is a pair, too, if it has the reverse direction or another type: layers such
    as `ToUndirected` make one of the other, and models read both.

    Where edges and pairs have times, all edges must be strictly earlier than the first
    of the pairs. That two nodes are joined before their pair is history, and no leak.

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
        ValueError: If there are such pairs, or edges; the message counts them.

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
    if pairs.time is not None and TIME in graph.edge:
        edges = NodePairs.of_edges(graph)
        refuse_later("pairs", pairs, edges, graph.num_nodes, undirected)
        return
    refuse_leaks(
        "pairs that are no edges of the graph",
        ends.rows(pairs),
        leaks(pairs, edges, graph.num_nodes, undirected),
        undirected,
        "Pass the graph with training edges alone, split_links(...).train. If pairs "
        "and their reverse are facts of their own, pass undirected=False.",
    )
