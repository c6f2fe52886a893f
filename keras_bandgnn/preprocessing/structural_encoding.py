"""`StructuralEncoding`: what the edges tell about each node, as node features."""

import keras
import numpy as np

from keras_bandgnn.checks import positive_int
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.adjacency import adjacency
from keras_bandgnn.preprocessing.encoding_laplacian import laplacian_vectors
from keras_bandgnn.preprocessing.encoding_random_walk import return_probabilities
from keras_bandgnn.preprocessing.graph_layer import GraphLayer


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class StructuralEncoding(GraphLayer):
    """Adds node features by which attention can tell the places of nodes apart.

    Edges count once, self-loops never. Degrees are those of the graph as it is given;
    for the other features an edge links its nodes both ways. Layers that add edges,
    such as `AttentionEdges`, come after this one.

    - `in_degree`, `out_degree`: int32 [N], at most `max_degree`.
    - `laplacian`: float32 [N, k], eigenvectors of the symmetric normalised Laplacian
      for the k smallest eigenvalues but the first, which is 0 in every graph. The
      entry of largest absolute value is positive, the first of several. Columns for
      which there are too few nodes, and rows of isolated nodes, are 0. Vectors of
      equal eigenvalues are one choice of many. Up to 400 nodes it takes O(N^3)
      operations, beyond a Lanczos iteration.
    - `random_walk`: float32 [N, k], probabilities that a random walk is back after
      1, ..., k steps; the first column is 0. Isolated nodes have 0. It takes O(k N E)
      operations, 13 seconds for 18,000 nodes and 164,000 edges with k = 8.

    Args:
        max_degree: Larger degrees are set to this one; None adds no degrees.
        laplacian: Number k of eigenvectors.
        random_walk: Number k of steps.

    Raises:
        ValueError: If nothing is asked for. When applied: if the graph has a feature
            of one of these names already.

    Reference:
        Ying et al. 2021 (degrees), Dwivedi and Bresson 2021 (Laplacian), Dwivedi et
        al. 2022 (random walk).

    Example:
    >>> encode = StructuralEncoding(max_degree=64, random_walk=2)
    >>> graph = encode(Graph(3, [0, 1], [1, 2]))
    >>> graph.node["in_degree"].tolist(), graph.node["random_walk"].tolist()
    ([0, 1, 1], [[0.0, 0.5], [0.0, 1.0], [0.0, 0.5]])
    """

    def __init__(
        self,
        max_degree: int | None = None,
        laplacian: int = 0,
        random_walk: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_degree = max_degree
        if max_degree is not None:
            self.max_degree = positive_int("max_degree", max_degree)
        self.laplacian = positive_int("laplacian", laplacian, minimum=0)
        self.random_walk = positive_int("random_walk", random_walk, minimum=0)
        if self.max_degree is None and not self.laplacian and not self.random_walk:
            raise ValueError(
                "Expected `max_degree`, `laplacian` or `random_walk`. Received: "
                "none of them, so StructuralEncoding would add nothing."
            )

    def call(self, graph: Graph) -> Graph:
        """Returns the graph with the features added."""
        size = graph.num_nodes
        added = {}
        if self.max_degree is not None:
            edges = adjacency(size, graph.senders, graph.receivers)
            received = np.diff(edges.indptr)
            sent = np.bincount(edges.indices, minlength=size)
            added["in_degree"] = np.minimum(received, self.max_degree)
            added["out_degree"] = np.minimum(sent, self.max_degree)
        if self.laplacian or self.random_walk:
            linked = adjacency(size, graph.senders, graph.receivers, symmetric=True)
            if self.laplacian:
                added["laplacian"] = laplacian_vectors(linked, self.laplacian)
            if self.random_walk:
                added["random_walk"] = return_probabilities(linked, self.random_walk)
        present = sorted(added.keys() & graph.node.keys())
        if present:
            raise ValueError(
                f"Expected a graph without the node features {sorted(added)}. "
                f"Received: a graph with {present}. Rename them, or encode once."
            )
        return graph.replace(node={**graph.node, **added})

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "max_degree": self.max_degree,
            "laplacian": self.laplacian,
            "random_walk": self.random_walk,
        }
