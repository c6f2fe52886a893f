"""`LargestComponent`: the nodes that hang together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.attention.adjacency import adjacency
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions


@serializable
class LargestComponent(GraphLayer):
    """Keeps the largest connected component of a graph, edges counting both ways.

    Features, masks and labels of the nodes and edges are kept with them, nodes stay in
    their order, and `origin` has their ids in the graph as it was. Apply it to data
    before `fit` and `evaluate`. In the preprocessor of a task the nodes left out take
    no part in losses and metrics, and `predict` returns NaN for them.

    Args:
        num_components: Number of components to keep, largest first. Of equally large
            ones that with the smallest node id comes first.

    Raises:
        ValueError: When applied: if a candidate or the slot would be left out.

    Example:
    >>> graph = LargestComponent()(Graph(5, [0, 2, 3], [1, 3, 4]))
    >>> graph.num_nodes, graph.origin.tolist()
    (3, [2, 3, 4])
    """

    def __init__(self, num_components: int = 1, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.num_components = positive_int("num_components", num_components)

    def call(self, graph: Graph) -> Graph:
        """Return the graph of the largest components."""
        from scipy.sparse.csgraph import connected_components

        edges = adjacency(graph.num_nodes, graph.senders, graph.receivers)
        _, part = connected_components(edges, directed=True, connection="weak")
        first = np.unique(part, return_index=True)[1]
        largest = np.lexsort((first, -np.bincount(part)))[: self.num_components]
        return graph.subgraph(np.flatnonzero(np.isin(part, largest)))
