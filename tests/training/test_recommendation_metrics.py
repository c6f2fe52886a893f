"""Measures of recommended items against loops over users."""

import numpy as np
import pytest

from keras_bandgnn.data import NodePairs
from keras_bandgnn.training import coverage, mrr_at, ndcg_at, recall_at

USERS, ITEMS, K = 30, 50, 8


def lists(seed, missing=0.2):
    """Distinct items of each user, of which the last ones may be missing."""
    rng = np.random.default_rng(seed)
    items = np.argsort(rng.random((USERS, ITEMS)), axis=1)[:, :K]
    lengths = np.where(rng.random(USERS) < missing, rng.integers(0, K, USERS), K)
    return np.where(np.arange(K) < lengths[:, None], items, -1)


def held_out(seed):
    """Pairs, some of them repeated; a fifth of the users have none."""
    rng = np.random.default_rng(seed + 100)
    users = rng.choice(np.flatnonzero(rng.random(USERS) < 0.8), 120)
    return np.stack([users, rng.integers(0, ITEMS, 120)], axis=1)


def loop(items, pairs, k, users):
    """Recall, gain and reciprocal place by a loop, as LightGCN's evaluation."""
    recall, gain, place = [], [], []
    for user, row in zip(users, items, strict=True):
        truth = {int(i) for u, i in pairs if u == user}
        if not truth:
            continue
        hits = [int(i) in truth for i in row[:k]]
        recall.append(sum(hits) / len(truth))
        ideal = sum(1 / np.log2(r + 2) for r in range(min(k, len(truth))))
        gain.append(sum(h / np.log2(r + 2) for r, h in enumerate(hits)) / ideal)
        place.append(1 / (1 + hits.index(True)) if any(hits) else 0.0)
    return [np.mean(values) for values in (recall, gain, place)]


@pytest.mark.parametrize("k", [1, 3, K])
@pytest.mark.parametrize("seed", range(3))
def test_measures_are_those_of_a_loop(seed, k):
    items, pairs = lists(seed), held_out(seed)
    users = np.random.default_rng(seed).permutation(USERS)[:20]
    edge_set = ("user", "buys", "item")
    named = NodePairs(pairs[:, 0], pairs[:, 1], edge_set=edge_set)
    for rows, of_rows in ((None, np.arange(USERS)), (users, users)):
        found = items if rows is None else items[users]
        expected = loop(found, pairs, k, of_rows)
        for form in (pairs, named):
            values = [m(found, form, k, rows) for m in (recall_at, ndcg_at, mrr_at)]
            assert values == pytest.approx(expected, abs=1e-12)


def test_extremes():
    pairs = [[0, 4], [0, 2], [1, 3]]
    best, worst = [[2, 4, 9], [3, 9, 8]], [[7, 8, 9], [-1, -1, -1]]
    for measure in (recall_at, ndcg_at, mrr_at):
        assert measure(best, pairs, 3) == pytest.approx(1.0)
        assert measure(worst, pairs, 3) == 0.0
    assert recall_at(best, pairs, 1) == pytest.approx(0.75)
    assert coverage(best, 10) == 0.5
    assert coverage([[-1]], 10) == 0.0


@pytest.mark.parametrize("measure", [recall_at, ndcg_at, mrr_at])
def test_wrong_arguments_are_refused(measure):
    items, pairs = lists(0), held_out(0)
    for arguments, message in (
        ((items[0], pairs, 3), "2-D"),
        ((items, pairs, K + 1), f"at least {K + 1} items"),
        ((items, pairs, 0), "`k`"),
        ((items - 5, pairs, 3), "-1 for none"),
        ((items, pairs, 3, [0, 1]), "a user for each of"),
        ((items[:2], pairs, 3, [98, 99]), "of at least one user"),
        ((items, [1, 2], 3), "pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(*arguments)
    with pytest.raises(ValueError, match="below num_items=3"):
        coverage([[3]], 3)
