"""Windows of time one after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_bandgnn as kb
from keras_bandgnn import data

NOW = 1_700_000_000_000


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    count=st.integers(0, 60),
    spread=st.sampled_from([1, 4, 200]),
    steps=st.integers(1, 12),
)
def test_windows_are_all_pairs_each_after_its_graph(seed, count, spread, steps):
    rng = np.random.default_rng(seed)
    graph = kb.Graph(
        8,
        *rng.integers(0, 8, (2, 100)),
        edge={"time": NOW + rng.integers(0, spread, 100)},
    )
    pairs = data.NodePairs(
        *rng.integers(0, 8, (2, count)), time=NOW + rng.integers(0, spread, count)
    )
    windows = list(data.walk_time(graph, pairs, steps))
    assert len(windows) <= steps
    total, before_time = 0, -np.inf
    for before, window in windows:
        first = window.time.min()
        assert first > before_time
        before_time = window.time.max()
        assert before.num_edges == (graph.edge["time"] < first).sum()
        data.check_leaks(before, window)
        total += len(window)
    assert total == count
    if count:
        joined = data.NodePairs.concatenate([window for _, window in windows])
        assert joined.time.tolist() == np.sort(pairs.time).tolist()
    if count and spread == 200 and len(np.unique(pairs.time)) == count:
        sizes = [len(window) for _, window in windows]
        assert max(sizes) - min(sizes) <= 1


def test_edge_sets():
    key = ("a", "to", "b")
    graph = data.from_sets(
        {"a": 3, "b": 2},
        {key: {"edge_index": [[0, 1, 2], [0, 1, 0]], "time": [1, 2, 3]}},
    )
    pairs = data.split_links(graph, 0.0, 0.7, edge_set=key, time=True).test_pairs
    windows = list(data.walk_time(graph, pairs, 2, edge_set=key))
    assert [window.edge_set for _, window in windows] == [key, key]
    assert [before.num_edges for before, _ in windows] == [1, 2]


def test_ages_are_those_at_the_beginning_of_a_window():
    graph = kb.Graph(2, [0, 0, 0], [1, 1, 1], edge={"time": [1, 5, 9]})
    pairs = data.NodePairs.of_edges(graph)
    ages = [
        before.edge["age"].tolist()
        for before, _ in data.walk_time(graph, pairs, 3, age=True)
    ]
    assert ages == [[], [4.0], [8.0, 4.0]]
    far = graph.replace(edge={"time": NOW + np.arange(3)})
    assert data.edges_before(far, NOW + 2, age=True).edge["age"].tolist() == [2.0, 1.0]


def test_wrong_arguments():
    graph = kb.Graph(2, [0], [1], edge={"time": [1]})
    with pytest.raises(ValueError, match="NodePairs with times"):
        data.walk_time(graph, [[0, 1]])
    pairs = data.NodePairs([0], [1], time=[2])
    with pytest.raises(ValueError, match="edges with times"):
        data.walk_time(graph.replace(edge={}), pairs)
    with pytest.raises(ValueError, match="steps"):
        data.walk_time(graph, pairs, 0)
