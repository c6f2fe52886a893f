import numpy as np
import pytest
from converter_graphs import assert_same, edgeless, graphs, make
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph

pd = pytest.importorskip("pandas")

from keras_bandgnn.data.converters.pandas_tables import (  # noqa: E402
    from_pandas,
    to_pandas,
)


@settings(max_examples=30, deadline=None)
@given(graphs | edgeless)
def test_round_trip(graph):
    back = from_pandas(*to_pandas(graph))
    assert_same(back, graph)
    assert not back.info


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=5),
    st.sampled_from([None, "graph", "node"]),
    st.randoms(use_true_random=False),
)
def test_round_trip_of_many(seeds, level, random):
    some = [make(seed, level, edges=seed % 4 > 0) for seed in seeds]
    tables = to_pandas(some)
    # Rows may come in any order; that of the graphs is the order of their table.
    order = list(range(len(tables.edges)))
    random.shuffle(order)
    tables = tables._replace(edges=tables.edges.iloc[order])
    back = from_pandas(*tables, graph="graph")
    assert len(back) == len(some)
    for number, (a, b) in enumerate(zip(back, some, strict=True)):
        assert_same(a, b)
        assert a.info == {"graph": number}


def test_names_and_order():
    edges = pd.DataFrame(
        {
            "from": ["b", "a", "x", "z"],
            "to": ["a", "b", "z", "x"],
            "of": ["one", "one", "two", "two"],
            "edge_type": [0, 1, 2, 0],
            "weight": [1.0, 2.0, 3.0, 4.0],
        }
    )
    flat = from_pandas(edges, source="from", target="to", graph="of")
    assert [dict(graph.info) for graph in flat] == [
        {"graph": "one", "nodes": ["a", "b"]},
        {"graph": "two", "nodes": ["x", "z"]},
    ]
    assert flat[0].senders.tolist() == [1, 0] and flat[0].edge_type.tolist() == [0, 1]
    nodes = pd.DataFrame(
        {"of": ["two", "one", "one", "two"], "x": [1, 2, 3, 4], "label": [0, 1, 0, 1]},
        index=["z", "a", "b", "x"],
    )
    graphs = pd.DataFrame({"charge": [5, 6]}, index=["one", "two"])
    flat = from_pandas(edges, nodes, graphs, "from", "to", graph="of")
    assert flat[0].node["x"].tolist() == [2, 3] and flat.label_level == "node"
    assert flat[1].info == {"graph": "two", "nodes": ["z", "x"]}
    assert flat[1].context["charge"] == 6 and flat[1].label.tolist() == [0, 1]
    assert flat[1].edge["weight"][flat[1].receivers == 0].tolist() == [3.0]


def test_rows_keep_their_order_in_a_single_graph():
    edges = pd.DataFrame({"source": [5, 3, 5], "target": [3, 5, 3], "w": [1, 2, 3]})
    graph = from_pandas(edges)
    assert graph.senders.tolist() == [1, 0, 1] and graph.edge["w"].tolist() == [1, 2, 3]
    assert graph.info["nodes"] == [3, 5]
    nodes = pd.DataFrame({"node": [7, 5, 3]})
    graph = from_pandas(edges, nodes)
    assert graph.num_nodes == 3 and graph.senders.tolist() == [1, 2, 1]


def test_labels_of_edges_are_a_column():
    one = Graph(2, [0, 1], [1, 0], label=[4, 5], label_level="edge")
    assert to_pandas(one).edges["label"].tolist() == [5, 4]


def test_columns_of_other_kinds_of_numbers():
    edges = pd.DataFrame({"source": [0], "target": [1]})
    nodes = pd.DataFrame(
        {
            "a": pd.array([1, 2], dtype="Int64"),
            "b": pd.array([True, False], dtype="boolean"),
            "c": np.array([1, 2], np.uint8),
        }
    )
    graph = from_pandas(edges, nodes)
    assert {k: v.dtype for k, v in graph.node.items()} == dict.fromkeys("abc", np.int32)
    stamps = pd.to_datetime(["2020-01-01", "2020-01-02"])
    graph = from_pandas(pd.DataFrame({"source": stamps, "target": stamps}))
    assert not graph.info and graph.num_nodes == 2


EDGES = pd.DataFrame({"source": [0, 1], "target": [1, 0]})


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: from_pandas(EDGES, source="src"), r"'src' in the table edges.*source"),
        (lambda: from_pandas(EDGES, graph="g"), "'g' in the table edges"),
        (
            lambda: from_pandas(EDGES.assign(kind=["a", "b"])),
            "column 'kind' of edges.*'a'.*Categorical",
        ),
        (
            lambda: from_pandas(EDGES.assign(w=[1.0, None])),
            "every row of the column 'w' of edges.*row 1",
        ),
        (
            lambda: from_pandas(EDGES, pd.DataFrame({"node": [0, 0, 1]})),
            "once in the table nodes.*0 twice",
        ),
        (
            lambda: from_pandas(EDGES, pd.DataFrame({"node": [0, 2]})),
            "nodes of the table nodes.*Received: 1",
        ),
        (
            lambda: from_pandas(EDGES.assign(source=[0, None])),
            "missing value in row 1",
        ),
        (
            lambda: from_pandas(EDGES, graphs=pd.DataFrame({"a": [1, 2]})),
            "one row in the table graphs.*Received: 2",
        ),
        (
            lambda: from_pandas(
                EDGES.assign(g=0), graphs=pd.DataFrame(index=[0, 1]), graph="g"
            ),
            "have a node.*none in graph 1",
        ),
        (
            lambda: from_pandas(
                EDGES.assign(g=[0, 7]), graphs=pd.DataFrame(index=[0, 1]), graph="g"
            ),
            "graphs of the table edges.*Received: 7",
        ),
        (
            lambda: from_pandas(
                EDGES.assign(g=0), graphs=pd.DataFrame(index=[0, 0]), graph="g"
            ),
            "once in the table graphs.*0 twice",
        ),
        (
            lambda: from_pandas(
                EDGES,
                pd.DataFrame({"label": [0, 1]}),
                pd.DataFrame({"label": [1]}),
            ),
            "`label`.*both",
        ),
        (
            lambda: from_pandas(EDGES.assign(**{"x[0]": 0, "x[2]": 1})),
            r"'x' in the table edges.*no column 'x\[1\]'",
        ),
        (lambda: from_pandas(EDGES.iloc[:0]), "have a node.*Received: none"),
        (
            lambda: from_pandas(EDGES.assign(g=0, w=2**40), graph="g"),
            r"edge\['w'\].*int32",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


LARGE = 2**60
WHOLE = ("int64", "uint64", "Int64", "UInt64")


@pytest.mark.parametrize("one", WHOLE)
@pytest.mark.parametrize("other", WHOLE)
def test_large_names_of_two_types_are_distinct(one, other):
    numbers = np.arange(4) + LARGE
    edges = pd.DataFrame(
        {
            "source": pd.Series(numbers[:3], dtype=one),
            "target": pd.Series(numbers[1:], dtype=other),
        }
    )
    graph = from_pandas(edges)
    assert graph.info["nodes"] == numbers.tolist()
    assert graph.senders.tolist() == [0, 1, 2]
    assert graph.receivers.tolist() == [1, 2, 3]
    nodes = pd.DataFrame({"node": pd.Series(numbers[::-1].copy(), dtype=other)})
    assert from_pandas(edges, nodes).receivers.tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match=str(LARGE + 3)):
        from_pandas(edges, nodes.iloc[1:])


@pytest.mark.parametrize("one", WHOLE)
@pytest.mark.parametrize("other", WHOLE)
def test_large_names_of_graphs_are_distinct(one, other):
    names = np.repeat(np.arange(3) + LARGE, 2)
    nodes = pd.DataFrame({"node": [0, 1] * 3, "graph": pd.Series(names, dtype=one)})
    ends = {"source": [0, 0, 0], "target": [1, 1, 1]}
    graph = pd.Series(names[[4, 0, 2]], dtype=other)
    edges = pd.DataFrame({**ends, "graph": graph, "w": [2, 0, 1]})
    flat = from_pandas(edges, nodes, graph="graph")
    assert [graph.edge["w"].tolist() for graph in flat] == [[0], [1], [2]]


def test_names_that_are_floats():
    nodes = pd.DataFrame({"node": [1, 2, 3]})
    edges = pd.DataFrame({"source": [1.0, 3.0], "target": [2, 2]})
    assert from_pandas(edges, nodes).senders.tolist() == [0, 2]
    large = pd.DataFrame({"source": [1.0, float(LARGE)], "target": [2, 2]})
    with pytest.raises(
        ValueError, match="(?s)'source' of float64.*2\\*\\*53.*integers"
    ):
        from_pandas(large)
    mixed = pd.DataFrame({"source": [1.0, 2.0], "target": [LARGE, LARGE + 1]})
    assert from_pandas(mixed).num_nodes == 4


@pytest.mark.parametrize("kind", ["float64", "Int64", "Float64"])
def test_labels_of_graphs_may_be_missing(kind):
    pandas = pytest.importorskip("pandas")
    edges = pandas.DataFrame({"g": [0, 1], "source": [0, 0], "target": [1, 1]})
    graphs = pandas.DataFrame({"g": [0, 1]})
    missing = None if kind != "float64" else np.nan
    graphs["label"] = pandas.array([2, missing], dtype=kind)
    flat = from_pandas(edges, graphs=graphs, graph="g")
    np.testing.assert_array_equal(flat.label, [2, np.nan])
