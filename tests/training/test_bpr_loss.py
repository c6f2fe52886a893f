"""`BPRLoss` against NumPy."""

import keras
import numpy as np
import pytest

from keras_bandgnn.models.labels import ClassLabels, NumberLabels, TargetLabels
from keras_bandgnn.models.losses import EntryLoss
from keras_bandgnn.training import BPRLoss

pytestmark = pytest.mark.every_backend


def scores(rows=7, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=3, size=(rows, columns)).astype("float32")


@pytest.mark.parametrize("place", [0, 2])
def test_it_is_the_mean_over_the_other_columns(place):
    y_pred = scores()
    others = np.delete(y_pred, place, axis=1)
    difference = y_pred[:, place, None].astype("float64") - others
    expected = np.log1p(np.exp(-difference)).mean(axis=1)
    loss = BPRLoss(reduction=None)
    for shape in ((7,), (7, 1)):
        values = loss(np.full(shape, place), y_pred)
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(values), expected, rtol=1e-5
        )
    weight = np.array([1, 0, 2, 0, 0, 1, 1], "float32")
    mean = float(BPRLoss()(np.full((7, 1), place), y_pred, weight))
    assert mean == pytest.approx((expected * weight).sum() / weight.sum(), rel=1e-5)


def test_large_scores_are_finite():
    y_pred = np.array([[1e4, -1e4], [-1e4, 1e4]], "float32")
    values = keras.ops.convert_to_numpy(
        BPRLoss(reduction=None)(np.zeros((2, 1)), y_pred)
    )
    np.testing.assert_allclose(values, [0.0, 2e4])


def test_a_single_score_and_labels_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="C of at least 2"):
        BPRLoss()(np.zeros((3, 1)), np.zeros((3, 1), "float32"))
    assert EntryLoss(BPRLoss(), None, ClassLabels()).parts
    for labels in (TargetLabels(1), NumberLabels(1)):
        with pytest.raises(ValueError, match="Received: loss=BPRLoss"):
            EntryLoss(BPRLoss(), None, labels)


def test_it_is_saved():
    loss = BPRLoss(name="order")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
