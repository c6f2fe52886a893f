import pickle

import numpy as np
import pytest

from keras_bandgnn import Graph


def test_fields_are_read_only_32_bit_copies():
    senders = np.array([0, 1])
    graph = Graph(3, senders, [1, 2], node={"x": np.ones((3, 2))}, label=1.5)
    senders[0] = 2
    assert graph.senders.tolist() == [0, 1]
    assert graph.senders.dtype == np.int32
    assert graph.node["x"].dtype == graph.label.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        graph.senders[0] = 1
    with pytest.raises(AttributeError, match="replace"):
        graph.label = 3
    with pytest.raises(TypeError):
        graph.node["y"] = 1


def test_a_view_of_writable_data_is_copied():
    base = np.zeros((3, 4), np.float32)
    graph = Graph(3, [], [], node={"x": base[:, :]})
    base[:] = 1
    assert not graph.node["x"].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nodes": 0}, "at least 1"),
        ({"num_nodes": -3}, "at least 1"),
        ({"num_nodes": 2.0}, "to be an integer"),
        ({"num_nodes": True}, "to be an integer"),
        ({"senders": [0, 3]}, r"senders\[1\]=3"),
        ({"receivers": [-1, 0]}, r"receivers\[0\]=-1"),
        ({"senders": [0.5, 1.0]}, "1-D array of integers"),
        ({"senders": [[0, 1]]}, "1-D array of integers"),
        ({"senders": [0]}, "as many senders as receivers"),
        ({"edge_type": [0]}, "one edge type per edge"),
        ({"edge_type": [0, -1]}, r"edge_type\[1\]=-1\.$"),
        ({"node": {"x": [1.0, np.nan, 2.0]}}, r"node\['x'\]\[1\]=nan"),
        ({"node": {"x": [1.0, 2.0]}}, "one row per node, num_nodes=3"),
        ({"node": {"x": [[1], [2, 3], [4]]}}, "differing lengths"),
        ({"node": {"x": ["a", "b", "c"]}}, "array of numbers"),
        ({"node": {"x": [2**40, 0, 0]}}, "fit into int32"),
        ({"edge": {"w": [1.0]}}, "one row per edge"),
        ({"context": {"t": np.inf}}, "to be finite"),
        ({"candidates": []}, "at least one candidate"),
        ({"candidates": [5]}, r"candidates\[0\]=5"),
        ({"candidates": [0, 1], "label": 2}, r"in \[0, 2\)"),
        ({"candidates": [0, 1], "label": 0.5}, "position of the correct candidate"),
        ({"label": "yes"}, "array of numbers"),
        ({"label": np.nan}, r"-1 for an unknown class, \[nan\]"),
        ({"label": np.array(np.nan)}, r"-1 for an unknown class, \[nan\]"),
        ({"label": np.inf}, "Received: label=inf"),
        ({"label": [1, 2], "label_level": "node"}, "one row per node"),
        ({"label_level": "pair"}, "'graph', 'node' or 'edge'"),
        ({"label": [1, 2, 3], "label_level": "edge"}, "one row per edge.*num_edges=2"),
        ({"slot": 7}, "slot"),
        ({"label": 2**40}, "fit into int32"),
        ({"label": float("nan")}, "a known number"),
        ({"node": {"x": [1e300, 0, 0]}}, "fit into float32"),
        ({"node": {"mask": [1, 1, 1]}}, "Rename the feature"),
        ({"edge": {"type": [1, 1]}}, "Rename the feature"),
        ({"origin": [0]}, "one origin per node"),
    ],
)
def test_bad_input(changes, message):
    fields = {"num_nodes": 3, "senders": [0, 1], "receivers": [1, 2], **changes}
    with pytest.raises(ValueError, match=message):
        Graph(**fields)


def test_what_works():
    assert Graph(1, [], []).bandwidth == 0
    loops = Graph(2, [0, 0, 0], [0, 1, 1])
    assert loops.num_edges == 3 and loops.bandwidth == 1
    assert Graph(2, [], [], label=np.array([1.0, 2.0])).label.shape == (2,)


def test_subgraph_moves_every_field_of_nodes():
    graph = Graph(
        4,
        [0, 1, 2, 3],
        [1, 2, 3, 0],
        edge_type=[0, 1, 2, 3],
        node={"id": [10, 11, 12, 13]},
        edge={"w": [0.0, 1.0, 2.0, 3.0]},
        candidates=[3, 1],
        label=1,
        slot=2,
    )
    part = graph.subgraph([3, 2, 1])
    assert part.node["id"].tolist() == part.origin.tolist()[:0] + [13, 12, 11]
    assert part.origin.tolist() == [3, 2, 1]
    pairs = zip(part.senders, part.receivers, part.edge_type, strict=True)
    assert [tuple(map(int, p)) for p in pairs] == [(2, 1, 1), (1, 0, 2)]
    assert part.edge["w"].tolist() == [1.0, 2.0]
    assert (part.candidates.tolist(), int(part.label), part.slot) == ([0, 2], 1, 1)
    again = part.subgraph([2, 0, 1])
    assert again.origin.tolist() == [1, 3, 2]
    for nodes, message in (([0, 1], "keep the slot"), ([0, 0], "distinct")):
        with pytest.raises(ValueError, match=message):
            graph.subgraph(nodes)


def test_node_labels_follow_and_graph_labels_do_not():
    nodes = Graph(3, [], [], label=[5, 6, 7], label_level="node")
    assert nodes.subgraph([2, 0]).label.tolist() == [7, 5]
    whole = Graph(3, [], [], label=[5.0, 6.0, 7.0])
    assert whole.subgraph([2, 0]).label.tolist() == [5.0, 6.0, 7.0]
    edges = Graph(3, [0, 1, 2], [1, 2, 0], label=[5, 6, 7], label_level="edge")
    assert edges.subgraph([2, 0]).label.tolist() == [7]
    assert edges.subgraph([1, 0, 2]).label.tolist() == [5, 6, 7]


def test_labels_that_are_not_known_are_nan():
    nan = float("nan")
    for label, level in (([1.0, nan], "graph"), ([nan] * 3, "node"), ([nan], "edge")):
        graph = Graph(3, [0], [1], label=label, label_level=level)
        np.testing.assert_array_equal(graph.label, label)
        assert graph.label.dtype == np.float32
    with pytest.raises(ValueError, match="to be finite"):
        Graph(3, [0], [1], label=[1.0, float("inf")])


def test_masked_arrays_are_refused():
    """NumPy drops the mask, and what is under it is no data."""
    masked = np.ma.masked_array([1, 999], [False, True])
    for change in (
        {"node": {"x": masked}},
        {"label": masked.astype(float)},
        {"senders": masked},
        {"edge_type": masked},
    ):
        with pytest.raises(ValueError, match="without masked entries.*1 of 2.*Fill"):
            Graph(**{"num_nodes": 2, "senders": [0, 1], "receivers": [1, 0]} | change)
    whole = np.ma.masked_array([1, 2], False)
    assert Graph(2, [], [], node={"x": whole}).node["x"].tolist() == [1, 2]


def test_worker_processes_can_receive_it():
    graph = Graph(2, [0], [1], node={"x": [1.0, 2.0]}, info={"file": "a.py"})
    copy = pickle.loads(pickle.dumps(graph))
    assert copy.info == graph.info and copy.node["x"].tolist() == [1.0, 2.0]
    assert "num_nodes=2" in repr(copy)


def test_copies_share_what_nobody_can_write_to():
    values = np.ones((3, 2), np.float32)
    graph = Graph(3, [0], [1], node={"x": values})
    assert not np.shares_memory(graph.node["x"], values)
    again = graph.replace(label=1)
    assert np.shares_memory(again.node["x"], graph.node["x"])
    # A view that cannot be written to, of values that can.
    view = values[:]
    view.flags.writeable = False
    assert not np.shares_memory(graph.replace(node={"x": view}).node["x"], values)
