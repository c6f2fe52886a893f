import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.training.roc_auc import ROCAUC

pytestmark = pytest.mark.every_backend("several_batches")


def area(label, logit, weight=None):
    """Share of the pairs in the right order, ties half."""
    weight = np.ones(len(label)) if weight is None else weight
    positive, negative = label == 1, label == 0
    above = np.sign(logit[positive][:, None] - logit[negative])
    pairs = weight[positive][:, None] * weight[negative]
    return (pairs * (above + 1) / 2).sum() / pairs.sum()


def result(metric):
    return float(keras.ops.convert_to_numpy(metric.result()))


def test_equals_the_share_of_pairs_over_several_batches():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, (300, 3)).astype("float32")
    logit = rng.normal(size=(300, 3)) + label * [0.0, 1.0, 3.0]
    # Rare positives have logits that hardly differ as probabilities.
    logit[:, 2] = logit[:, 2] - 8
    weight = rng.integers(0, 2, (300, 3)).astype("float32")
    metric = ROCAUC(3)
    for rows in np.split(np.arange(300), [100, 101]):
        columns = (a[rows].reshape(-1, 1) for a in (label, logit.astype("float32")))
        metric.update_state(*columns, sample_weight=weight[rows].reshape(-1))
    expected = np.mean(
        [
            area(*columns.T)
            for columns in np.stack([label, logit, weight], -1).transpose(1, 0, 2)
        ]
    )
    assert result(metric) == pytest.approx(expected, abs=2e-3)
    metric.reset_state()
    assert result(metric) == 0


def test_targets_of_one_kind_are_left_out():
    metric = ROCAUC(2)
    metric.update_state(np.array([[1, 1], [0, 1]]), np.array([[2.0, 1.0], [1.0, 1.0]]))
    assert result(metric) == 1
    ties = ROCAUC()
    ties.update_state(np.array([1, 0, 0]), np.array([9e9, 9e9, -9e9]))
    assert result(ties) == pytest.approx(0.75)


def test_config():
    metric = ROCAUC(2, 64)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(metric)
    )
    assert again.get_config() == metric.get_config()
    with pytest.raises(ValueError, match="`num_targets` to be at least 1"):
        ROCAUC(0)


def test_infinite_logits_are_the_largest_and_nan_shows():
    metric = ROCAUC()
    metric.update_state(np.array([0, 1, 0, 1]), np.array([-np.inf, np.inf, 1.0, 2.0]))
    assert float(metric.result()) == 1.0
    # Padding has the weight 0.
    weight = np.array([0.0, 1.0])
    metric.update_state(np.array([1, 1]), np.array([np.nan, 3.0]), weight)
    assert float(metric.result()) == 1.0
    metric.update_state(np.array([1, 0]), np.array([np.nan, 3.0]))
    assert np.isnan(float(metric.result()))


def test_two_classes_are_one_target():
    rng = np.random.default_rng(0)
    graphs = [
        kb.Graph(3, [0, 1], [1, 2], node={"x": rng.normal(size=(3, 2))}, label=i % 2)
        for i in range(12)
    ]
    backbone = kb.models.GCNBackbone({"x": {"features": 2}}, 8, norm=None)
    task = kb.models.GraphClassifier(backbone, 2)
    task.compile(metrics=[ROCAUC()])
    found = task.evaluate(graphs, return_dict=True, verbose=0)["roc_auc"]
    logits = np.stack(task.predict(graphs))
    label = np.asarray([graph.label for graph in graphs])
    expected = area(label, logits[:, 1] - logits[:, 0])
    assert found == pytest.approx(expected, abs=1e-3)
