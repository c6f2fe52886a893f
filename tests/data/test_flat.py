import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn import Graph
from keras_bandgnn.data import FlatGraphs
from keras_bandgnn.data.flat import gather_rows


def make_graph(seed, label_level="graph", **changes):
    rng = np.random.default_rng(seed)
    n, e = int(rng.integers(1, 9)), int(rng.integers(0, 20))
    fields = {
        "num_nodes": n,
        "senders": rng.integers(0, n, e),
        "receivers": rng.integers(0, n, e),
        "edge_type": rng.integers(0, 4, e),
        "node": {"x": rng.random((n, 3)), "type": rng.integers(0, 9, n)},
        "edge": {"w": rng.random(e)},
        "context": {"cell": rng.random((3, 3)), "charge": int(rng.integers(-2, 3))},
        "candidates": rng.integers(0, n, 1 + seed % 3),
        "label": 0,
        "slot": 0 if seed % 2 else None,
        "origin": rng.permutation(n),
        "info": {"name": f"graph {seed}"},
    }
    if label_level != "graph":
        rows = n if label_level == "node" else e
        fields |= {"candidates": None, "label": rng.random((rows, 2))}
    return Graph(label_level=label_level, **{**fields, **changes})


def assert_same(a, b):
    """Equal but for the order of edges, which is by receiver in `a`."""
    order = np.argsort(b.receivers, kind="stable")
    assert (a.num_nodes, a.slot, a.label_level) == (b.num_nodes, b.slot, b.label_level)
    for name in ("senders", "receivers", "edge_type"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name)[order])
    for name in ("candidates", "label", "origin"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None)
        if name == "label" and b.label_level == "edge":
            y = y[order]
        if x is not None:
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype and x.shape == y.shape
            assert not x.flags.writeable
    assert a.edge.keys() == b.edge.keys()
    for name, value in b.edge.items():
        np.testing.assert_array_equal(a.edge[name], value[order])
    for kind in ("node", "context"):
        assert getattr(a, kind).keys() == getattr(b, kind).keys()
        for name, value in getattr(b, kind).items():
            np.testing.assert_array_equal(getattr(a, kind)[name], value)
            assert getattr(a, kind)[name].shape == value.shape
    assert dict(a.info) == dict(b.info)


def test_labels_with_and_without_missing_ones():
    labels = [[0, 1], [float("nan"), 1], [1, 0]]
    flat = FlatGraphs.from_graphs([Graph(2, [0], [1], label=row) for row in labels])
    assert flat.label.dtype == np.float32
    np.testing.assert_array_equal(flat.label, labels)


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_round_trip(level):
    graphs = [make_graph(seed, level) for seed in range(12)]
    flat = FlatGraphs.from_graphs(graphs)
    assert len(flat) == 12 and flat.label_level == level
    for a, b in zip(flat, graphs, strict=True):
        assert_same(a, b)
    assert_same(flat[-1], graphs[-1])
    assert_same(pickle.loads(pickle.dumps(flat))[3], graphs[3])
    with pytest.raises(IndexError, match=r"\[-12, 12\).*Received: 12"):
        flat[12]


def test_copies_know_the_layers_that_were_applied():
    flat = FlatGraphs.from_graphs([make_graph(0)])
    assert not hasattr(copy.copy(flat), "metadata")
    flat.metadata = {"layers": ["some"]}
    for other in (pickle.loads(pickle.dumps(flat)), copy.copy(flat)):
        assert other.metadata == {"layers": ["some"]}
        assert_same(other[0], flat[0])


def test_graphs_are_views_and_read_only():
    flat = FlatGraphs.from_graphs([make_graph(seed) for seed in range(3)])
    graph = flat[1]
    for array, whole in (
        (graph.senders, flat.senders),
        (graph.node["x"], flat.node["x"]),
        (graph.context["cell"], flat.context["cell"]),
        (graph.label, flat.label),
    ):
        assert np.shares_memory(array, whole)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_the_caller_s_arrays_stay_writeable():
    senders, receivers = np.zeros(1, np.int32), np.ones(1, np.int32)
    FlatGraphs(np.array([2], np.int32), np.array([1], np.int32), senders, receivers)
    senders[0] = 1


def test_constructor_sorts_edges_with_their_features():
    flat = FlatGraphs(
        num_nodes=[2, 3],
        num_edges=[2, 3],
        senders=[0, 1, 0, 1, 2],
        receivers=[1, 0, 2, 2, 0],
        edge_type=[1, 2, 3, 4, 5],
        edge={"w": [0.1, 0.2, 0.3, 0.4, 0.5]},
        label=[1.5, 2.5],
    )
    assert flat.receivers.tolist() == [0, 1, 0, 2, 2]
    assert flat.edge_type.tolist() == [2, 1, 5, 3, 4]
    np.testing.assert_allclose(flat.edge["w"], [0.2, 0.1, 0.5, 0.3, 0.4])
    assert flat[1].label == 2.5 and flat[0].candidates is None and flat[0].slot is None


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"senders": [0, 2]}, r"`senders` in \[0, num_nodes\).*2 here.*senders\[1\]=2"),
        ({"num_edges": [1, 0]}, "`senders` to have 1 rows.*Received: 2"),
        ({"node": {"x": [1, 2]}}, "`node/x` to have 3 rows.*Received: 2"),
        ({"candidates": [0, 0]}, "Expected `num_candidates` with `candidates`"),
        ({"slot": [5, -1]}, r"slot\[0\]=5"),
        ({"label": [1]}, "`label/graph` to have 2 rows"),
        ({"label_level": "pair"}, "'graph', 'node' or 'edge'"),
        ({"node": {"x": ["a", "b", "c"]}}, "array of numbers"),
        ({"info": [{}]}, "`info` to have 2 rows"),
        ({"senders": [0, 2**32]}, r"senders\[1\]=4294967296"),
        ({"senders": np.array([0, 2**64 - 1], np.uint64)}, "1844674407370955161"),
        ({"receivers": [0, -(2**32)]}, r"receivers\[1\]=-4294967296"),
        ({"receivers": [0, -1]}, r"receivers\[1\]=-1"),
        ({"receivers": [0.0, 0.0]}, "`receivers` to be a 1-D array of integers"),
        ({"senders": [[0, 1]]}, r"`senders` to be a 1-D array.*shape \(1, 2\)"),
        ({"senders": [[0], [0, 1]]}, "`senders` to be a 1-D array"),
        ({"edge_type": [0, -1]}, r"edge_type\[1\]=-1"),
        ({"edge_type": [0, 2**32]}, r"edge_type\[1\]=4294967296"),
        ({"num_nodes": [2, 2**32 + 1]}, r"num_nodes\[1\]=4294967297"),
        ({"num_nodes": [3, 0]}, r"num_nodes\[1\]=0"),
        ({"num_nodes": 2}, "`num_nodes` to be a 1-D array"),
        ({"num_edges": [3, -1]}, r"num_edges\[1\]=-1"),
        ({"origin": [0, 1, -5]}, r"origin\[2\]=-5"),
        ({"slot": [0, -2]}, r"slot\[1\]=-2"),
        ({"node": {"x": [0, np.nan, 1]}}, r"node\['x'\]` to be finite.*\[1\]=nan"),
        ({"edge": {"w": [0, -np.inf]}}, r"edge\['w'\]` to be finite.*\[1\]=-inf"),
        ({"context": {"c": [1e300, 0]}}, "fit into float32"),
        ({"node": {"x": [0, 2**32, 1]}}, "fit into int32"),
        ({"node": {"x": 3}}, "a row for each node"),
        ({"node": {"x": [[1], [1, 2], [3]]}}, "rectangular array"),
        ({"node": {"mask": [1, 1, 1]}}, r"node\['mask'\]` that batches do not reserve"),
        (
            {"edge": {"sender": [1, 1]}},
            r"edge\['sender'\]` that batches do not reserve",
        ),
        ({"label": [0, np.inf]}, "label.*to be finite.*inf"),
        (
            {"candidates": [0, 0], "num_candidates": [1, 1], "label": [0, 1]},
            r"\[0, num_candidates\) of its graph, 1 here.*\[1\]=1",
        ),
        (
            {"candidates": [0, 0], "num_candidates": [2, 0]},
            r"num_candidates\[1\]=0",
        ),
        (
            {"candidates": [0, 0], "num_candidates": [1, 1], "label": [0.0, 0.0]},
            "position of the correct candidate",
        ),
    ],
)
def test_constructor_errors(changes, message):
    fields = {
        "num_nodes": [2, 1],
        "num_edges": [2, 0],
        "senders": [0, 1],
        "receivers": [0, 0],
    }
    with pytest.raises(ValueError, match=f"(?s){message}"):
        FlatGraphs(**{**fields, **changes})


def test_a_missing_label_is_nan():
    flat = FlatGraphs([1, 1], [0, 0], [], [], label=[np.nan, 2])
    np.testing.assert_array_equal(flat.label, [np.nan, 2])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"node": {"x": [[1.0]], "type": [1]}}, r"node\['x'\].*\[3\].*Received.*\[1\]"),
        ({"node": {"type": [1]}}, r"node\['x'\]` to be float32.*Received: none"),
        ({"node": {"x": [[1, 2, 3]], "type": [1]}}, "float32.*Received: int32"),
        ({"candidates": None}, "`candidates` to be int32.*Received: none"),
        ({"label": None}, "`label/graph` to be int32.*Received: none"),
        ({"edge": {}}, r"edge\['w'\]"),
        ({"context": {"cell": np.eye(3), "charge": 1, "extra": 1}}, "to be none"),
    ],
)
def test_graphs_that_disagree(changes, message):
    fields = {
        "num_nodes": 1,
        "senders": [],
        "receivers": [],
        "edge_type": [],
        "node": {"x": [[1.0, 2.0, 3.0]], "type": [1]},
        "edge": {"w": np.zeros(0, np.float32)},
        "candidates": [0],
        "origin": [0],
    }
    odd = make_graph(1, **{**fields, **changes})
    with pytest.raises(ValueError, match=f"(?s){message}") as error:
        FlatGraphs.from_graphs([make_graph(0), make_graph(2), odd])
    assert "in graph 2, as in graph 0" in str(error.value)


def test_a_graph_without_origin_has_its_own_numbers():
    flat = FlatGraphs.from_graphs(
        [Graph(3, [], [], origin=[5, 7, 9]), Graph(2, [], [])]
    )
    np.testing.assert_array_equal(flat.origin, [5, 7, 9, 0, 1])


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8).flatmap(
        lambda counts: st.tuples(
            st.just(counts), st.lists(st.integers(0, len(counts) - 1), max_size=12)
        )
    )
)
def test_gather_rows(case):
    counts, indices = case
    ptr = np.concatenate([[0], np.cumsum(counts)])
    expected = [row for i in indices for row in range(ptr[i], ptr[i + 1])]
    assert gather_rows(ptr, np.array(indices, np.int64)).tolist() == expected


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-6, 5), max_size=10))
def test_take(indices):
    graphs = [make_graph(seed) for seed in range(6)]
    flat = FlatGraphs.from_graphs(graphs)
    taken = flat.take(indices)
    assert len(taken) == len(indices)
    for graph, i in zip(taken, indices, strict=True):
        assert_same(graph, graphs[i])
    assert taken.spec() == flat.spec()


def test_take_errors():
    flat = FlatGraphs.from_graphs([make_graph(0)])
    with pytest.raises(IndexError, match=r"Received: indices\[1\]=1"):
        flat.take([0, 1])
    with pytest.raises(IndexError, match="integer indices"):
        flat.take([0.5])


def test_concatenate_and_empty():
    graphs = [make_graph(seed) for seed in range(5)]
    empty = FlatGraphs.from_graphs([])
    parts = [FlatGraphs.from_graphs(graphs[:2]), FlatGraphs.from_graphs(graphs[2:])]
    joined = FlatGraphs.concatenate([empty, *parts])
    for a, b in zip(joined, graphs, strict=True):
        assert_same(a, b)
    assert len(empty) == 0 and len(FlatGraphs.concatenate([empty])) == 0
    with pytest.raises(ValueError, match="part 1, as in part 0"):
        FlatGraphs.concatenate([joined, FlatGraphs.from_graphs([Graph(1, [], [])])])


def test_import_stays_light():
    code = (
        "import sys; sys.argv[0] = 'bandgnn'\n"  # which imports what it uses
        "import keras_bandgnn, keras_bandgnn.data\n"
        "from keras_bandgnn.data import FlatGraphs\n"
        "from keras_bandgnn.programs import encode_program, read_varmisuse\n"
        "heavy = {'keras', 'pyarrow', 'jax', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
