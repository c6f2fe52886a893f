"""Graphs with node sets on the host: made, refused, stored and converted back."""

import pickle

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs, from_sets, open_store, to_sets, write_store
from keras_bandgnn.data.identity import graph_keys

# Forms of NumPy arrays.
ARRAYS = ("sets", "graph_tensor", "jraph")


def made(seed=0, **options):
    rng = np.random.default_rng(seed)
    authors, papers = rng.integers(2, 6, 2)
    return from_sets(
        {
            "paper": {
                "x": rng.normal(size=(papers, 3)),
                "word": rng.integers(0, 9, papers),
            },
            "author": {"age": rng.normal(size=(authors, 2))},
            "venue": 2,
        },
        {
            ("author", "writes", "paper"): {
                "edge_index": rng.integers(0, [[authors], [papers]], (2, 7)),
                "year": rng.integers(1990, 2020, 7),
            },
            ("paper", "in", "venue"): np.stack(
                [np.arange(papers), rng.integers(0, 2, papers)]
            ),
        },
        **{"label": {"author": rng.integers(0, 3, authors)}, **options},
    )


def assert_same(a, b):
    assert a.num_nodes == b.num_nodes and dict(a.info) == dict(b.info)
    assert a.label_level == b.label_level
    for name in ("senders", "receivers", "edge_type", "label"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    tables = [(a.node, b.node), (a.edge, b.edge)]
    assert [*a.sets] == [*b.sets]
    tables += [(a.sets[name], b.sets[name]) for name in a.sets]
    for one, other in tables:
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def sorted_edges(graph):
    return FlatGraphs.from_graphs([graph])[0]


def test_nodes_follow_one_another_by_set_and_edges_by_edge_set():
    graph = from_sets(
        {"b": {"x": [[1.0], [2.0]]}, "a": 3},
        {("b", "to", "a"): [[0, 1], [2, 0]], ("a", "by", "a"): [[1], [2]]},
        label={"b": [4, 5]},
        node={"train_mask": {"b": [1, 0]}},
        reverse=True,
        info={"name": "small"},
    )
    assert graph.node["set"].tolist() == [0, 0, 0, 1, 1]
    assert graph.node["set_row"].tolist() == [0, 1, 2, 0, 1]
    assert graph.node["train_mask"].tolist() == [0, 0, 0, 1, 0]
    assert graph.label.tolist() == [-1, -1, -1, 4, 5]
    assert graph.sets["a"]["kind"].tolist() == [0, 0, 0]
    names = [("a", "by", "a"), ("a", "rev_by", "a")]
    names += [("a", "rev_to", "b"), ("b", "to", "a")]
    assert graph.info == {"name": "small", "edge_sets": [[*n] for n in names]}
    edges = zip(graph.senders, graph.receivers, graph.edge_type, strict=True)
    assert {tuple(map(int, e)) for e in edges} == {
        *((1, 2, 0), (2, 1, 1), (2, 3, 2), (0, 4, 2), (3, 2, 3), (4, 0, 3))
    }


def test_labels_may_be_those_of_an_edge_set():
    to = ("b", "to", "a")
    ends = {to: [[0, 1], [2, 0]], ("a", "by", "a"): [[1], [2]]}
    nodes = {"b": {"x": [[1.0], [2.0]]}, "a": 3}
    graph = from_sets(nodes, ends, label={to: [4, 5]}, reverse=True)
    assert graph.label_level == "edge" and graph.label.tolist() == [
        -1,
        -1,
        -1,
        -1,
        4,
        5,
    ]
    assert [*to_sets(graph)["label"]] == [to]
    assert_same(from_sets(**to_sets(graph)), graph)
    numbers = from_sets(nodes, ends, label={to: [0.5, 1.5]})
    np.testing.assert_array_equal(numbers.label, np.float32([np.nan, 0.5, 1.5]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": {"a b": 3}}, "names of node sets"),
        ({"nodes": {"a": {}}}, "Expected `nodes\\['a'\\]` to be a feature"),
        ({"nodes": {"a": {"x": [1], "y": [1, 2]}}}, "one row for each node"),
        ({"nodes": {"a": {"mask": [1, 2, 3]}}}, "do not reserve"),
        ({"edges": {("a", "to"): [[0], [0]]}}, "source set, relation, target set"),
        ({"edges": {("a", "to", "c"): [[0], [0]]}}, "node sets of \\['a', 'b'\\]"),
        ({"edges": {("a", "to", "b"): [[3], [0]]}}, "nodes of 'a'"),
        ({"edges": {("a", "to", "b"): [0, 1, 2]}}, "ends int \\[2, E\\]"),
        ({"label": {"c": [0]}}, "node sets of \\['a', 'b'\\] in label"),
        ({"label": {"a": [0]}}, "to have 3 rows"),
        ({"label": {"a": [0, 1, 2], "b": [0, 1]}}, "labels of one node set"),
        ({"label": {("a", "to", "b"): [0]}}, "edge sets of \\[\\] in label"),
        ({"reverse": 1}, "reverse"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"nodes": {"a": 3, "b": 2}, "edges": {}}
    with pytest.raises(ValueError, match=message):
        from_sets(**{**arguments, **change})


def test_columns_that_do_not_name_rows_are_refused():
    graph = made()
    for name, value in (("set", 3), ("set_row", 9), ("set_row", -1)):
        column = graph.node[name].copy()
        column[1] = value
        with pytest.raises(ValueError, match="of node 1"):
            graph.replace(node={**graph.node, name: column})
        columns = FlatGraphs.from_graphs([graph]).columns()
        flat = {"num_nodes": columns["num_nodes"], "num_edges": columns["num_edges"]}
        for end in ("senders", "receivers", "edge_type"):
            flat[end] = columns[end]
        node = {"set": graph.node["set"], "set_row": graph.node["set_row"]}
        rows = {key: columns[f"set_rows/{key}"] for key in graph.sets}
        whole = FlatGraphs(**flat, node=node, sets=graph.sets, set_rows=rows)
        assert [*whole.sets] == [*graph.sets]
        with pytest.raises(ValueError, match="Sets are numbered"):
            node = {**node, name: column}
            FlatGraphs(**flat, node=node, sets=graph.sets, set_rows=rows)
    with pytest.raises(ValueError, match="set_rows/author"):
        FlatGraphs(**flat, node={}, sets=graph.sets)
    with pytest.raises(ValueError, match="node\\['set'\\]"):
        Graph(2, [], [], sets={"a": {"x": [1, 2]}})


def test_graphs_of_other_edge_sets_do_not_come_together():
    graph = made(1)
    fewer = to_sets(graph)
    del fewer["edges"]["paper", "in", "venue"]
    with pytest.raises(ValueError, match="edge sets of graph 0"):
        FlatGraphs.from_graphs([graph, from_sets(**fewer)])


def test_they_are_stored_pickled_taken_and_joined(tmp_path):
    graphs = [made(seed) for seed in range(5)]
    flat = FlatGraphs.from_graphs(graphs)
    write_store(tmp_path / "store", graphs)
    store = open_store(tmp_path / "store")
    joined = FlatGraphs.concatenate([flat, flat])
    for k, graph in enumerate(map(sorted_edges, graphs)):
        assert_same(flat[k], graph)
        assert_same(store[k], graph)
        assert_same(joined[5 + k], graph)
        assert_same(flat.take([k, 0])[0], graph)
        assert_same(pickle.loads(pickle.dumps(graph)), graph)
        assert_same(pickle.loads(pickle.dumps(flat))[k], graph)


def test_what_makes_a_graph_comes_back():
    graph = sorted_edges(made(3))
    assert_same(sorted_edges(from_sets(**to_sets(graph))), graph)
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    again = from_sets(**to_sets(graph.subgraph(order)))
    assert [*again.sets] == [*graph.sets] and again.num_edges == graph.num_edges
    # Rows of dropped nodes are left out.
    some = to_sets(graph.subgraph(np.flatnonzero(graph.node["set"] != 2)))
    assert len(some["nodes"]["venue"]["kind"]) == 0
    assert some["edges"]["author", "writes", "paper"]["edge_index"].shape == (2, 7)


def test_hetero_data_has_labels_of_one_set_or_of_the_graph():
    pyg, torch = (
        pytest.importorskip("torch_geometric.data"),
        pytest.importorskip("torch"),
    )
    data = pyg.HeteroData()
    data["a"].x, data["b"].x = torch.ones(2, 3), torch.ones(1, 1)
    data.y = torch.tensor([1])
    assert kb.data.from_pyg(data).label.tolist() == 1
    encoder = kb.preprocessing.NodeSetEncoder().adapt([data])
    assert encoder(data).label.tolist() == 1 and not encoder(data).context
    data["a"].y, data["b"].y = torch.tensor([0, 1]), torch.tensor([0])
    with pytest.raises(ValueError, match="del data\\['b'\\].y"):
        kb.data.from_pyg(data)


def test_hetero_data_comes_back():
    pytest.importorskip("torch_geometric")
    graph = made(4)
    edges = np.where(np.arange(graph.num_edges) < 7, 1, -1)
    edges[graph.edge_type != 0] = -1
    for label in (
        {},
        {"label": 1.5, "label_level": "graph"},
        {"label": edges, "label_level": "edge"},
    ):
        graph = graph.replace(**label)
        data = kb.data.to_pyg(graph)
        assert {*data.node_types} == {"author", "venue", "paper"}
        assert data["venue"].num_nodes == 2 and "kind" not in data["venue"]
        assert data["author", "writes", "paper"].edge_index.shape == (2, 7)
        assert_same(sorted_edges(kb.data.from_pyg(data)), sorted_edges(graph))


@pytest.mark.parametrize("name", sorted(n for n in kb.data.__all__ if n[:3] == "to_"))
def test_no_converter_drops_the_tables(name):
    package = {"pyg": "torch_geometric", **dict.fromkeys(ARRAYS, "numpy")}
    pytest.importorskip(package.get(name[3:], name[3:]))
    convert = getattr(kb.data, name)
    if name in ("to_sets", "to_pyg", "to_networkx", "to_graph_tensor"):
        # Tests of round trips read what they return.
        convert(made())
        return
    with pytest.raises(ValueError, match="without node sets"):
        convert(made())


def market():
    return {
        "nodes": {
            "customer": {"id": ["c7", "c9", "c1"], "town": ["Bonn", "Ulm", None]},
            "product": {
                "code": [70, 71],
                "price": [2.5, 9.0],
                "shop": [("x", 1), None],
            },
            "shop": {"name": [("x", 1), ("y", 2)]},
        },
        "keys": {"customer": "id", "product": "code", "shop": "name"},
        "edges": {
            ("customer", "buys", "product"): (
                {
                    "who": ["c9", "c7", None],
                    "what": [71, 70, 71],
                    "stars": [5, 3, 1],
                },
                "who",
                "what",
            ),
            ("product", "sold_by", "shop"): "shop",
        },
    }


def test_tables_are_linked_by_keys_of_any_type():
    item = kb.data.link_tables(**market())
    assert item["nodes"] == {
        "customer": {"town": ["Bonn", "Ulm", None]},
        "product": {"price": [2.5, 9.0]},
        "shop": 2,
    }
    buys = item["edges"]["customer", "buys", "product"]
    assert buys["edge_index"].tolist() == [[1, 0], [1, 0]] and buys["stars"] == [5, 3]
    sold = item["edges"]["product", "sold_by", "shop"]["edge_index"]
    assert sold.tolist() == [[0], [0]]
    graph = kb.preprocessing.NodeSetEncoder().adapt([item])(item)
    assert graph.num_nodes == 7 and graph.edge["stars"].tolist() == [2, 1, 0]
    pandas = pytest.importorskip("pandas")
    frames = market()
    frames["nodes"] = {k: pandas.DataFrame(v) for k, v in frames["nodes"].items()}
    again = kb.data.link_tables(**frames)
    for key, part in item["edges"].items():
        np.testing.assert_array_equal(
            again["edges"][key]["edge_index"], part["edge_index"]
        )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("nodes", "product", "code"), [70, 70], "Received: 70 twice"),
        (("nodes", "product", "code"), [70, 72], "71, which no row"),
        (("nodes", "product", "code"), [70], "columns of one length"),
        (("keys", "shop"), "names", "a column 'names'"),
        (("keys", "town"), "id", "node sets of"),
        (("edges", ("product", "sold_by", "shop")), "stop", "a column 'stop'"),
        (("edges", ("product", "sold_by", "shop")), 3, "a column, or"),
        (("edges", ("product", "sold_by", "town")), "shop", "node sets of"),
        (("edges", ("product", "shop")), "shop", "source set, relation"),
        (("nodes", "shop"), 2, "a data frame, or a dict of columns"),
    ],
)
def test_tables_that_do_not_link_are_refused(path, value, message):
    tables = market()
    *parents, last = path
    place = tables
    for name in parents:
        place = place[name]
    place[last] = value
    with pytest.raises(ValueError, match=message):
        kb.data.link_tables(**tables)
    without = market()
    del without["keys"]["shop"]
    with pytest.raises(ValueError, match="key column of 'shop'"):
        kb.data.link_tables(**without)


@pytest.mark.parametrize("kind", ["Int64", "string", "object", "float64"])
def test_missing_keys_of_data_frames_have_no_edge(kind):
    pandas = pytest.importorskip("pandas")
    missing = float("nan") if kind == "float64" else pandas.NA
    key = {"string": "a"}.get(kind, 2)
    users = pandas.DataFrame({"id": pandas.array([key], dtype=kind)})
    cards = pandas.DataFrame({"of": pandas.array([missing, key, missing], dtype=kind)})
    item = kb.data.link_tables(
        {"user": users, "card": cards}, {"user": "id"}, {("card", "of", "user"): "of"}
    )
    ends = item["edges"]["card", "of", "user"]["edge_index"]
    np.testing.assert_array_equal(ends, [[1], [0]])
    twice = pandas.DataFrame([[1, 2]], columns=["id", "id"])
    with pytest.raises(ValueError, match="each column once"):
        kb.data.link_tables({"user": twice}, {"user": "id"}, {})


def test_graphs_are_the_same_if_their_tables_and_edges_are():
    first = made(0)
    order = np.random.default_rng(0).permutation(first.num_nodes)
    same = from_sets(**to_sets(first.subgraph(order)))
    parts = to_sets(first)
    table = {name: values.copy() for name, values in parts["nodes"]["paper"].items()}
    table["x"][0] += 1
    parts["nodes"]["paper"] = table
    graphs = [first, same, from_sets(**parts), made(1), first.subgraph(order)]
    graphs = [g.replace(origin=None) for g in graphs]
    for read in (None, {"node": ("state_row",), "edge": (), "graph": ()}):
        keys = graph_keys(FlatGraphs.from_graphs(graphs), read).tolist()
        assert keys[0] == keys[1] == keys[4] and len({*keys}) == 3
    keys = graph_keys(FlatGraphs.from_graphs(graphs), {"node": ()}).tolist()
    assert len({*keys}) == 2
