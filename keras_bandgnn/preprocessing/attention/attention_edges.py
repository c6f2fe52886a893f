"""`AttentionEdges`: the pairs of nodes that attend to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import boolean, optional, positive_int, strings
from keras_bandgnn.graph import Graph
from keras_bandgnn.host_keras import keras
from keras_bandgnn.preprocessing.attention.adjacency import (
    adjacency,
    distances_between,
    distinct,
    pairs_within,
)
from keras_bandgnn.preprocessing.graph_layer import (
    GraphLayer,
    refuse_edge_labels,
    without_edge_sets,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions

_WRITTEN = ("attend", "distance", "target")
# Target edges are further apart than any pair, so no distance has their bias.
_FAR = np.iinfo(np.int32).max


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

    Edge features are dropped unless `edge_features` names them. Listing all pairs
    within a distance takes memory and time in proportion to them, and social graphs
    have nearly all nodes within three steps.

    Tasks over edges predict for the graph's own edges, not for pairs. With
    `target_type` those of this type and of later ones also follow after the pairs, in
    their order, as target edges. Attention does not read them: they have `attend` 0,
    type 0 and a `distance` above any other. They keep their features, and pairs have
    zeros where `edge_features` does not name one; they keep their labels, and those of
    pairs are missing (NaN). One more feature tells them apart:

    - `target`, int32 [E]: t + 1 for a target edge whose type was t, 0 for pairs.

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
        edge_features: Names of edge features to keep. If there are several edges, those
            of the edge with the lowest type count, then of the one with the lowest
            features; a reverse that the graph lacks has the features of its original.
            Pairs that are no edges, whose distance is above 1, have zeros.
        target_type: First type of the target edges; 0 for all edges, None for none.

    Raises:
        ValueError: When applied: for labels of edges without `target_type`, or edges
            that lack one of `edge_features`.

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
        edge_features: Sequence[str] | None = None,
        target_type: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.symmetric = boolean("symmetric", symmetric)
        self.add_path = boolean("path", path)  # Keras layers have a `path` of their own
        self.max_distance = positive_int("max_distance", max_distance)
        self.edge_types = boolean("edge_types", edge_types)
        self.path_distance = optional(positive_int, "path_distance", path_distance)
        self.edge_features = optional(strings, "edge_features", edge_features) or []
        taken = sorted(set(self.edge_features) & set(_WRITTEN))
        if taken:
            raise ValueError(
                f"Expected `edge_features` without {_WRITTEN}, which the layer writes. "
                f"Received: {taken}. Rename the feature of the graphs."
            )
        self.target_type = optional(positive_int, "target_type", target_type, 0)

    def call(self, graph: Graph) -> Graph:
        """Return the graph with these edges."""
        if self.target_type is None:
            advice = "Set `target_type` of the backbone, 0 for labels of all edges."
            refuse_edge_labels(graph, self, advice)
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
        features = {"distance": distance, "attend": attend}
        if self.edge_types or self.edge_features:
            graph_links, edge = self._own_edges(graph)
            place = np.searchsorted(keys, graph_links)
        if self.edge_types:
            types[place] = graph.edge_type[edge] + 1
        for name in self.edge_features:
            values = graph.edge[name]
            features[name] = np.zeros((keys.size, *values.shape[1:]), values.dtype)
            features[name][place] = values[edge]
        receivers, senders = np.divmod(keys, size)
        pairs = {"senders": senders, "receivers": receivers, "edge_type": types}
        if self.target_type is not None:
            return self._with_targets(graph, pairs, features)
        info = without_edge_sets(graph.info)
        return graph.replace(**pairs, edge=features, info=info)

    def _with_targets(self, graph: Graph, pairs: dict, features: dict) -> Graph:
        """Return the graph with its pairs and, after them, the target edges."""
        taken = sorted(set(graph.edge) & set(_WRITTEN))
        if taken:
            raise ValueError(
                f"Expected edge features without {_WRITTEN}, which the layer writes. "
                f"Received: {taken}. Rename the feature of the graphs."
            )
        rows = np.flatnonzero(graph.edge_type >= self.target_type)
        count = len(pairs["senders"])
        targets = {
            "attend": np.zeros(rows.size, np.int32),
            "distance": np.full(rows.size, _FAR, np.int32),
            "target": graph.edge_type[rows] + 1,
            **{name: values[rows] for name, values in graph.edge.items()},
        }
        edge = {}
        for name, values in targets.items():
            zeros = np.zeros((count, *values.shape[1:]), values.dtype)
            edge[name] = np.concatenate([features.get(name, zeros), values])
        changes = {}
        if graph.label is not None and graph.label_level == "edge":
            missing = np.full((count, *graph.label.shape[1:]), np.nan, np.float32)
            changes["label"] = np.concatenate([missing, graph.label[rows]])
        ends = graph.senders[rows], graph.receivers[rows], np.zeros(rows.size, np.int32)
        for (name, values), more in zip(pairs.items(), ends, strict=True):
            changes[name] = np.concatenate([values, more])
        return graph.replace(**changes, edge=edge)

    def _steps(self, edges, receivers, senders) -> np.ndarray | int:
        """Return the distances of links longer than the pairs that are listed."""
        if self.path_distance is None or self.path_distance <= self.max_distance:
            return self.max_distance + 1
        return distances_between(edges, receivers, senders, self.path_distance)

    def _own_edges(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of pairs that are edges, ascending, and an edge of each."""
        lacking = [name for name in self.edge_features if name not in graph.edge]
        if lacking:
            raise ValueError(
                f"Expected the edge features {self.edge_features}. Received: "
                f"{sorted(graph.edge)}; {lacking[0]!r} is missing. Give the "
                "`edge_inputs` of the model and Graph(edge={...}) the same names."
            )
        edges = np.flatnonzero(graph.senders != graph.receivers)
        sender, receiver = graph.senders[edges], graph.receivers[edges]
        keys = receiver.astype(np.int64) * graph.num_nodes + sender
        reverse = np.zeros(keys.size, bool)
        if self.symmetric:
            back = sender.astype(np.int64) * graph.num_nodes + receiver
            reverse = np.repeat([False, True], keys.size)
            keys, edges = np.append(keys, back), np.append(edges, edges)
        # What is sorted by first comes last.
        columns = []
        for name in self.edge_features:
            values = graph.edge[name][edges]
            columns += list(values.reshape(len(values), math.prod(values.shape[1:])).T)
        order = np.lexsort((*columns[::-1], graph.edge_type[edges], reverse, keys))
        keys, edges = keys[order], edges[order]
        first = np.ones(keys.size, bool)
        first[1:] = keys[1:] != keys[:-1]
        return keys[first], edges[first]

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        config = {
            **super().get_config(),
            "symmetric": self.symmetric,
            "path": self.add_path,
            "max_distance": self.max_distance,
            "edge_types": self.edge_types,
        }
        # Stores name them only where they are set.
        if self.path_distance is not None:
            config["path_distance"] = self.path_distance
        if self.edge_features:
            config["edge_features"] = list(self.edge_features)
        if self.target_type is not None:
            config["target_type"] = self.target_type
        return config


def _path_links(graph: Graph) -> np.ndarray:
    """Return the keys receiver * N + sender of the path's links, both ways, sorted."""
    from keras_bandgnn.preprocessing.attention.path_cover import canonical_path

    order = canonical_path(graph).astype(np.int64)
    one, two = order[:-1], order[1:]
    keys = [one * graph.num_nodes + two, two * graph.num_nodes + one]
    return distinct(np.concatenate(keys))
