import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.explain.edge_places import edge_places, opposite_edges


def of_model(senders, receivers, **edge):
    ends = np.array(senders), np.array(receivers)
    return *ends, {"type": np.zeros(len(senders), int), **edge}


def test_edges_in_another_order():
    graph = kb.Graph(4, [0, 2, 1, 3], [1, 1, 3, 0])
    places = edge_places(graph, *of_model([3, 0, 2, 1], [0, 1, 1, 3]))
    scores = np.array([4.0, 1.0, 2.0, 3.0])
    assert places.to_caller(scores).tolist() == [1, 2, 3, 4]
    assert places.to_model(np.array([1, 0, 0, 1])).tolist() == [1, 1, 0, 0]


def test_parallel_edges_are_told_apart_by_type_and_features():
    graph = kb.Graph(
        2, [0, 0, 0], [1, 1, 1], edge_type=[1, 0, 0], edge={"x": [0.0, 2.0, 1.0]}
    )
    model = of_model([0, 0, 0], [1, 1, 1], x=np.array([1.0, 2.0, 0.0]))
    model[2]["type"] = np.array([0, 0, 1])
    places = edge_places(graph, *model)
    assert places.to_caller(np.array([10.0, 20.0, 30.0])).tolist() == [30, 20, 10]


def test_joined_edges_share_their_score_and_keep_each_other():
    graph = kb.Graph(3, [0, 0, 1], [1, 1, 2])
    places = edge_places(graph, *of_model([0, 1], [1, 2]))
    assert places.to_caller(np.array([4.0, 1.0])).tolist() == [2, 2, 1]
    assert places.to_model(np.array([0, 1, 0])).tolist() == [1, 0]


def test_an_edge_added_in_the_other_direction_counts_for_the_edge():
    graph = kb.Graph(3, [0, 1], [1, 2])
    # 0 - 1 both ways, 1 - 2 both ways, and a pair that the caller does not have.
    model = of_model([1, 0, 2, 1, 0], [0, 1, 1, 2, 2])
    places = edge_places(graph, *model)
    assert places.to_caller(np.array([1.0, 2, 4, 8, 16])).tolist() == [3, 12]
    assert places.to_model(np.array([0, 1])).tolist() == [0, 0, 1, 1, 1]


def test_a_graph_without_edges_has_those_of_the_model():
    graph = kb.Graph(3, [], [])
    places = edge_places(graph, *of_model([2, 0], [0, 1]))
    assert places.senders.tolist() == [2, 0] and places.receivers.tolist() == [0, 1]
    assert places.to_caller(np.array([5.0, 6.0])).tolist() == [5, 6]


def test_opposite_edges():
    """In pairs of equal type; alone are loops, single edges and padding."""
    edge = {
        "sender": np.array([[0, 1, 0, 1, 2, 2, 0], [3, 0, 0, 0, 0, 0, 0]]),
        "receiver": np.array([[1, 0, 1, 0, 2, 0, 9], [0, 3, 9, 9, 9, 9, 9]]),
        "type": np.array([[0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]]),
    }
    pair = opposite_edges(edge)
    assert pair.tolist() == [[1, 0, 2, 3, 4, 5, 6], [1, 0, 2, 3, 4, 5, 6]]
    empty = {name: values[:, :0] for name, values in edge.items()}
    assert opposite_edges(empty).shape == (2, 0)
