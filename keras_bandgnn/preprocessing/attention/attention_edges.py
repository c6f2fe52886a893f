"""`AttentionEdges`: the pairs of nodes that attend to each other."""

import keras
import numpy as np

from keras_bandgnn.checks import boolean, optional, positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.attention.adjacency import (
    adjacency,
    distances_between,
    distinct,
    pairs_within,
)
from keras_bandgnn.preprocessing.attention.path_cover import canonical_path
from keras_bandgnn.preprocessing.graph_layer import GraphLayer, refuse_edge_labels


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class AttentionEdges(GraphLayer):
    """Replaces the edges by the pairs that a graph transformer works with.

    A receiver attends to the senders of its edges. Each pair comes once, sorted by
    receiver, then sender; attention adds every node itself. Edges have the features

    - `attend`, int32 [E]: 1 for pairs of the sparse pattern, that is the graph's own
      edges and those of the path, and 0 for others, which are listed because they are
      at most `max_distance` steps apart: full attention reads their distance.
    - `distance`, int32 [E]: steps from sender to receiver along the graph's own edges
      (and their reverse, if `symmetric`), 1 to `max_distance`, for links of the path
      up to `path_distance`; one more for links of the path between nodes that are
      further apart or not connected.

    Other edge features are dropped. Listing all pairs within a distance takes memory
    and time in proportion to them, and social graphs have nearly all nodes within
    three steps.

    Args:
        symmetric: Whether edges also attend in the other direction.
        path: Whether to link the neighbours on a path through all nodes, both ways.
            The path uses as many edges of the graph as a greedy search finds
            (`path_cover.canonical_path`), so it adds few. It does not depend on how the
            nodes are numbered, but for those that `colours.canonical_rank` cannot tell
            apart.
        max_distance: Largest distance of the pairs that are listed; 1 lists none that
            is no edge.
        path_distance: Largest distance of links of the path that is told from larger
            ones, if above `max_distance`; pairs so far apart are not listed for it.
        edge_types: Whether the type t of an edge becomes t + 1. The lowest counts if
            there are several edges, and a reverse that the graph lacks has the type
            of its original. Pairs that are no edges have the type 0. Otherwise all
            types are 0.

    Example:
    >>> graph = Graph(4, [0, 1], [1, 2])
    >>> edges = AttentionEdges(path=True)(graph)
    >>> list(zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True))
    [(1, 0), (3, 0), (0, 1), (2, 1), (1, 2), (0, 3)]
    >>> edges.edge["distance"].tolist()
    [1, 2, 1, 1, 1, 2]
    """

    def __init__(
        self,
        symmetric: bool = True,
        path: bool = False,
        max_distance: int = 1,
        edge_types: bool = False,
        path_distance: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.symmetric = boolean("symmetric", symmetric)
        self.add_path = boolean("path", path)  # Keras layers have a `path` of their own
        self.max_distance = positive_int("max_distance", max_distance)
        self.edge_types = boolean("edge_types", edge_types)
        self.path_distance = optional(positive_int, "path_distance", path_distance)

    def call(self, graph: Graph) -> Graph:
        """Return the graph with these edges."""
        refuse_edge_labels(graph, self)
        size = graph.num_nodes
        edges = adjacency(size, graph.senders, graph.receivers, self.symmetric)
        receivers, senders, distance = pairs_within(edges, self.max_distance)
        keys = receivers.astype(np.int64) * size + senders
        attend = (distance == 1).astype(np.int32)
        if self.add_path:
            links = _path_links(graph)
            place = np.searchsorted(keys, links)
            new = np.append(keys, -1)[place] != links
            attend[place[~new]] = 1
            keys = np.insert(keys, place[new], links[new])
            attend = np.insert(attend, place[new], 1)
            steps = self._steps(edges, *np.divmod(links[new], size))
            distance = np.insert(distance, place[new], steps)
        types = np.zeros(keys.size, np.int32)
        if self.edge_types:
            own, own_type = self._typed(graph)
            types[np.searchsorted(keys, own)] = own_type + 1
        receivers, senders = np.divmod(keys, size)
        return graph.replace(
            senders=senders,
            receivers=receivers,
            edge_type=types,
            edge={"distance": distance, "attend": attend},
        )

    def _steps(self, edges, receivers, senders) -> np.ndarray | int:
        """Return the distances of links longer than the pairs that are listed."""
        if self.path_distance is None or self.path_distance <= self.max_distance:
            return self.max_distance + 1
        return distances_between(edges, receivers, senders, self.path_distance)

    def _typed(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of the graph's own edges, ascending, and their types."""
        real = graph.senders != graph.receivers
        sender, receiver = graph.senders[real], graph.receivers[real]
        kind = graph.edge_type[real]
        keys = receiver.astype(np.int64) * graph.num_nodes + sender
        reverse = np.zeros(keys.size, bool)
        if self.symmetric:
            back = sender.astype(np.int64) * graph.num_nodes + receiver
            reverse = np.repeat([False, True], keys.size)
            keys, kind = np.append(keys, back), np.append(kind, kind)
        order = np.lexsort((kind, reverse, keys))
        keys, kind = keys[order], kind[order]
        first = np.ones(keys.size, bool)
        first[1:] = keys[1:] != keys[:-1]
        return keys[first], kind[first]

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        config = {
            **super().get_config(),
            "symmetric": self.symmetric,
            "path": self.add_path,
            "max_distance": self.max_distance,
            "edge_types": self.edge_types,
        }
        # Stores of earlier versions name their layers without it.
        if self.path_distance is not None:
            config["path_distance"] = self.path_distance
        return config


def _path_links(graph: Graph) -> np.ndarray:
    """Return the keys receiver * N + sender of the path's links, both ways, sorted."""
    order = canonical_path(graph).astype(np.int64)
    one, two = order[:-1], order[1:]
    keys = [one * graph.num_nodes + two, two * graph.num_nodes + one]
    return distinct(np.concatenate(keys))
