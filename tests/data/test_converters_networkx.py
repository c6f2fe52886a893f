import numpy as np
import pytest
from converter_graphs import assert_same, edgeless, graphs, make
from hypothesis import given, settings

from keras_bandgnn import Graph

nx = pytest.importorskip("networkx")

from keras_bandgnn.data.converters.networkx_graphs import (  # noqa: E402
    from_networkx,
    to_networkx,
)


def test_labels_of_edges_are_an_attribute():
    one = Graph(2, [0, 1], [1, 0], label=[4, 5], label_level="edge")
    labels = to_networkx(one).edges(data="label")
    assert sorted(labels) == [(0, 1, 4), (1, 0, 5)]


@settings(max_examples=40, deadline=None)
@given(graphs)
def test_round_trip(graph):
    assert_same(from_networkx(to_networkx(graph)), graph)


@settings(max_examples=20, deadline=None)
@given(edgeless)
def test_without_edges_their_features_are_lost(graph):
    assert_same(from_networkx(to_networkx(graph)), graph.replace(edge={}))


def test_candidates_slot_and_info():
    graph = make(3, nodes=5).replace(
        candidates=[4, 1], label=1, slot=2, info={"file": "a.py", "line": 3}
    )
    back = from_networkx(to_networkx(graph))
    assert_same(back, graph)
    assert dict(back.info) == {"file": "a.py", "line": 3}


def test_undirected_edges_lead_both_ways():
    net = nx.Graph()
    net.add_nodes_from("abc")
    net.add_edge("a", "b", weight=2.0)
    net.add_edge("b", "b", weight=3.0)
    graph = from_networkx(net)
    rows = zip(graph.senders, graph.receivers, graph.edge["weight"], strict=True)
    assert sorted(map(tuple, rows)) == [(0, 1, 2), (1, 0, 2), (1, 1, 3)]
    assert graph.info["nodes"] == ["a", "b", "c"]
    double = nx.MultiGraph([(0, 1), (0, 1)])
    assert from_networkx(double).num_edges == 4
    assert from_networkx(nx.DiGraph([(0, 1)])).num_edges == 1


def test_names_of_nodes():
    assert "nodes" not in from_networkx(nx.path_graph(3)).info
    assert from_networkx(nx.relabel_nodes(nx.path_graph(3), {0: 7})).info["nodes"] == [
        7,
        1,
        2,
    ]
    grid = from_networkx(nx.grid_2d_graph(2, 2))
    assert grid.info["nodes"][1] == [0, 1]
    assert set(to_networkx(grid)) == set(nx.grid_2d_graph(2, 2))
    turned = to_networkx(grid.subgraph([3, 0]))
    assert list(turned) == [(1, 1), (0, 0)]
    assert not from_networkx(nx.DiGraph([(object(), object())])).info


def test_attributes_by_name():
    net = nx.path_graph(3)
    nx.set_node_attributes(net, {0: "x", 1: "y", 2: "z"}, "name")
    nx.set_node_attributes(net, {0: [1, 2], 1: [3, 4], 2: [5, 6]}, "pair")
    net.graph.update({"title": "three", "seed": 4, "size": 3.5})
    graph = from_networkx(net, node=["pair"], context=["size"])
    assert graph.node["pair"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert list(graph.context) == ["size"] and graph.info == {"title": "three"}
    assert set(from_networkx(net, node=[]).context) == {"seed", "size"}


def graph_with(node=None, edge=None, graph=None):
    net = nx.path_graph(3)
    for where, values in ((net.nodes, node or {}), (net.edges, edge or {})):
        for key, attributes in values.items():
            where[key].update(attributes)
    net.graph.update(graph or {})
    return net


@pytest.mark.parametrize(
    "net, message",
    [
        (
            graph_with(node={0: {"club": "Hi"}, 1: {"club": "Ho"}, 2: {"club": 1}}),
            "node attribute 'club'.*Received: 'Hi' for node 0.*Map the values.*node=",
        ),
        (
            graph_with(node={0: {"a": 1}, 2: {"a": 1}}),
            "node attribute 'a'.*no value for node 1",
        ),
        (
            graph_with(edge={(0, 1): {"w": [1, 2]}, (1, 2): {"w": [1]}}),
            r"edge attribute 'w'.*shape \(1,\) after \(2,\) for edge \(1, 2\)",
        ),
        (
            graph_with({n: {"label": 1} for n in range(3)}, graph={"label": 2}),
            "`label`.*both",
        ),
        (graph_with(graph={"fun": print}), "graph attribute 'fun'"),
        (graph_with({n: {"mask": 1} for n in range(3)}), "Rename the feature"),
        (graph_with({n: {"a": 2**40} for n in range(3)}), "int32"),
        (nx.Graph(), "num_nodes=0"),
    ],
)
def test_errors(net, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        from_networkx(net)


def test_algorithms_of_networkx_apply():
    graph = Graph(4, [0, 1, 2], [1, 2, 3])
    assert nx.shortest_path_length(to_networkx(graph), 0, 3) == 3
    karate = nx.karate_club_graph()
    graph = from_networkx(karate, node=[])
    assert (graph.num_nodes, graph.num_edges) == (34, 156)
    matrix = nx.to_scipy_sparse_array(karate, weight="weight").toarray()
    found = np.zeros((34, 34))
    found[graph.senders, graph.receivers] = graph.edge["weight"]
    np.testing.assert_array_equal(found, matrix)
