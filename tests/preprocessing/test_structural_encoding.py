import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    StructuralEncoding,
    structural_encoding,
)
from keras_bandgnn.primitives import Plan, Segment


def graph_of(num_nodes, num_edges, seed=0, **fields):
    rng = np.random.default_rng(seed)
    return Graph(num_nodes, *rng.integers(0, num_nodes, (2, num_edges)), **fields)


def ring_and(num_nodes, *others):
    """Rings one after another."""
    sizes = [num_nodes, *others]
    first = np.concatenate([[0], np.cumsum(sizes)])
    senders = np.arange(first[-1])
    receivers = np.concatenate(
        [a + (np.arange(n) + 1) % n for a, n in zip(first, sizes, strict=False)]
    )
    return Graph(int(first[-1]), senders, receivers)


def matrix_of(graph, symmetric=True):
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    matrix[graph.receivers, graph.senders] = 1
    np.fill_diagonal(matrix, 0)
    return np.maximum(matrix, matrix.T) if symmetric else matrix


def laplacian_of(graph):
    matrix = matrix_of(graph)
    degree = matrix.sum(axis=1)
    root = np.sqrt(np.maximum(degree, 1))
    return np.diag(degree > 0) - matrix / root / root[:, None], degree > 0


def assert_eigenvectors(graph, vectors):
    """Orthonormal, for the smallest eigenvalues but one, with the right signs."""
    matrix, linked = laplacian_of(graph)
    assert not vectors[~linked].any() and vectors.dtype == np.float32
    matrix, vectors = matrix[linked][:, linked], vectors[linked].astype(float)
    used = min(vectors.shape[1], len(matrix) - 1)
    assert not vectors[:, used:].any()
    vectors = vectors[:, :used]
    values = np.linalg.eigvalsh(matrix)[1 : used + 1]
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(used), atol=1e-5)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-5)
    trivial = np.sqrt(matrix_of(graph).sum(axis=1)[linked])
    np.testing.assert_allclose(trivial @ vectors, 0, atol=1e-4)
    for vector in vectors.T:
        largest = np.abs(vector).max()
        assert vector[np.abs(vector) > largest * (1 - 5e-6)][0] > 0


@pytest.mark.parametrize("seed", range(4))
def test_degrees(seed):
    graph = graph_of(20, 90, seed)
    encoded = StructuralEncoding(max_degree=5)(graph)
    matrix = matrix_of(graph, symmetric=False)
    for name, axis in (("in_degree", 1), ("out_degree", 0)):
        expected = np.minimum(matrix.sum(axis=axis), 5)
        np.testing.assert_array_equal(encoded.node[name], expected)
        assert encoded.node[name].dtype == np.int32
    assert set(encoded.node) == {"in_degree", "out_degree"}


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(30, 60),
        graph_of(60, 40, 1),  # many components, isolated nodes
        ring_and(12),  # pairs of equal eigenvalues
        ring_and(5, 7, 5, 3),
        Graph(6, [0] * 5, [1, 2, 3, 4, 5]),  # the eigenvalue 1, four times
    ],
)
@pytest.mark.parametrize("dense", [400, 0])
def test_laplacian(graph, dense, monkeypatch):
    monkeypatch.setattr(structural_encoding, "_DENSE_NODES", dense)
    for count in (1, 4):
        encode = StructuralEncoding(laplacian=count)
        vectors = encode(graph).node["laplacian"]
        assert vectors.shape == (graph.num_nodes, count)
        assert_eigenvectors(graph, vectors)
        np.testing.assert_array_equal(vectors, encode(graph).node["laplacian"])


def test_laplacian_of_large_graphs():
    assert_eigenvectors(
        graph_of(600, 2400),
        StructuralEncoding(laplacian=6)(graph_of(600, 2400)).node["laplacian"],
    )
    # A long ring with chords: its smallest eigenvalues are too close for Lanczos.
    ring = ring_and(900, 500)
    path = Graph(1400, [*ring.senders, 0], [*ring.receivers, 2])
    assert_eigenvectors(path, StructuralEncoding(laplacian=5)(path).node["laplacian"])


def test_signs_do_not_depend_on_rounding():
    """The two ends of a path have entries of equal size."""
    for size in range(3, 40):
        path = Graph(size, range(size - 1), range(1, size))
        vectors = StructuralEncoding(laplacian=2)(path).node["laplacian"]
        first = np.argmax(np.abs(vectors) > 0.999 * np.abs(vectors).max(0), axis=0)
        assert (vectors[first, [0, 1]] > 0).all() and vectors[0, 0] > 0


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("graph", [ring_and(12), ring_and(9, 9), ring_and(5, 7)])
def test_any_basis_of_an_eigenvalue_gives_the_same_vectors(graph, count, monkeypatch):
    """Which basis comes out of LAPACK depends on the processor."""
    expected = StructuralEncoding(laplacian=count)(graph).node["laplacian"]
    plain = np.linalg.eigh
    rng = np.random.default_rng(0)

    def rotated(matrix):
        values, vectors = plain(matrix)
        groups = np.split(vectors, np.flatnonzero(np.diff(values) > 1e-6) + 1, axis=1)
        turns = [np.linalg.qr(rng.normal(size=(g.shape[1],) * 2))[0] for g in groups]
        turned = [g @ t for g, t in zip(groups, turns, strict=True)]
        return values, np.concatenate(turned, axis=1)

    monkeypatch.setattr(np.linalg, "eigh", rotated)
    found = StructuralEncoding(laplacian=count)(graph).node["laplacian"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_too_few_nodes():
    for graph in (Graph(1, [], []), Graph(3, [1], [1])):
        encoded = StructuralEncoding(3, laplacian=2, random_walk=2)(graph)
        for name, shape in (("laplacian", 2), ("random_walk", 2)):
            assert encoded.node[name].shape == (graph.num_nodes, shape)
            assert not encoded.node[name].any()
        assert not encoded.node["in_degree"].any()
    pair = StructuralEncoding(laplacian=3)(Graph(3, [0], [2])).node["laplacian"]
    np.testing.assert_allclose(pair[:, 0], [0.5**0.5, 0, -(0.5**0.5)], rtol=1e-6)
    assert not pair[:, 1:].any()


@pytest.mark.parametrize("entries", [1 << 21, 1, 200])
def test_random_walk(entries, monkeypatch):
    monkeypatch.setattr(structural_encoding, "_ENTRIES", entries)
    for graph in (graph_of(40, 50), ring_and(5, 3)):
        matrix = matrix_of(graph)
        walk = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        expected = [np.diag(np.linalg.matrix_power(walk, step)) for step in range(1, 8)]
        found = StructuralEncoding(random_walk=7)(graph).node["random_walk"]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.transpose(expected), atol=1e-7)


def test_the_rest_of_a_graph_stays():
    graph = graph_of(6, 9, node={"type": [1] * 6}, edge={"w": [1.0] * 9}, label=2.0)
    encoded = StructuralEncoding(3)(graph)
    assert set(encoded.node) == {"type", "in_degree", "out_degree"}
    assert encoded.label == 2 and encoded.edge["w"].tolist() == [1] * 9
    np.testing.assert_array_equal(encoded.senders, graph.senders)


def test_batches():
    graphs = [graph_of(4 + k % 5, 12, k, label=0.0) for k in range(24)]
    layer = StructuralEncoding(4, laplacian=2, random_walk=3)
    made = GraphPreprocessor([layer], DynamicBatcher(7), Plan(Segment()))
    again = GraphPreprocessor.from_config(made.get_config())
    assert again.get_config() == made.get_config()
    assert (
        layer.get_config().items()
        >= {
            "max_degree": 4,
            "laplacian": 2,
            "random_walk": 3,
        }.items()
    )
    x, _, _ = again.loader(graphs, shuffle=False)[0]
    first = layer(graphs[0])
    for name, value in first.node.items():
        np.testing.assert_array_equal(x["node"][name][0, : len(value)], value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: StructuralEncoding(), "`max_degree`, `laplacian` or.*none of them"),
        (lambda: StructuralEncoding(0), "`max_degree` to be at least 1"),
        (lambda: StructuralEncoding(laplacian=-1), "`laplacian` to be at least 0"),
        (lambda: StructuralEncoding(random_walk=1.5), "`random_walk`.*integer"),
        (
            lambda: StructuralEncoding(3)(Graph(1, [], [], node={"in_degree": [0]})),
            r"without the node features.*Received: a graph with \['in_degree'\]",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
