"""Which rows count: the mask of an entry, and its weight."""

import keras
import numpy as np
import pytest
from models import task_samples

import keras_bandgnn as kb
from keras_bandgnn.data.flat_columns import weight_column
from keras_bandgnn.models.labelled_graphs import with_class_weights
from keras_bandgnn.models.labels import ClassLabels

# A placeholder of numbers that are not known; of classes any other will do.
PLACEHOLDER = -999.0


def tasks():
    # Pairs of nodes have no weights.
    return sorted(set(task_samples.TASKS) - {"LinkPredictor"})


def flat_data(name, count=8):
    graphs = task_samples.data_of(name, count)
    if isinstance(graphs, kb.data.FlatGraphs):
        return graphs
    return kb.data.FlatGraphs.from_graphs(graphs)


def changed(graphs, weight=None, label=None):
    columns = dict(graphs.columns())
    if weight is not None:
        columns[weight_column(graphs.label_level)] = np.float32(weight)
    if label is not None:
        level = graphs.label_level
        columns[f"label/{level}"] = label
    return kb.data.FlatGraphs.from_columns(columns, graphs.info)


def some_rows(graphs, seed=1):
    """Rows of labels that are left out."""
    return np.random.default_rng(seed).uniform(size=len(graphs.label)) < 0.4


@pytest.mark.parametrize("name", tasks())
def test_metrics_count_rows_of_any_weight(name):
    graphs, task = flat_data(name), task_samples.task_of(name)
    task.compile("sgd", metrics=task.default_metrics())
    out = some_rows(graphs)
    results = [
        task.evaluate(changed(graphs, weight), verbose=0, return_dict=True)
        for weight in (None, np.where(out, 1e-9, 1.0), np.where(out, 0.0, 1.0))
    ]
    for result in results:
        result.pop("loss")
    for result in results[1:]:
        for metric, value in results[0].items():
            np.testing.assert_allclose(result[metric], value, rtol=1e-5, err_msg=metric)


@pytest.mark.parametrize("name", tasks())
def test_weighted_metrics_leave_out_rows_of_weight_0(name):
    if name == "BugLocalizer":
        return  # Each function has a right edge.
    graphs, task = flat_data(name), task_samples.task_of(name)
    out = some_rows(graphs)
    if name == "ForceRegressor":
        task.compile("sgd", weighted_metrics=["mae"])
    missing = task_missing(task, graphs, out)
    results = [
        task.evaluate(data, verbose=0, return_dict=True)
        for data in (placed(task, graphs, out), missing)
    ]
    names = [n for n in results[0] if n != "loss" and not n.startswith("force_")]
    assert names
    for metric in names:
        np.testing.assert_allclose(results[0][metric], results[1][metric], rtol=1e-5)


def placed(task, graphs, out):
    """Graphs whose rows that are left out have a placeholder, and weight 0."""
    label = np.array(graphs.label)
    if isinstance(task.labels, ClassLabels):
        label[out] = 1 - np.clip(label[out], 0, 1)
    elif isinstance(task, kb.models.GraphClassifier):
        label[out] = 1
    else:
        label[out] = PLACEHOLDER
    return changed(graphs, np.where(out, 0.0, 1.0), label)


def task_missing(task, graphs, out):
    """Graphs whose rows that are left out have no label."""
    label = np.array(graphs.label)
    if isinstance(task.labels, ClassLabels):
        label[out] = -1
    else:
        label = np.float32(label)
        label[out] = np.nan
    return changed(graphs, None, label)


@pytest.mark.parametrize("name", tasks())
def test_normalizers_and_class_weights_leave_out_rows_of_weight_0(name):
    graphs, task = flat_data(name), task_samples.task_of(name)
    out = some_rows(graphs)
    rng = np.random.default_rng(2)
    repeats = rng.integers(0, 4, len(graphs.label))
    if getattr(task, "normalizer", None) is not None:
        mode = task.normalizer.mode
        constants = []
        for data in (placed(task, graphs, out), task_missing(task, graphs, out)):
            normalizer = kb.preprocessing.TargetNormalizer(mode)
            normalizer.adapt(data)
            constants.append(normalizer.get_config())
        for key in ("mean", "std"):
            np.testing.assert_allclose(constants[0][key], constants[1][key], rtol=1e-6)
        normalizer = kb.preprocessing.TargetNormalizer(mode)
        normalizer.adapt(changed(graphs, repeats))
        rows = np.repeat(np.float64(graphs.label), repeats, axis=0)
        mean = np.nanmean(rows.reshape(len(rows), -1), axis=0)
        np.testing.assert_allclose(normalizer.get_config()["mean"], mean, rtol=1e-5)
        with pytest.raises(ValueError, match="sample_weight is above 0"):
            normalizer.adapt(changed(graphs, 0 * repeats))
    elif task.labels.num_classes and isinstance(task.labels, ClassLabels):
        balanced = [
            weights(with_class_weights(data, "balanced", task_samples.NUM_CLASSES))
            for data in (placed(task, graphs, out), task_missing(task, graphs, out))
        ]
        known = ~out & (np.ravel(graphs.label) >= 0)
        np.testing.assert_allclose(balanced[0][known], balanced[1][known], rtol=1e-6)
        assert not balanced[0][out].any()
        # As scikit-learn's `compute_class_weight` with weights of the rows.
        data = changed(graphs, repeats)
        received = weights(
            with_class_weights(data, "balanced", task_samples.NUM_CLASSES)
        )
        y, known = np.ravel(graphs.label), np.ravel(graphs.label) >= 0
        counts = np.bincount(y[known], repeats[known], task_samples.NUM_CLASSES)
        expected = counts.sum() / ((counts > 0).sum() * np.maximum(counts, 1))
        np.testing.assert_allclose(
            received[known], (expected[y] * repeats)[known], rtol=1e-6
        )


def weights(graphs):
    return graphs.columns()[weight_column(graphs.label_level)]


@pytest.mark.parametrize(
    "name", ["EdgeRegressor", "GraphClassifier", "GraphRegressor", "NodeClassifier"]
)
def test_training_leaves_out_rows_of_weight_0(name):
    graphs, results = flat_data(name, 4), []
    out = some_rows(graphs)
    for data in ("placed", "missing"):
        task = task_samples.task_of(name)
        # The mean over weights: rows of weight 0 are not in the divisor either.
        loss = type(task.default_loss()).from_config(
            {
                **task.default_loss().get_config(),
                "reduction": "mean_with_sample_weight",
            }
        )
        task.compile(keras.optimizers.SGD(0.1), loss)
        options = {}
        if isinstance(task.labels, ClassLabels):
            options["class_weight"] = "balanced"
        change = placed if data == "placed" else task_missing
        task.fit(change(task, graphs, out), epochs=1, verbose=0, **options)
        results.append(task.get_weights())
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_posteriors_leave_out_rows_of_weight_0():
    graphs, task = flat_data("GraphRegressor"), task_samples.task_of("GraphRegressor")
    out = some_rows(graphs)
    one, other = (
        kb.models.LastLayerLaplace(task).fit(data)
        for data in (placed(task, graphs, out), graphs.take(np.flatnonzero(~out)))
    )
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-5)
    np.testing.assert_allclose(one.noise_std, other.noise_std, rtol=1e-5)
