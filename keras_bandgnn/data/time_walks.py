"""`walk_time`: windows of time one after the other, as a model meets them in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import boolean, instance, positive_int, refuse
from keras_bandgnn.data.link_ends import LinkEnds, NodePairs
from keras_bandgnn.data.link_splits import edge_times, edges_before
from keras_bandgnn.graph import EdgeSet, Graph

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Pairs


def walk_time(
    graph: Graph,
    pairs: Pairs,
    steps: int = 10,
    edge_set: EdgeSet | None = None,
    age: bool = False,
) -> Iterator[tuple[Graph, NodePairs]]:
    """Yield windows of pairs, each with the graph of the edges before it.

    So a model predicts that is used for a while and then sees what has happened: the
    edges of a graph are strictly earlier than all pairs of its window, and have those
    of the windows before. Pairs of one time are in one window.

    Args:
        graph: The graph, with edges of all times.
        pairs: `NodePairs` with times, such as those of a test.
        steps: Number of windows, of about equally many pairs; fewer where many pairs
            have one time.
        edge_set: Edge set of the pairs, see `split_links`.
        age: Whether edges have their age at the beginning of the window, see
            `edges_before`.

    Yields:
        The graph of the edges before the window, and its pairs, in the order of time.

    Raises:
        ValueError: For edges or pairs without times.

    Example:
    >>> graph = Graph(3, [0, 1, 2, 0], [1, 2, 0, 1], edge={"time": [10, 20, 30, 40]})
    >>> test = NodePairs([1, 2, 0], [2, 0, 1], time=[20, 30, 40])
    >>> for before, window in walk_time(graph, test, steps=2):
    ...     print(before.edge["time"].tolist(), window.time.tolist())
    [10] [20]
    [10, 20] [30, 40]
    """
    instance("graph", graph, Graph, "a Graph")
    ends = LinkEnds(graph, edge_set)
    pairs = ends.rows(ends.read("pairs", pairs))
    steps = positive_int("steps", steps)
    if pairs.time is None:
        advice = "Write NodePairs(senders, receivers, time=t)."
        refuse("pairs", "NodePairs with times", pairs, advice)
    edge_times(graph, "walk_time")
    return _windows(graph, pairs, steps, boolean("age", age))


def _windows(graph, pairs, steps, age) -> Iterator[tuple[Graph, NodePairs]]:
    pairs = pairs.take(np.argsort(pairs.time, kind="stable"))
    if not len(pairs):
        return
    cuts = np.arange(steps) * len(pairs) // steps
    # A window begins with the first pair of its time.
    cuts = np.unique(np.searchsorted(pairs.time, pairs.time[cuts]))
    for low, high in zip(cuts, [*cuts[1:], len(pairs)], strict=True):
        before = edges_before(graph, int(pairs.time[low]), age)
        yield before, pairs.take(slice(low, high))
