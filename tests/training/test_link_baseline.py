"""Baselines of links in time against loops over the history."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bandgnn.data import NodePairs, from_sets, split_links
from keras_bandgnn.training import (
    EdgeBank,
    LastPartner,
    Popularity,
    mean_reciprocal_rank,
)

NOW = 1_700_000_000_000


def random_pairs(rng, count, nodes=6, spread=20):
    return NodePairs(
        *rng.integers(0, nodes, (2, count)), time=NOW + rng.integers(0, spread, count)
    )


def edge_bank(history, sender, receiver, time, window=None):
    return float(
        any(
            s == sender
            and r == receiver
            and t < time
            and (window is None or t >= time - window)
            for s, r, t in history
        )
    )


def last_partner(history, sender, receiver, time):
    past = [t for s, r, t in history if (s, r) == (sender, receiver) and t < time]
    return float(max(past) - time) if past else -np.inf


def popularity(history, sender, receiver, time, window=None):
    return float(
        sum(
            r == receiver and t < time and (window is None or t >= time - window)
            for _, r, t in history
        )
    )


CASES = [
    (EdgeBank(), edge_bank),
    (EdgeBank(5), lambda *a: edge_bank(*a, window=5)),
    (LastPartner(), last_partner),
    (Popularity(), popularity),
    (Popularity(7), lambda *a: popularity(*a, window=7)),
]


@pytest.mark.parametrize(("baseline", "oracle"), CASES, ids=lambda v: repr(v)[:14])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 100_000), count=st.integers(0, 60))
def test_scores_and_ranks_are_those_of_a_loop(baseline, oracle, seed, count):
    rng = np.random.default_rng(seed)
    history, queries = random_pairs(rng, count), random_pairs(rng, 9, nodes=8)
    plain = list(
        zip(
            history.senders.tolist(),
            history.receivers.tolist(),
            history.time.tolist(),
            strict=True,
        )
    )
    shared, drawn = np.arange(8), rng.integers(0, 8, (9, 4))
    for candidates in (shared, drawn):
        rows = np.broadcast_to(candidates, (9, candidates.shape[-1]))
        expected = np.array(
            [
                [oracle(plain, s, c, t) for c in row]
                for s, t, row in zip(
                    queries.senders.tolist(), queries.time.tolist(), rows, strict=True
                )
            ]
        )
        scores = baseline.scores(history, queries, candidates)
        np.testing.assert_array_equal(scores, expected)
        ranks = baseline.rank(history, queries, candidates)
        for k, row in enumerate(rows):
            sender, time = int(queries.senders[k]), int(queries.time[k])
            true = oracle(plain, sender, int(queries.receivers[k]), time)
            others = [
                value
                for value, node in zip(expected[k], row, strict=True)
                if node != queries.receivers[k]
            ]
            above = sum(value > true for value in others)
            ties = sum(value == true for value in others)
            assert ranks[k] == 1 + above + ties / 2
        assert 0 < mean_reciprocal_rank(ranks) <= 1


def test_nothing_of_the_time_of_a_pair_or_later_counts():
    pairs = NodePairs([0, 0, 0], [1, 1, 1], time=[NOW, NOW, NOW + 1])
    assert EdgeBank().scores(pairs, pairs, [1]).tolist() == [[0], [0], [1]]
    assert Popularity().scores(pairs, pairs, [1]).tolist() == [[0], [0], [2]]


def test_many_candidates_are_ranked_in_parts(monkeypatch):
    from keras_bandgnn.training import link_baseline

    rng = np.random.default_rng(0)
    history, pairs = random_pairs(rng, 200, 50), random_pairs(rng, 30, 50)
    whole = Popularity().rank(history, pairs, np.arange(50))
    monkeypatch.setattr(link_baseline, "_CHUNK", 120)
    np.testing.assert_array_equal(
        Popularity().rank(history, pairs, np.arange(50)), whole
    )


def test_wrong_arguments():
    pairs = NodePairs([0], [1], time=[3])
    with pytest.raises(ValueError, match="`history` with times"):
        EdgeBank().scores([[0, 1]], pairs, [1])
    with pytest.raises(ValueError, match="`pairs` with times"):
        EdgeBank().rank(pairs, NodePairs([0], [1]), [1])
    for candidates in ([[1], [2]], [1.5], [-1], 3):
        with pytest.raises(ValueError, match="`candidates` to be nodes"):
            EdgeBank().scores(pairs, pairs, candidates)
    with pytest.raises(ValueError, match="window"):
        Popularity(0)
    assert repr(EdgeBank(3)) == "EdgeBank(window=3)"


def test_pairs_of_an_edge_set_are_rows():
    rng = np.random.default_rng(0)
    buys = ("user", "buys", "item")
    ends = rng.integers(0, [[9], [5]], (2, 60))
    times = rng.permutation(60)
    graph = from_sets(
        {"user": 9, "item": 5},
        {buys: {"edge_index": ends, "time": times}},
        reverse=True,
    )
    split = split_links(graph, 0.0, 0.3, edge_set=buys, time=True)
    plain = NodePairs(*ends, time=times)
    test = NodePairs(
        split.test_pairs.senders, split.test_pairs.receivers, time=split.test_pairs.time
    )
    for baseline in (EdgeBank(), LastPartner(), Popularity()):
        ranks = baseline.rank(split.known, split.test_pairs, np.arange(5))
        np.testing.assert_array_equal(
            ranks, baseline.rank(plain, test, np.arange(5)), repr(baseline)
        )
        with pytest.raises(ValueError, match="rows of the node sets"):
            baseline.rank(plain, split.test_pairs, np.arange(5))
