import numpy as np
import pytest
import scipy.sparse as sp
from converter_graphs import assert_same, edgeless, graphs, make
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.data.converters.attributes import graph_of, levels_of, sized
from keras_bandgnn.data.converters.jraph_tuples import (
    GraphsTuple,
    from_jraph,
    to_jraph,
)
from keras_bandgnn.data.converters.scipy_sparse import from_scipy, to_scipy
from keras_bandgnn.optional import optional_import

quick = settings(max_examples=40, deadline=None)


def test_absent_packages_are_named():
    with pytest.raises(ImportError, match=r"package absent .*pip install \"some\[x\]"):
        optional_import("absent.part", "some[x]")


# SciPy


def bare(graph, weight):
    edge = {"weight": graph.edge["edge_len"]} if weight else {}
    return graph.replace(edge=edge, context={})


@quick
@given(graphs | edgeless, st.booleans())
def test_scipy_round_trip(graph, weight):
    graph = bare(graph, weight)
    back = from_scipy(
        to_scipy(graph, by_type=True),
        graph.node,
        graph.label,
        graph.label_level,
        weights=weight,
    )
    assert_same(back, graph)
    untyped = graph.replace(edge_type=None)
    untyped = untyped.replace(label=None, label_level="graph")
    assert_same(from_scipy(to_scipy(graph), graph.node, weights=weight), untyped)


def test_scipy_rows_are_senders():
    dense = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]])
    for kind in (sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.lil_array):
        graph = from_scipy(kind(dense))
        found = np.zeros((3, 3), int)
        found[graph.senders, graph.receivers] = graph.edge["weight"]
        np.testing.assert_array_equal(found, dense)
        np.testing.assert_array_equal(to_scipy(graph).toarray(), dense)


def test_scipy_weights():
    ones = sp.csr_array(np.eye(2))
    assert "weight" not in from_scipy(ones).edge
    assert from_scipy(ones, weights=True).edge["weight"].tolist() == [1, 1]
    assert "weight" not in from_scipy(ones * 2, weights=False).edge
    assert "weight" not in from_scipy(sp.csr_array((3, 3))).edge
    stored_zero = sp.coo_array(([0.0], ([0], [1])), shape=(2, 2))
    assert from_scipy(stored_zero).edge["weight"].tolist() == [0]
    repeated = sp.coo_array(([1.0, 1.0], ([0, 0], [1, 1])), shape=(2, 2))
    assert from_scipy(repeated).num_edges == 2
    assert from_scipy([ones, ones * 3]).edge_type.tolist() == [0, 0, 1, 1]
    graph = Graph(2, [0, 0], [1, 1], edge={"w": [2.0, 3.0], "weight": [1.0, 1.0]})
    assert to_scipy(graph, "w").tocsr()[0, 1] == 5
    assert to_scipy(graph).tocsr()[0, 1] == 2


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: from_scipy(np.eye(3)), "sparse matrix.*Received: ndarray"),
        (lambda: from_scipy(sp.csr_array((2, 3))), r"square.*shape \(2, 3\)"),
        (
            lambda: from_scipy([sp.csr_array((2, 2)), sp.csr_array((3, 3))]),
            r"of the same shape.*\[\(2, 2\), \(3, 3\)\]",
        ),
        (lambda: from_scipy([]), "or one per edge type"),
        (lambda: from_scipy(sp.csr_array((2, 2)), weights="no"), "`weights`.*'no'"),
        (lambda: from_scipy(sp.csr_array([[2**40]])), "int32"),
        (lambda: to_scipy(make(0), "edge_vec"), "one number per edge.*edge_vec"),
        (lambda: to_scipy(make(0), "none"), "'none'"),
    ],
)
def test_scipy_errors(call, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


# The fields of jraph


@quick
@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=5),
    st.sampled_from([None, "graph", "node"]),
)
def test_jraph_round_trip(seeds, level):
    some = [make(seed, level, edges=seed % 4 > 0) for seed in seeds]
    back = from_jraph(to_jraph(some))
    assert len(back) == len(some)
    for a, b in zip(back, some, strict=True):
        assert_same(a, b)


def test_jraph_labels_of_edges():
    one = Graph(2, [0, 1], [1, 0], label=[4, 5], label_level="edge")
    assert to_jraph(one).edges["label"].tolist() == [5, 4]


def test_jraph_bare_arrays_and_none():
    tuple_ = GraphsTuple(
        nodes=np.ones((5, 2)),
        edges=None,
        receivers=np.array([1, 4]),
        senders=np.array([0, 2]),
        globals=np.zeros((2, 3)),
        n_node=np.array([2, 3]),
        n_edge=np.array([1, 1]),
    )
    flat = from_jraph(tuple_)
    assert flat[1].senders.tolist() == [0] and flat[1].receivers.tolist() == [2]
    assert flat.node["nodes"].shape == (5, 2) and not flat.edge
    again = to_jraph(flat)
    assert again.edges is None and again.nodes.shape == (5, 2)
    assert again.senders.tolist() == [0, 2] and again.receivers.tolist() == [1, 4]
    assert to_jraph(Graph(1, [], [])).nodes is None


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"n_node": [2, 0]}, "graph 1 without.*unpad_with_graphs"),
        ({"nodes": {"a": {"b": np.ones(3)}}}, "`nodes`.*dict at 'a'"),
        ({"nodes": np.ones(4)}, r"node\['nodes'\].*sum of n_node=3"),
        ({"edges": np.ones(1)}, r"edge\['edges'\].*sum of n_edge=2"),
        ({"globals": np.ones(3)}, r"context\['globals'\].*graphs=2"),
        ({"senders": [0]}, "Expected 2 senders.*Received: 1 and 2"),
        ({"senders": [0, 0]}, r"senders\[1\]=-2"),
        ({"globals": {"label": np.array([1, 2**40])}}, "`label`.*int32"),
        ({"nodes": {"a": np.array([1, np.nan, 0])}}, "finite"),
    ],
)
def test_jraph_errors(changes, message):
    fields = dict.fromkeys(GraphsTuple._fields) | {
        "n_node": [2, 1],
        "n_edge": [1, 1],
        "senders": [0, 2],
        "receivers": [1, 2],
    }
    with pytest.raises(ValueError, match=f"(?s){message}"):
        from_jraph(GraphsTuple(**{**fields, **changes}))


def test_with_jraph_itself():
    jraph = pytest.importorskip("jraph")
    jnp = pytest.importorskip("jax.numpy")
    some = [make(seed, "graph") for seed in range(4)]
    real = jraph.GraphsTuple(*to_jraph(some))
    padded = jraph.pad_with_graphs(real, 64, 64, 6)
    with pytest.raises(ValueError, match="unpad_with_graphs"):
        from_jraph(padded)
    for a, b in zip(from_jraph(jraph.unpad_with_graphs(padded)), some, strict=True):
        assert_same(a, b)
    joined = jraph.batch([to_jraph(graph) for graph in some])
    for a, b in zip(from_jraph(joined), some, strict=True):
        assert_same(a, b)
    network = jraph.GraphConvolution(lambda nodes: nodes, add_self_edges=True)
    graphs_ = to_jraph(some)
    graphs_ = graphs_._replace(nodes=jnp.asarray(graphs_.nodes["node_vec"]))
    assert network(graphs_).nodes.shape == graphs_.nodes.shape


# Attributes whose level shows in their rows


def test_levels_of_many():
    ends = np.zeros((2, 3), int)

    def sample(n, e, **more):
        return sized(
            {"edge_index": ends[:, :e], "num_nodes": n, "y": np.ones(1), **more}
        )

    one = sample(1, 1, x=np.ones((1, 4)), cell=np.ones((3, 3)), u=np.ones((1, 2)))
    assert levels_of([one]) == {"x": "node", "cell": "context"}
    three = sample(3, 3, x=np.ones((3, 4)), cell=np.ones((3, 3)), u=np.ones((1, 2)))
    assert "cell" not in levels_of([three])
    together = {"x": "node", "cell": "context", "u": "context", "y": "context"}
    assert levels_of([one, three]) == levels_of([three, one]) == together
    equal = sample(3, 3, edge_attr=np.ones(3), mass=np.ones(3))
    # Nothing tells whether a mass belongs to a node or to an edge here.
    assert levels_of([equal]) == {"y": "context", "edge_attr": "edge"}


def test_graph_of_lists():
    values = sized(
        {
            "edge_index": [[0, 1], [1, 2]],
            "node_feat": [[1], [2], [3]],
            "edge_attr": [[5], [6]],
            "y": [0.5],
            "smiles": "CCO",
            "nothing": None,
        }
    )
    graph = graph_of(values, levels_of([values]))
    assert graph.num_nodes == 3 and graph.label == 0.5 and graph.label.shape == ()
    assert graph.node["node_feat"].shape == (3, 1)
    assert graph.edge["edge_attr"].tolist() == [[5], [6]]
    assert graph.info == {"smiles": "CCO"}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"edge_index": [0, 1]}, r"\[2, E\].*Received: \(2,\)"),
        ({"num_nodes": 3}, "`edge_index`.*Received: None"),
        ({"edge_index": [[0], [1]]}, "Expected `num_nodes`.*Received: .*edge_index"),
        (
            {"edge_index": [[0, 0], [1, 1]], "num_nodes": 1, "u": [1]},
            "`u` to determine.*levels=",
        ),
        (
            {"edge_index": [[0, 0], [1, 1]], "num_nodes": 1, "y": [1]},
            "`y` to determine.*label_level=",
        ),
        ({"edge_index": [[0], [1]], "num_nodes": 2, "a": {1}}, "`a`.*JSON"),
    ],
)
def test_attribute_errors(values, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        values = sized(values)
        graph_of(values, levels_of([values]))


def test_flat_graphs_convert_without_graphs():
    flat = FlatGraphs.from_graphs([make(seed, "graph") for seed in range(3)])
    np.testing.assert_array_equal(to_jraph(flat).n_node, flat.num_nodes)
