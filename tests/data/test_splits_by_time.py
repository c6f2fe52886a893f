"""Splits by time: nothing at or after what is predicted is among the messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_bandgnn as kb
from keras_bandgnn import data
from keras_bandgnn.data.identity import joined_later

NOW = 1_700_000_000_000


def random_events(nodes=12, count=200, spread=40, seed=0, types=1):
    """Return a graph with repeated edges, equal times and self-loops."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (2, count))
    ends[1, :4] = ends[0, :4]
    return kb.Graph(
        nodes,
        *ends,
        edge_type=rng.integers(0, types, count),
        node={"id": np.arange(nodes)},
        edge={"time": NOW + rng.integers(0, spread, count)},
    )


def events(pairs) -> list[tuple]:
    columns = pairs.senders, pairs.receivers, pairs.types, pairs.time
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    spread=st.integers(1, 300),
    valid=st.floats(0, 0.4),
    test=st.floats(0, 0.4),
    types=st.integers(1, 3),
)
def test_parts_follow_one_another(seed, spread, valid, test, types):
    graph = random_events(spread=spread, seed=seed, types=types)
    try:
        split = data.split_links(graph, valid, test, time=True)
    except ValueError as error:
        assert "before those to validate on" in str(error)
        return
    parts = split.train_pairs, split.valid_pairs, split.test_pairs
    first, second = split.cutoffs
    assert (parts[0].time < first).all()
    assert ((parts[1].time >= first) & (parts[1].time < second)).all()
    assert (parts[2].time >= second).all()
    every = [event for part in parts for event in events(part)]
    edges = data.NodePairs.of_edges(graph)
    distinct = set(events(edges.take(edges.senders != edges.receivers)))
    assert len(every) == len(set(every))
    assert set(every) == distinct
    assert [event[-1] for event in every] == sorted(event[-1] for event in every)
    # Shares are at least what was asked for, less rounding.
    assert len(parts[2]) >= round(test * len(every))
    assert len(parts[1]) + len(parts[2]) >= round((valid + test) * len(every))
    times = graph.edge["time"]
    assert split.train.num_edges == (times < first).sum()
    assert set(events(split.known)) == set(events(edges))
    for pairs in parts[1:]:
        data.check_leaks(split.train, pairs)
    data.check_leaks(data.edges_before(graph, second), parts[2])


def test_pairs_of_the_time_of_a_cut_are_all_in_the_later_part():
    ends = np.arange(10), np.arange(1, 11)
    graph = kb.Graph(11, *ends, edge={"time": [1, 1, 2, 2, 3, 3, 3, 3, 3, 4]})
    split = data.split_links(graph, 0.1, 0.3, time=True)
    assert split.cutoffs == (3, 3)
    assert (len(split.valid_pairs), len(split.test_pairs)) == (0, 6)
    assert split.train.edge["time"].tolist() == [1, 1, 2, 2]


def test_cutoffs():
    graph = random_events()
    split = data.split_links(graph, time=(NOW + 10, NOW + 30))
    assert split.cutoffs == (NOW + 10, NOW + 30)
    assert split.valid_pairs.time.min() >= NOW + 10
    assert split.valid_pairs.time.max() < NOW + 30 <= split.test_pairs.time.min()
    assert data.split_links(graph, 0.0, 0.0, time=True).train.num_edges == 200


def test_an_edge_and_its_reverse_at_one_time_are_one_pair():
    senders, receivers, times = (
        [0, 1, 0, 1, 2, 1],
        [1, 0, 1, 0, 1, 2],
        [1, 1, 2, 2, 3, 3],
    )
    graph = kb.Graph(3, senders, receivers, edge={"time": times})
    split = data.split_links(graph, 0.0, 1 / 3, time=True)
    assert split.undirected
    assert (len(split.train_pairs), len(split.test_pairs)) == (2, 1)
    assert len(split.known) == 12
    directed = data.split_links(graph, 0.0, 1 / 3, undirected=False, time=True)
    assert (len(directed.train_pairs), len(directed.test_pairs)) == (4, 2)


def test_edges_of_other_edge_sets_are_earlier_too():
    graph = data.from_sets(
        {"user": 3, "item": 2},
        {
            ("user", "buys", "item"): {
                "edge_index": [[0, 1, 2, 0], [0, 1, 0, 1]],
                "time": [1, 2, 3, 4],
            },
            ("user", "knows", "user"): {"edge_index": [[0, 1], [1, 2]], "time": [2, 5]},
        },
    )
    key = ("user", "buys", "item")
    split = data.split_links(graph, 0.25, 0.25, edge_set=key, time=True)
    assert split.cutoffs == (3, 4)
    assert split.train.edge["time"].tolist() == [1, 2, 2]
    assert split.test_pairs.edge_set == key
    assert split.test_pairs.time.tolist() == [4]
    data.check_leaks(split.train, split.test_pairs, edge_set=key)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": (3, 1)}, "ascending"),
        ({"time": (1.0, 2.0)}, "integers"),
        ({"time": "last"}, "integers"),
        ({"time": (0, 5)}, "none of them before"),
        ({"time": True, "supervised": 0.5}, "supervised"),
        ({"time": True, "valid": 0.5, "test": 0.5}, "train on"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        data.split_links(random_events(), **options)


def test_edges_without_times_are_refused():
    graph = kb.Graph(3, [0, 1], [1, 2])
    with pytest.raises(ValueError, match="edges with times for split_links"):
        data.split_links(graph, time=True)
    with pytest.raises(ValueError, match="edges with times for edges_before"):
        data.edges_before(graph, 3)
    with pytest.raises(ValueError, match="an integer"):
        data.edges_before(random_events(), 0.5)


# === Leaks ===


def test_history_is_no_leak_and_the_future_is_one():
    graph = kb.Graph(3, [0, 1], [1, 2], edge={"time": [10, 20]})
    data.check_leaks(graph, data.NodePairs([0], [1], time=[21]))
    for time, late, joined in ((20, 1, 0), (10, 2, 1), (5, 2, 1)):
        with pytest.raises(ValueError, match=f"{late} of 2 edges .* {joined} of 1"):
            data.check_leaks(graph, data.NodePairs([0], [1], time=[time]))
    # Without times on both the two nodes must not be joined at all.
    with pytest.raises(ValueError, match="no edges of the graph"):
        data.check_leaks(graph, data.NodePairs([0], [1]))
    data.check_leaks(graph, data.NodePairs([], [], time=[]))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_pairs_joined_later_are_those_of_a_loop(seed, undirected):
    graph = random_events(nodes=5, count=30, spread=9, seed=seed, types=2)
    edges = data.NodePairs.of_edges(graph)
    rng = np.random.default_rng(seed)
    pairs = data.NodePairs(
        *rng.integers(0, 5, (2, 20)),
        rng.integers(0, 2, 20),
        time=NOW + rng.integers(0, 12, 20),
    )

    def same(one, other):
        if undirected:
            return sorted(one[:2]) == sorted(other[:2])
        return one[:3] == other[:3]

    expected = [
        any(same(pair, edge) and edge[3] >= pair[3] for edge in events(edges))
        for pair in events(pairs)
    ]
    assert joined_later(pairs, edges, 5, undirected).tolist() == expected


def test_a_predictor_refuses_later_messages_and_training_pairs():
    graph = random_events()
    split = data.split_links(graph, 0.2, 0.2, time=True)
    task = kb.models.LinkPredictor(kb.models.GCNBackbone({"id": 12}, hidden_dim=4))
    options = {"epochs": 1, "verbose": 0}
    valid = {"validation_pairs": split.valid_pairs}
    task.fit(split.train, split.train_pairs, **valid, **options)
    with pytest.raises(ValueError, match="messages earlier than all of `valid"):
        task.fit(graph, split.train_pairs, **valid, **options)
    with pytest.raises(ValueError, match="pairs to train on that are earlier"):
        task.fit(split.train, split.test_pairs, **valid, **options)
    before = data.edges_before(graph, split.cutoffs[1])
    test = split.test_pairs
    assert task.evaluate(before, test)["auc"] >= 0
    assert len(task.rank(before, test)) == len(test)
    for call in (task.evaluate, task.rank):
        with pytest.raises(ValueError, match="messages earlier than all of `pairs`"):
            call(graph, test)
    # Pairs of the training, by default the edges of the graph.
    assert task.evaluate(split.train)["auc"] >= 0


def test_cutoffs_of_another_unit_are_refused():
    graph = kb.Graph(3, [0, 1, 2], [1, 2, 0], edge={"time": [10, 20, 30]})
    with pytest.raises(ValueError, match="after all 3 pairs.*is of 30"):
        data.split_links(graph, time=(20_000, 30_000))
