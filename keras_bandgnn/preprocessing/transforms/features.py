"""`NormalizeFeatures`: rows of node features that sum to one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keras_bandgnn.checks import strings
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import GraphLayer
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions


@serializable
class NormalizeFeatures(GraphLayer):
    """Divides each row of node features by its sum, as is usual for bags of words.

    Rows of zeros stay as they are. Features of the data sets of citations, such as
    Cora, are counts of words, and most published scores are those of features
    normalised so.

    Args:
        features: Names of the node features, each [N, F].

    Raises:
        ValueError: When applied: if a feature is missing, has not two axes or has
            negative values.

    Example:
    >>> graph = Graph(2, [], [], node={"feature": [[1, 3], [0, 0]]})
    >>> NormalizeFeatures()(graph).node["feature"].tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """

    def __init__(
        self, features: str | Iterable[str] = "feature", **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(**kwargs)
        names = [features] if isinstance(features, str) else features
        self.features = strings("features", names)

    def call(self, graph: Graph) -> Graph:
        """Return the graph with normalised features."""
        return graph.replace(
            node={
                **graph.node,
                **{name: self._normalized(graph, name) for name in self.features},
            }
        )

    def _normalized(self, graph: Graph, name: str) -> np.ndarray:
        if name not in graph.node:
            raise ValueError(
                f"Expected `features` to be among the node features "
                f"{sorted(graph.node)}. Received: {name!r}. Name others."
            )
        values = graph.node[name]
        if values.ndim != 2 or values.min(initial=0) < 0:
            raise ValueError(
                f"Expected node[{name!r}] to be of shape [N, F] and not negative. "
                f"Received: shape {values.shape}, values from {values.min(initial=0)}. "
                "Leave it out of `features`."
            )
        total = values.sum(axis=1, keepdims=True, dtype=np.float32)
        return values / np.where(total > 0, total, 1).astype(np.float32)
