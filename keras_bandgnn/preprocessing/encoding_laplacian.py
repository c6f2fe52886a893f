"""Eigenvectors of the normalised Laplacian, the same ones each time."""

import numpy as np

# Up to so many nodes LAPACK takes the whole matrix.
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
    """Eigenvectors of I - D^-1/2 A D^-1/2 for the smallest eigenvalues.

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
        values, rest = _within_parts(linked, part, unit, count - vectors.shape[1])
        groups = np.flatnonzero(np.diff(values) > _EQUAL) + 1
        rest = [_basis(group) for group in np.split(rest, groups, axis=1)]
        vectors = np.concatenate([vectors, *rest], axis=1)[:, :count]
    size = np.abs(vectors)
    first = np.argmax(size >= (1 - _TIE) * size.max(axis=0), axis=0)
    vectors *= np.sign(vectors[first, np.arange(count)])
    out[nodes, :count] = vectors
    return out


def _between_parts(part, unit, weight, count: int) -> np.ndarray:
    """Vectors with the eigenvalue 0, orthogonal to each other and the trivial one."""
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
    """The same orthonormal basis of a space, whichever basis spans it.

    Each vector is the projection of a node, the one that lies closest to what is left
    of the space (the first of several).
    """
    if vectors.shape[1] == 1:
        return vectors
    left, columns = vectors, []
    for _ in range(vectors.shape[1]):
        length = np.linalg.norm(left, axis=1)
        node = np.argmax(length >= (1 - _TIE) * length.max())
        direction = left[node] / length[node]
        columns.append(vectors @ direction)
        left = left - np.outer(columns[-1], direction)
    return np.stack(columns, axis=1)


def _within_parts(walk, part, unit, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The smallest eigenvalues above 0, ascending, and their vectors.

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
