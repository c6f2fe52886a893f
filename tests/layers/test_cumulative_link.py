import keras
import numpy as np
import pytest

from keras_bandgnn.layers import CumulativeLink
from keras_bandgnn.testing import run_layer_test

SCORES = np.array([[[0.0], [1.3]], [[-2.0], [0.4]], [[80.0], [-80.0]]], "float32")


def sigmoid(z):
    return 1 / (1 + np.exp(-np.float64(z)))


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_probabilities_of_the_proportional_odds_model(num_classes):
    layer = CumulativeLink(num_classes)
    out = np.float64(run_layer_test(layer, SCORES))
    np.testing.assert_allclose(np.exp(out).sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(out[0, 0]), 1 / num_classes, rtol=1e-5)
    steps = np.random.default_rng(0).normal(size=num_classes - 1)
    layer.set_weights([steps])
    thresholds = np.float64(keras.ops.convert_to_numpy(layer.thresholds()))
    assert (np.diff(thresholds) > 0).all()
    out = np.float64(keras.ops.convert_to_numpy(layer(SCORES)))
    above = sigmoid(SCORES - thresholds)
    ones, zeros = np.ones((3, 2, 1)), np.zeros((3, 2, 1))
    shares = -np.diff(np.concatenate([ones, above, zeros], axis=-1), axis=-1)
    np.testing.assert_allclose(np.exp(out[:2]), shares[:2], rtol=1e-5)
    # Far from the thresholds, where differences of sigmoids are 0 in float32.
    assert np.isfinite(out).all()
    assert out[2, 0, 0] == pytest.approx(thresholds[0] - 80, rel=1e-5)
    assert out[2, 1, -1] == pytest.approx(-80 - thresholds[-1], rel=1e-5)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`num_classes` to be at least 2"):
        CumulativeLink(1)
