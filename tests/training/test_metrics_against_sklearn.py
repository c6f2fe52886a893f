"""Metrics of tasks against scikit-learn: missing labels, weights, several targets."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_bandgnn as kb
from keras_bandgnn.models.labels import (
    ClassLabels,
    NumberLabels,
    TargetLabels,
    keras_name,
)
from keras_bandgnn.models.metrics import entry_metrics

sk = pytest.importorskip("sklearn.metrics")

KINDS = {
    "two classes": ClassLabels(2),
    "three classes": ClassLabels(3),
    "a target": TargetLabels(1),
    "three targets": TargetLabels(3),
    "a number": NumberLabels(1),
    "two numbers": NumberLabels(2),
}
FINE = {"num_thresholds": 2000}
OPTIONS = {
    "AUC": FINE,
    "F1Score": {"average": "macro"},
    "FBetaScore": {"average": "macro", "beta": 2.0},
    "PrecisionAtRecall": {"recall": 0.6, **FINE},
    "RecallAtPrecision": {"precision": 0.6, **FINE},
    "SensitivityAtSpecificity": {"specificity": 0.6, **FINE},
    "SpecificityAtSensitivity": {"sensitivity": 0.6, **FINE},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "TopKCategoricalAccuracy": {"k": 2},
}
# Binned or interpolated between thresholds.
ROUGH = {"AUC": 5e-3, "ROCAUC": 2e-3, **dict.fromkeys(OPTIONS, 2e-2)}


def _counts(y, p, w):
    (tn, fp), (fn, tp) = sk.confusion_matrix(y, p > 0.5, sample_weight=w)
    return {
        "TrueNegatives": tn,
        "FalsePositives": fp,
        "FalseNegatives": fn,
        "TruePositives": tp,
    }


def of_targets(name, y, logit, w, target):
    """Scores of yes or no; all but ROCAUC see the labels of all targets as one list."""
    p = 1 / (1 + np.exp(-logit))
    if name == "ROCAUC":
        return np.mean(
            [
                sk.roc_auc_score(
                    y[target == t], logit[target == t], sample_weight=w[target == t]
                )
                for t in np.unique(target)
            ]
        )
    if name in _counts(y, p, w):
        return _counts(y, p, w)[name]
    precision, recall, _ = sk.precision_recall_curve(y, p, sample_weight=w)
    false, true, _ = sk.roc_curve(y, p, sample_weight=w)
    return {
        "AUC": lambda: sk.roc_auc_score(y, p, sample_weight=w),
        "BinaryAccuracy": lambda: sk.accuracy_score(y, p > 0.5, sample_weight=w),
        "BinaryCrossentropy": lambda: sk.log_loss(y, p, sample_weight=w),
        "F1Score": lambda: sk.f1_score(y, p > 0.5, sample_weight=w),
        "FBetaScore": lambda: sk.fbeta_score(y, p > 0.5, beta=2, sample_weight=w),
        "Hinge": lambda: sk.hinge_loss(2 * y - 1, logit, sample_weight=w),
        "Precision": lambda: sk.precision_score(y, p > 0.5, sample_weight=w),
        "PrecisionAtRecall": lambda: precision[recall >= 0.6].max(),
        "Recall": lambda: sk.recall_score(y, p > 0.5, sample_weight=w),
        "RecallAtPrecision": lambda: recall[precision >= 0.6].max(),
        "SensitivityAtSpecificity": lambda: true[1 - false >= 0.6].max(),
        "SpecificityAtSensitivity": lambda: (1 - false)[true >= 0.6].max(),
        "SquaredHinge": lambda: np.average(
            np.maximum(1 - (2 * y - 1) * logit, 0) ** 2, weights=w
        ),
    }[name]()


def of_classes(name, y, logits, w, target):
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    best, labels = shares.argmax(axis=1), np.arange(logits.shape[1])
    one_hot = np.eye(logits.shape[1])[y.astype(int)]
    # Of Keras' metrics with a row per class, which get labels one-hot.
    if name == "CategoricalHinge":
        right = (one_hot * shares).sum(axis=1)
        wrong = ((1 - one_hot) * shares).max(axis=1)
        return np.average(np.maximum(1 + wrong - right, 0), weights=w)
    if "Categorical" in name:
        name = "Sparse" + name.removeprefix("Sparse")
    several = {
        "SparseCategoricalAccuracy": lambda: sk.accuracy_score(
            y, best, sample_weight=w
        ),
        "SparseCategoricalCrossentropy": lambda: sk.log_loss(
            y, shares, sample_weight=w, labels=labels
        ),
        "SparseTopKCategoricalAccuracy": lambda: sk.top_k_accuracy_score(
            y, shares, k=2, sample_weight=w, labels=labels
        ),
        "F1Score": lambda: sk.f1_score(y, best, average="macro", sample_weight=w),
        "FBetaScore": lambda: sk.fbeta_score(
            y, best, beta=2, average="macro", sample_weight=w
        ),
    }
    if name == "SparseTopKCategoricalAccuracy" and logits.shape[1] == 2:
        return 1.0
    if name in several:
        return several[name]()
    return of_targets(name, y, logits[:, 1] - logits[:, 0], w, target)


def of_numbers(name, y, p, w, target):
    def mean(values):
        return np.average(values, weights=w)

    return {
        "LogCoshError": lambda: mean(np.log(np.cosh(p - y))),
        "MeanAbsoluteError": lambda: sk.mean_absolute_error(y, p, sample_weight=w),
        "MeanAbsolutePercentageError": lambda: (
            100 * sk.mean_absolute_percentage_error(y, p, sample_weight=w)
        ),
        "MeanSquaredError": lambda: sk.mean_squared_error(y, p, sample_weight=w),
        "MeanSquaredLogarithmicError": lambda: sk.mean_squared_log_error(
            y, p, sample_weight=w
        ),
        "Poisson": lambda: mean(p - y * np.log(p)),
        "R2Score": lambda: sk.r2_score(y, p, sample_weight=w),
        "RootMeanSquaredError": lambda: np.sqrt(
            sk.mean_squared_error(y, p, sample_weight=w)
        ),
    }[name]()


def sample(kind, count=240):
    """Labels [1, n, ...] of which some are missing, outputs, and weights [1, n]."""
    rng, labels = np.random.default_rng(0), KINDS[kind]
    weight = rng.integers(0, 4, count).astype("float32")
    if isinstance(labels, ClassLabels):
        y = rng.integers(-1, labels.num_classes, count)
        out = rng.normal(size=(count, labels.num_classes))
        out[np.arange(count), y] += 1
        return y[None], np.float32(out)[None], weight[None]
    shape = count, labels.num_targets
    if isinstance(labels, TargetLabels):
        y = (rng.uniform(size=shape) < 0.4).astype("float32")
        # Targets have scales of their own: pooled areas are others.
        out = rng.normal(size=shape) + y + 3.0 * np.arange(shape[1]) - 2
    else:
        y = rng.uniform(0.5, 2, shape).astype("float32")
        out = y * rng.uniform(0.7, 1.5, shape)
    y[rng.uniform(size=shape) < 0.3] = np.nan
    return y[None], np.float32(out)[None], weight[None]


def accepted():
    """Each kind of labels, and the metrics that fit it."""
    exports = {name: getattr(kb.training, name) for name in kb.training.__all__}
    classes = {
        name: cls
        for name, cls in {**vars(keras.metrics), **exports}.items()
        if isinstance(cls, type) and issubclass(cls, keras.metrics.Metric)
    }
    for kind, labels in KINDS.items():
        for name, cls in classes.items():
            if name != cls.__name__:
                continue
            options = dict(OPTIONS.get(name, {}))
            if "target" in kind and name in ("F1Score", "FBetaScore"):
                options |= {"threshold": 0.5, "average": "micro"}
            try:
                metric = cls(**options)
                known = keras_name(metric)
                fits = known is not None and labels.adapter(metric, known) is not None
            except TypeError:
                continue  # A base class.
            if fits:
                yield kind, name, cls, options


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_metrics_of_tasks(kind, weighted):
    labels, names = KINDS[kind], set()
    y, out, weight = sample(kind)
    oracle = {
        ClassLabels: of_classes,
        TargetLabels: of_targets,
        NumberLabels: of_numbers,
    }[type(labels)]
    for of, name, cls, options in accepted():
        if of != kind:
            continue
        names.add(name)
        (metric,) = entry_metrics([cls(**options)], labels, weighted)
        for rows in (slice(0, 100), slice(100, None)):
            arrays = [
                ops.convert_to_tensor(each[:, rows])
                for each in (y, out, np.ones_like(weight), weight)
            ]
            mask = labels.entries(*arrays[:3])[2]
            *entries, own = labels.entries(*arrays[:2], arrays[3])
            metric.update_state(*entries, ops.stack([mask, own], axis=-1))
        received = float(np.ravel(ops.convert_to_numpy(metric.result()))[0])
        width = labels.num_targets
        flat = y.reshape(-1).astype(float)
        known = ~np.isnan(flat) & ((flat >= 0) | (width > 1))
        w = np.repeat(weight[0] if weighted else np.ones(len(weight[0])), width)
        target = np.tile(np.arange(width), len(weight[0]))
        rows = out.reshape(-1, out.shape[-1]) if out.shape[-1] != width else None
        rows = out.reshape(-1) if rows is None else rows
        expected = oracle(
            name, *(np.float64(each[known]) for each in (flat, rows, w)), target[known]
        )
        tolerance = ROUGH.get(name, 1e-5)
        assert received == pytest.approx(expected, rel=tolerance, abs=tolerance), name
    if "target" in kind:
        assert "ROCAUC" in names and "AUC" in names


def test_areas_of_a_task_are_the_mean_over_its_targets():
    labels = TargetLabels(3)
    with pytest.raises(ValueError, match=r"Expected ROCAUC\(3\)"):
        entry_metrics([kb.training.ROCAUC(1)], labels, False)
    metric = kb.training.ROCAUC()
    entry_metrics([metric], labels, False)
    assert metric.positive.shape[0] == 3
    # Configurations of version 0.2.0 name 1 where nothing was named.
    old = {**kb.training.ROCAUC().get_config(), "num_targets": 1}
    entry_metrics([kb.training.ROCAUC.from_config(old)], labels, False)


def of_compile(identifier, labels):
    """The inner metric of a metric, or why it is refused."""
    try:
        (metric,) = entry_metrics([identifier], labels, False)
    except ValueError as error:
        return str(error).partition("Received")[0]
    return type(metric.metric), metric.adapter.__name__


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_keras_are_what_their_names_are(kind):
    functions = {**vars(keras.losses), **vars(keras.metrics)}
    for name, function in functions.items():
        module = getattr(function, "__module__", "")
        if name in ("get", "serialize", "deserialize") or isinstance(function, type):
            continue
        if callable(function) and module.startswith("keras."):
            by_name = of_compile(name, KINDS[kind])
            assert of_compile(function, KINDS[kind]) == by_name, name


def test_areas_of_links():
    rng = np.random.default_rng(0)
    # Rounded, so that scores tie.
    positive, negative = rng.normal(1, 1, 50).round(1), rng.normal(0, 1, 80).round(1)
    label = np.r_[np.ones(50), np.zeros(80)]
    score = np.r_[positive, negative]
    area = kb.training.link_auc(positive, negative)
    assert area == pytest.approx(sk.roc_auc_score(label, score))
    precision = kb.training.average_precision(positive, negative)
    assert precision == pytest.approx(sk.average_precision_score(label, score))
    # One true candidate per row: the mean of 1 / rank.
    scores = rng.normal(size=(20, 6))
    true = np.eye(6)[rng.integers(0, 6, 20)]
    ranks = 1 + (scores > scores[true == 1][:, None]).sum(axis=1)
    mean = sk.label_ranking_average_precision_score(true, scores)
    assert kb.training.mean_reciprocal_rank(ranks) == pytest.approx(mean)
    hits = sk.top_k_accuracy_score(true.argmax(axis=1), scores, k=3)
    assert kb.training.hits_at(ranks, 3) == pytest.approx(hits)


def test_choices():
    rng = np.random.default_rng(0)
    out = rng.normal(size=(40, 2)).astype("float32")
    weight = rng.integers(0, 3, 40).astype("float32")
    metric = kb.training.ChoiceAccuracy()
    metric.update_state(np.ones((40, 1), "float32"), out, weight)
    right = out[:, 0] >= out[:, 1]
    expected = sk.accuracy_score(np.ones(40, bool), right, sample_weight=weight)
    assert float(metric.result()) == pytest.approx(expected)
