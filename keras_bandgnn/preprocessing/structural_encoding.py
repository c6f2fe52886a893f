"""`StructuralEncoding`: positional encodings from the edges, as node features."""

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

# Eigenvectors of the normalised Laplacian, the same ones each time.


# Up to this many nodes LAPACK is given the dense matrix.
_DENSE_NODES = 400
# Restarts of the Lanczos iteration before the Laplacian is factorised instead.
_RESTARTS = 60
_SHIFT = 1e-5
# Entries this close to the largest are as large: rounding must not choose the sign.
_TIE = 1e-5
# Eigenvalues this close are one: any basis of their vectors is as good, and which one
# comes out depends on the processor.
_EQUAL = 1e-6


def laplacian_vectors(linked, count: int) -> np.ndarray:
    """Return eigenvectors of I - D^-1/2 A D^-1/2 for the smallest eigenvalues.

    The one vector that every graph has, proportional to the roots of the degrees, is
    left out. Each further component adds a vector with the eigenvalue 0: they are
    known without a search, the one that separates the two largest components first.
    Isolated nodes take no part, their rows are 0.

    Args:
        linked: Symmetric CSR array [N, N] without loops; values are not read.
        count: Number of columns k. Those beyond the number of nodes with neighbours
            less one are 0.

    Returns:
        float32 [N, k], columns of length 1 by ascending eigenvalue; of each the entry
        of largest absolute value is positive, the first of several. Vectors of one
        eigenvalue are those of `_basis`, whatever the linear algebra library gave.
    """
    from scipy.sparse.csgraph import connected_components

    out = np.zeros((linked.shape[0], count), np.float32)
    nodes = np.flatnonzero(np.diff(linked.indptr))
    count = min(count, nodes.size - 1)
    if count < 1:
        return out
    linked = linked[nodes][:, nodes].astype(np.float64)
    root = np.sqrt(np.diff(linked.indptr))
    linked.data = 1 / (np.repeat(root, np.diff(linked.indptr)) * root[linked.indices])
    num_parts, part = connected_components(linked, directed=False)
    weight = np.bincount(part, root**2)
    unit = root / np.sqrt(weight)[part]
    vectors = _between_parts(part, unit, weight, min(count, num_parts - 1))
    if count > vectors.shape[1]:
        values, within = _within_parts(linked, part, unit, count - vectors.shape[1])
        groups = np.flatnonzero(np.diff(values) > _EQUAL) + 1
        within = [_basis(group) for group in np.split(within, groups, axis=1)]
        vectors = np.concatenate([vectors, *within], axis=1)[:, :count]
    size = np.abs(vectors)
    first = np.argmax(size >= (1 - _TIE) * size.max(axis=0), axis=0)
    vectors *= np.sign(vectors[first, np.arange(count)])
    out[nodes, :count] = vectors
    return out


def _between_parts(part, unit, weight, count: int) -> np.ndarray:
    """Return vectors of eigenvalue 0, orthogonal to one another and the trivial one."""
    order = np.argsort(-weight, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    total = np.cumsum(weight[order])
    root = np.sqrt(weight)[part]
    vectors = np.zeros((part.size, count))
    for column in range(count):
        earlier, this = place[part] <= column, place[part] == column + 1
        vectors[earlier, column] = root[earlier]
        vectors[this, column] = -total[column] / root[this]
        vectors[:, column] *= unit
        vectors[:, column] /= np.linalg.norm(vectors[:, column])
    return vectors


def _basis(vectors: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis that depends on the space alone.

    Each vector is the projection of a node, the one that lies closest to what is left
    of the space (the first of several).
    """
    if vectors.shape[1] == 1:
        return vectors
    residual, columns = vectors, []
    for _ in range(vectors.shape[1]):
        length = np.linalg.norm(residual, axis=1)
        node = np.argmax(length >= (1 - _TIE) * length.max())
        direction = residual[node] / length[node]
        columns.append(vectors @ direction)
        residual = residual - np.outer(columns[-1], direction)
    return np.stack(columns, axis=1)


def _within_parts(walk, part, unit, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest eigenvalues above 0, ascending, and their vectors.

    More than `count` where an eigenvalue has several vectors, small graphs only.
    """
    size, num_parts = part.size, part.max() + 1
    if size <= _DENSE_NODES or 2 * count >= size:
        parts = np.zeros((size, num_parts))
        parts[np.arange(size), part] = unit
        # Eigenvalues lie in [0, 2]: this puts those of the parts behind all others.
        matrix = np.eye(size) - walk.toarray() + 3 * parts @ parts.T
        values, vectors = np.linalg.eigh(matrix)
        count = np.searchsorted(values, values[count - 1] + _EQUAL)
        return values[:count], vectors[:, :count]
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

    def apart(x):
        x = np.ravel(x)
        return x - unit * np.bincount(part, unit * x, num_parts)[part]

    def largest(apply, **options):
        operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
        start = apart(np.random.default_rng(0).standard_normal(size))
        width = min(size, max(2 * count + 1, 32))
        values, vectors = eigsh(
            operator, count, which="LA", v0=start, ncv=width, **options
        )
        order = np.argsort(-values, kind="stable")
        return -values[order], vectors[:, order]

    try:
        # Shifted by one, the eigenvalues of the parts, at 0, come last.
        return largest(lambda x: (y := apart(x)) + apart(walk @ y), maxiter=_RESTARTS)
    except ArpackNoConvergence:
        # Close eigenvalues mean long, thin graphs, whose factors are sparse.
        shifted = (1 + _SHIFT) * eye_array(size) - walk
        inverse = splu(
            shifted.tocsc(), "MMD_AT_PLUS_A", options={"SymmetricMode": True}
        )
        values, vectors = largest(lambda x: apart(inverse.solve(apart(x))))
        return 1 / -values, vectors


# Probabilities that a random walk is back where it started.


# Entries of the columns whose powers are computed together.
_ENTRIES = 1 << 21


def return_probabilities(linked, steps: int) -> np.ndarray:
    """Return the diagonals of the powers 1 to k of D^-1 A, exact.

    They equal those of the symmetric matrix S = D^-1/2 A D^-1/2, and the diagonal of
    S^(a+b) holds the products of the columns of S^a and S^b. So k steps take k / 2
    powers, each of O(N E) operations; of them some columns are in memory at a time.

    Args:
        linked: Symmetric CSR array [N, N] without loops; values are not read.
        steps: k.

    Returns:
        float32 [N, k]; rows of isolated nodes are 0.
    """
    num_nodes = linked.shape[0]
    out = np.zeros((num_nodes, steps), np.float32)
    root = np.sqrt(np.maximum(np.diff(linked.indptr), 1))
    walk = linked.astype(np.float64)
    walk.data = 1 / (np.repeat(root, np.diff(walk.indptr)) * root[walk.indices])
    width = max(1, _ENTRIES // num_nodes)
    if num_nodes <= width:
        walk = walk.toarray()
    for first in range(0, num_nodes, width):
        chunk = slice(first, first + width)
        power = walk[:, chunk]
        power = power if isinstance(power, np.ndarray) else power.toarray()
        for step in range(2, steps + 1):
            before = power
            if step % 2:
                power = walk @ power
            out[chunk, step - 1] = np.einsum("ij,ij->j", before, power)
    return out


@serializable
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
        **kwargs: Unpack[LayerOptions],
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
        """Return the graph with the features added."""
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
