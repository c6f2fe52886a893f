import numpy as np
import pytest
from converter_graphs import assert_same, edgeless, graphs, make, make_sets
from hypothesis import given, settings

from keras_bandgnn import Graph
from keras_bandgnn.data import from_sets
from keras_bandgnn.preprocessing import NodeSetEncoder

nx = pytest.importorskip("networkx")

from keras_bandgnn.data.converters.networkx_graphs import (  # noqa: E402
    from_networkx,
    networkx_tables,
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


# === Node sets ===

ATTRIBUTES = {"node_set": "kind", "edge_set": "relation"}


def market(graph):
    """A graph of networkx with users and items, in mixed order."""
    graph.add_node("ann", kind="user", age=31.0, label=1)
    graph.add_node("pen", kind="item", price=2.5, train_mask=True)
    graph.add_node("bob", kind="user", age=64.0, label=0)
    graph.add_edge("ann", "pen", relation="buys", stars=5)
    graph.add_edge("pen", "bob", relation="buys", stars=3)
    graph.add_edge("ann", "bob")
    graph.add_edge("bob", "bob")
    return graph


def edges_by_set(graph):
    """Edge set -> its edges, by the names of nodes."""
    names = graph.info["nodes"]
    out = {}
    ends = zip(graph.senders, graph.receivers, graph.edge_type, strict=True)
    for sender, receiver, kind in ends:
        key = tuple(graph.info["edge_sets"][kind])
        out.setdefault(key, []).append((names[sender], names[receiver]))
    return {key: sorted(edges) for key, edges in out.items()}


def test_an_attribute_names_the_sets_of_nodes():
    graph = from_networkx(market(nx.DiGraph()), **ATTRIBUTES)
    assert graph.info["nodes"] == ["pen", "ann", "bob"]
    assert {name: [*table] for name, table in graph.sets.items()} == {
        "item": ["price"],
        "user": ["age"],
    }
    assert graph.sets["user"]["age"].tolist() == [31, 64]
    assert graph.label.tolist() == [-1, 1, 0]
    assert graph.node["train_mask"].tolist() == [1, 0, 0]
    assert edges_by_set(graph) == {
        ("item", "buys", "user"): [("pen", "bob")],
        ("user", "buys", "item"): [("ann", "pen")],
        ("user", "to", "user"): [("ann", "bob"), ("bob", "bob")],
    }
    assert sorted(graph.edge["stars"].tolist()) == [0, 0, 3, 5]


def test_undirected_edges_between_sets_have_an_edge_set_for_each_direction():
    graph = from_networkx(market(nx.Graph()), **ATTRIBUTES)
    assert edges_by_set(graph) == {
        ("item", "buys", "user"): [("pen", "ann"), ("pen", "bob")],
        ("user", "rev_buys", "item"): [("ann", "pen"), ("bob", "pen")],
        ("user", "to", "user"): [("ann", "bob"), ("bob", "ann"), ("bob", "bob")],
    }
    of_buys = graph.edge_type != 2
    assert sorted(graph.edge["stars"][of_buys].tolist()) == [3, 3, 5, 5]
    double = market(nx.MultiGraph())
    double.add_edge("pen", "ann", relation="buys", stars=1)
    assert from_networkx(double, **ATTRIBUTES).num_edges == graph.num_edges + 2
    without = from_networkx(market(nx.Graph()), node_set="kind", edge=["stars"])
    assert without.info["edge_sets"][0] == ["item", "to", "user"]


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
def test_tables_of_numbers_are_those_of_the_graph(kind):
    net = market(kind())
    for _, _, attributes in net.edges(data=True):
        attributes.setdefault("stars", 0)
    net.graph["year"] = 1999
    tables = networkx_tables(net, **ATTRIBUTES)
    assert_same(from_sets(**tables), from_networkx(net, **ATTRIBUTES))
    with pytest.raises(ValueError, match="'sort'.*Received: None for node 'ann'"):
        networkx_tables(net, "sort")


def test_an_encoder_learns_strings_and_missing_attributes():
    net = market(nx.Graph())
    net.nodes["ann"]["town"] = "Bonn"
    net.nodes["bob"]["town"] = "Ulm"
    net.add_node("eve", kind="user", town="Rome", label=1)
    net.edges["ann", "pen"]["paid"] = "cash"
    encoder = NodeSetEncoder().adapt([networkx_tables(net, **ATTRIBUTES)])
    graph = encoder(networkx_tables(net, **ATTRIBUTES))
    assert graph.sets["user"]["town"].tolist() == [1, 3, 2]
    assert graph.sets["user"]["age"][2] == 0  # the mean
    assert sorted(graph.edge["paid"].tolist()) == [0] * 5 + [1, 1]
    assert graph.label.tolist() == [-1, 1, 0, 1]
    net.nodes["ann"]["town"] = "Oslo"
    assert encoder(networkx_tables(net, **ATTRIBUTES)).sets["user"]["town"][0] == 0


@pytest.mark.parametrize("seed", range(5))
def test_node_sets_come_back(seed):
    for options in (
        {},
        {"label": 1.5, "context": {"u": [1.0, 2.0]}, "info": {"name": "small"}},
        {"node": {"train_mask": {"shop": [1, 0]}}},
    ):
        graph = make_sets(seed, **options)
        back = from_networkx(to_networkx(graph), **ATTRIBUTES)
        assert_same(back, graph)
        assert dict(back.info) == dict(graph.info)
    other = {"node_set": "table", "edge_set": "verb"}
    assert_same(from_networkx(to_networkx(graph, **other), **other), graph)
    net = from_networkx(market(nx.DiGraph()), **ATTRIBUTES)
    net = net.replace(candidates=[2, 0], slot=1, label=0, label_level="graph")
    again = from_networkx(to_networkx(net), **ATTRIBUTES)
    assert_same(again, net)
    assert again.info["nodes"] == net.info["nodes"]


def test_sets_without_nodes_or_edges_come_back():
    graph = from_sets(
        {"a": {"x": [1.0]}, "b": {"y": np.zeros((0, 2))}},
        {("a", "to", "b"): np.zeros((2, 0), int), ("a", "of", "a"): [[0], [0]]},
    )
    back = from_networkx(to_networkx(graph), **ATTRIBUTES)
    assert back.info["edge_sets"] == graph.info["edge_sets"]
    assert [*back.sets] == ["a", "b"] and len(back.sets["b"]["kind"]) == 0


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"edge_set": "relation"}, "omitted without `node_set`"),
        ({}, {"node_set": "sort"}, "'sort'.*Received: None for node 'ann'"),
        ({"ann": {"kind": 3}}, ATTRIBUTES, "Received: 3 for node 'ann'"),
        ({"ann": {"age": None}}, ATTRIBUTES, "'age'.*no value for node 'ann'"),
        ({"pen": {"label": 1}}, ATTRIBUTES, "labels of one node set"),
        ({}, {**ATTRIBUTES, "node": ["size"]}, r"among \[.*Received: node=\['size'\]"),
        ({}, {**ATTRIBUTES, "edge_set": "stars"}, "Received: 5 for edge"),
    ],
)
def test_sets_that_are_refused(change, options, message):
    net = market(nx.DiGraph())
    nx.set_node_attributes(net, change)
    with pytest.raises(ValueError, match=message):
        from_networkx(net, **options)


def test_labels_and_names_that_graphs_with_sets_cannot_have():
    net = market(nx.DiGraph())
    nx.set_edge_attributes(net, 1, "label")
    with pytest.raises(ValueError, match="attribute `label` of edges"):
        from_networkx(net, **ATTRIBUTES)
    graph = make_sets()
    with pytest.raises(ValueError, match="user.*'town'.*Rename"):
        to_networkx(graph, node_set="town")
    labels = graph.replace(label=graph.edge_type, label_level="edge")
    with pytest.raises(ValueError, match="without labels of edges"):
        to_networkx(labels)
