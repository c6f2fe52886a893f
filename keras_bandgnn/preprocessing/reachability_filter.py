"""`ReachabilityFilter`: drop the nodes that cannot influence the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions


@serializable
class ReachabilityFilter(GraphLayer):
    """Keeps the nodes from which a candidate or the slot can be reached in T steps.

    After T steps of message passing a node is influenced only by nodes at most T
    edges away, so the rest can go without changing what is read from the candidates
    (Balog et al. 2019, Section 4). Graphs without candidates are returned as they are.

    Args:
        steps: T, the number of propagation steps of the model.

    Example:
    >>> graph = Graph(4, [0, 1, 2], [1, 2, 3], candidates=[2])
    >>> ReachabilityFilter(1)(graph).num_nodes
    2
    """

    def __init__(self, steps: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.steps = positive_int("steps", steps)

    def call(self, graph: Graph) -> Graph:
        """Return the graph without nodes that are too far away."""
        if graph.candidates is None:
            return graph
        reached = np.zeros(graph.num_nodes, bool)
        reached[graph.candidates] = True
        if graph.slot is not None:
            reached[graph.slot] = True
        count = np.count_nonzero(reached)
        for _ in range(self.steps):
            reached[graph.senders[reached[graph.receivers]]] = True
            before, count = count, np.count_nonzero(reached)
            if count == before:
                break
        # All graphs of a list come out with `origin`.
        if count == graph.num_nodes and graph.origin is not None:
            return graph
        return graph.subgraph(np.flatnonzero(reached))
