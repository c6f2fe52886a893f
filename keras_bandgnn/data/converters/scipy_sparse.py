"""Conversion from and to sparse adjacency matrices of SciPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import boolean, instance, one_of, optional, sequence, string
from keras_bandgnn.data.converters.attributes import refuse_sets
from keras_bandgnn.graph import Graph

if TYPE_CHECKING:
    import scipy.sparse

    from keras_bandgnn.aliases import Arrays, Item, Labels


def from_scipy(
    matrix: Item,
    node: Arrays | None = None,
    label: Labels = None,
    label_level: str = "graph",
    weights: bool | str = "auto",
) -> Graph:
    """Convert a sparse adjacency matrix, or one matrix per edge type, to a graph.

    A stored entry A[i, j] is an edge from i to j, even if its value is 0: rows are
    senders and columns are receivers. Duplicate entries of a COO matrix are separate
    edges. For a matrix that is used as A @ x, pass the transpose.

    Args:
        matrix: Sparse [N, N]; or a sequence of P matrices, whose edges get the types 0
            to P - 1.
        node: Node features by name, each [N, ...].
        label: Label of the graph or its nodes.
        label_level: `"graph"` or `"node"`, the level of `label`.
        weights: Whether the values become the edge feature `"weight"`. `"auto"`: unless
            all are 1. For many graphs pass True or False, so that all have the same
            features.

    Raises:
        ValueError: If a matrix is not sparse or not square, or sizes differ.

    Example:
    >>> import scipy.sparse
    >>> graph = from_scipy(scipy.sparse.csr_array([[0, 2], [0, 0]]))
    >>> graph.senders.tolist(), graph.receivers.tolist(), graph.edge["weight"].tolist()
    ([0], [1], [2])
    """
    if not hasattr(matrix, "shape"):
        matrix = sequence("matrix", matrix, "a sparse matrix, or a list of them")
    matrices = [matrix] if hasattr(matrix, "shape") else matrix
    entries = [_entries(adjacency) for adjacency in matrices]
    shapes = {adjacency.shape for adjacency in matrices}
    if len(shapes) != 1:
        raise ValueError(
            "Expected one matrix, or one per edge type, of the same shape. Received: "
            f"the shapes {sorted(shapes)}. Enlarge the smaller ones with .resize."
        )
    one_of("weights", weights, (True, False, "auto"))
    parts = zip(*entries, strict=True)
    rows, columns, values = (np.concatenate(part) for part in parts)
    if weights == "auto":
        weights = bool((values != 1).any())
    counts = [len(entry[0]) for entry in entries]
    return Graph(
        matrices[0].shape[0],
        senders=rows,
        receivers=columns,
        edge_type=np.repeat(np.arange(len(matrices), dtype=np.int32), counts),
        node=node,
        edge={"weight": values} if weights else None,
        label=label,
        label_level=label_level,
    )


def _entries(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not hasattr(matrix, "tocoo"):
        raise ValueError(
            "Expected a sparse matrix or a list of them. Received: "
            f"{type(matrix).__name__}. Convert it with scipy.sparse.csr_array(matrix)."
        )
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            "Expected a square matrix, [N, N]. Received: shape "
            f"{matrix.shape}. For a bipartite graph, pass "
            "scipy.sparse.block_array([[None, matrix], [None, None]])."
        )
    coo = matrix.tocoo()
    return coo.row, coo.col, coo.data


def to_scipy(
    graph: Graph, weight: str | None = None, by_type: bool = False
) -> scipy.sparse.csr_array | list[scipy.sparse.csr_array]:
    """Convert a graph to a sparse matrix whose entry [i, j] is an edge from i to j.

    The result is a `scipy.sparse.coo_array`, which keeps parallel edges separate;
    converting it, for example with `.tocsr()`, sums them.

    Args:
        graph: The graph.
        weight: Edge feature of shape [E] for the values. By default `"weight"` if the
            graph has it, otherwise float32 ones.
        by_type: Whether to return a list with one matrix per edge type.

    Returns:
        [N, N], or a list of P matrices with `by_type`.

    Raises:
        ValueError: If the graph has no such scalar edge feature.

    Example:
    >>> to_scipy(Graph(2, [0, 0], [1, 1])).toarray().tolist()
    [[0.0, 2.0], [0.0, 0.0]]
    """
    import scipy.sparse

    instance("graph", graph, Graph, "a Graph")
    refuse_sets(graph, "SciPy")
    optional(string, "weight", weight)
    boolean("by_type", by_type)
    values = graph.edge.get(weight or "weight")
    if values is None and weight is None:
        values = np.ones(graph.num_edges, np.float32)
    if values is None or values.ndim != 1:
        shapes = {name: list(array.shape) for name, array in graph.edge.items()}
        raise ValueError(
            f"Expected edge[{weight or 'weight'!r}] to be one number per edge. "
            f"Received: edge features {shapes}. Pass another one as weight=."
        )
    shape = (graph.num_nodes, graph.num_nodes)

    def matrix(keep: Any) -> Any:
        ends = graph.senders[keep], graph.receivers[keep]
        return scipy.sparse.coo_array((values[keep], ends), shape=shape)

    if not by_type:
        return matrix(slice(None))
    return [matrix(graph.edge_type == p) for p in range(graph.num_edge_types)]
