"""Measures of link prediction against brute force."""

import numpy as np
import pytest

from keras_bandgnn.training import (
    average_precision,
    hits_at,
    link_auc,
    mean_reciprocal_rank,
)


def scores(seed, ties):
    rng = np.random.default_rng(seed)
    positive, negative = rng.normal(0.5, 1, 40), rng.normal(0, 1, 55)
    return (np.round(positive), np.round(negative)) if ties else (positive, negative)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_area_is_the_share_of_ordered_pairs(seed, ties):
    positive, negative = scores(seed, ties)
    wins = (positive[:, None] > negative).mean()
    wins += 0.5 * (positive[:, None] == negative).mean()
    assert link_auc(positive, negative) == pytest.approx(wins, abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_average_precision_is_the_sum_over_thresholds(seed, ties):
    positive, negative = scores(seed, ties)
    every, recall, total = np.concatenate([positive, negative]), 0.0, 0.0
    for threshold in np.unique(every)[::-1]:
        hits, false = (positive >= threshold).sum(), (negative >= threshold).sum()
        new = hits / len(positive)
        total += (new - recall) * hits / (hits + false)
        recall = new
    assert average_precision(positive, negative) == pytest.approx(total, abs=1e-12)


def test_as_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    positive, negative = scores(0, True)
    y = np.repeat([1, 0], [len(positive), len(negative)])
    every = np.concatenate([positive, negative])
    assert link_auc(positive, negative) == pytest.approx(
        metrics.roc_auc_score(y, every)
    )
    assert average_precision(positive, negative) == pytest.approx(
        metrics.average_precision_score(y, every)
    )


def test_ranks():
    ranks = np.array([[1, 2.5], [10, 4]])
    assert mean_reciprocal_rank(ranks) == pytest.approx((1 + 0.4 + 0.1 + 0.25) / 4)
    assert [hits_at(ranks, k) for k in (1, 2, 3, 10)] == [0.25, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("wrong", [[], [0], [np.nan], ["x"], [[1], [1, 2]]])
def test_wrong_ranks(wrong):
    for measure in (mean_reciprocal_rank, lambda ranks: hits_at(ranks, 1)):
        with pytest.raises(ValueError, match="Expected `ranks`.*Received"):
            measure(wrong)


@pytest.mark.parametrize("wrong", [[], [np.nan], ["x"]])
def test_wrong_scores(wrong):
    for measure in (link_auc, average_precision):
        with pytest.raises(ValueError, match="Expected `positive`.*Received"):
            measure(wrong, [1.0])
        with pytest.raises(ValueError, match="Expected `negative`.*Received"):
            measure([1.0], wrong)
