"""Lines of Keras as tutorials have them: right numbers, or refused with what to write.

Numbers are compared with plain NumPy over `predict`. Batches are padded and labels are
missing in all of them, so that a number which counts either is wrong.
"""

import csv
import math
import re

import keras
import numpy as np
import pytest
from keras import ops
from task_samples import BACKBONES, NUM_CLASSES, data_of, graphs_of, task_of

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import GraphPreprocessor, StaticBatcher

pytestmark = pytest.mark.every_backend(
    "test_ways_to_run", "test_mixed_precision", "test_saved_models_go_on"
)

BACKEND = keras.backend.backend()
STILL = {"run_eagerly": True}


def named(value) -> str:
    """The name of a case, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def sgd(rate=0.0):
    return keras.optimizers.SGD(rate)


def of_batches(size=4):
    return GraphPreprocessor([], StaticBatcher(size - 1))


def classifier(**options):
    return task_of("GraphClassifier", preprocessor=of_batches(), **options)


def regressor():
    return task_of("GraphRegressor", preprocessor=of_batches())


def several_targets():
    return task_of("GraphClassifier, several targets", preprocessor=of_batches())


def two_classes():
    keras.utils.set_random_seed(0)
    backbone = BACKBONES["GCNBackbone"]()
    return kb.models.GraphClassifier(backbone, 2, of_batches())


def labels_of_two(count=9):
    def label(rng, size):
        return int(rng.integers(-1, 2))

    return graphs_of(count, 3, label)


@pytest.fixture(scope="module")
def classes():
    return data_of("GraphClassifier", 10)


@pytest.fixture(scope="module")
def numbers():
    return data_of("GraphRegressor", 10)


@pytest.fixture(scope="module")
def targets():
    return data_of("GraphClassifier, several targets", 10)


def logits_of(task, graphs):
    """Logits and classes of graphs whose class is known."""
    label = np.array([int(graph.label) for graph in graphs])
    logits = np.stack(task.predict(graphs)).astype("float64")
    return logits[label >= 0], label[label >= 0]


def softmax(z):
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


def crossentropy(task, graphs):
    logits, label = logits_of(task, graphs)
    return -np.log(softmax(logits))[np.arange(len(label)), label].mean()


def accuracy(task, graphs):
    logits, label = logits_of(task, graphs)
    return (logits.argmax(axis=-1) == label).mean()


def flat_of(task, flat):
    """Outputs and labels that are known."""
    out = np.stack(task.predict(flat)).astype("float64")
    known = np.isfinite(flat.label)
    return out[known], flat.label[known].astype("float64")


def mse(task, flat):
    # The normaliser of the sample divides by 2.
    out, label = flat_of(task, flat)
    return ((out - label) ** 2).mean() / 4


def fit_once(task, data, **options):
    history = task.fit(data, validation_data=data, epochs=1, verbose=0, **options)
    return {name: values[-1] for name, values in history.history.items()}


def both(logs, **expected):
    """Training at rate 0 and validation give the same, right, numbers."""
    for name, value in expected.items():
        assert logs[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        assert logs[f"val_{name}"] == pytest.approx(value, rel=1e-5, abs=1e-6), name


# === compile: losses and metrics of classes ===


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "categorical_crossentropy",
        keras.losses.CategoricalCrossentropy(from_logits=True),
        ["sparse_categorical_crossentropy"],
        {"head": "sparse_categorical_crossentropy"},
    ],
    ids=named,
)
def test_crossentropy_of_classes(loss, classes):
    task = classifier()
    task.compile(sgd(), loss=loss, metrics=["accuracy"], **STILL)
    logs = fit_once(task, classes)
    assert set(logs) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    both(logs, loss=crossentropy(task, classes), accuracy=accuracy(task, classes))


@pytest.mark.parametrize(
    "metric",
    [
        *("acc", "accuracy", "ce"),
        *("sparse_categorical_accuracy", "categorical_accuracy"),
    ],
)
def test_metrics_have_the_name_that_was_given(metric, classes):
    task = classifier()
    task.compile("sgd", "crossentropy", metrics=[metric], **STILL)
    value = task.evaluate(classes, return_dict=True, verbose=0)[metric]
    right = crossentropy if metric == "ce" else accuracy
    assert value == pytest.approx(right(task, classes), rel=1e-5)


def test_dictionary_and_list_of_metrics(classes):
    task = classifier()
    named = keras.metrics.SparseCategoricalAccuracy(name="mine")
    top = keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top_2")
    f1 = keras.metrics.F1Score(average="macro", name="f1")
    task.compile(sgd(), metrics={"head": ["accuracy", named, top, f1]}, **STILL)
    logits, label = logits_of(task, classes)
    second = np.sort(logits, axis=-1)[:, -2]
    hit = np.eye(NUM_CLASSES)[logits.argmax(axis=-1)]
    right = np.eye(NUM_CLASSES)[label]
    both_ones = (hit * right).sum(axis=0)
    share = 2 * both_ones / np.maximum(hit.sum(axis=0) + right.sum(axis=0), 1e-9)
    both(
        fit_once(task, classes),
        accuracy=accuracy(task, classes),
        mine=accuracy(task, classes),
        top_2=(logits[np.arange(len(label)), label] >= second).mean(),
        f1=share.mean(),
    )


def test_the_same_metric_with_and_without_weights(classes):
    task = classifier()
    task.compile(sgd(), metrics=["accuracy"], weighted_metrics=["accuracy"], **STILL)
    task.preprocessor = of_batches(len(classes) + 1)
    ((x, y, weight),) = list(task.loader(classes))
    weight = weight * np.linspace(0, 3, weight.size).reshape(weight.shape)
    logits, label = logits_of(task, classes)
    weights = weight[0, :-1][np.array([g.label for g in classes]) >= 0]
    hit = logits.argmax(axis=-1) == label
    losses = -np.log(softmax(logits))[np.arange(len(label)), label]
    for step in (task.train_on_batch, task.test_on_batch):
        found = step(x, y, weight, return_dict=True)
        assert found["loss"] == pytest.approx((losses * weights).mean(), rel=1e-5)
        assert found["accuracy"] == pytest.approx(hit.mean())
        weighted = (hit * weights).sum() / weights.sum()
        assert found["weighted_accuracy"] == pytest.approx(weighted, rel=1e-5)


@pytest.mark.parametrize(
    "loss, line",
    [
        (
            keras.losses.SparseCategoricalCrossentropy(),
            "SparseCategoricalCrossentropy(from_logits=True)",
        ),
        ("binary_crossentropy", '"sparse_categorical_crossentropy"'),
        ("mse", '"sparse_categorical_crossentropy"'),
        (keras.losses.MeanSquaredError, "loss=MeanSquaredError()"),
        (["mse", "mae"], "def loss(y_true, y_pred)"),
    ],
    ids=named,
)
def test_losses_that_do_not_fit_classes(loss, line):
    with pytest.raises(ValueError, match="Expected") as error:
        classifier().compile("adam", loss=loss)
    assert line in str(error.value)


@pytest.mark.parametrize(
    "metric",
    ["mae", "AUC", "binary_accuracy", "cosine_similarity", keras.metrics.MeanIoU(3)],
)
def test_metrics_that_do_not_fit_classes(metric):
    with pytest.raises(ValueError, match=r'Write metrics=\["accuracy"\]'):
        classifier().compile("adam", metrics=[metric])


def pairs_won(score, label):
    difference = score[label == 1][:, None] - score[label == 0]
    # Equal graphs have equal outputs, up to rounding.
    return np.where(np.abs(difference) < 2e-5, 0.5, difference > 0).mean()


def test_two_classes_have_an_area_and_a_precision():
    graphs, task = labels_of_two(), two_classes()
    task.compile(
        sgd(),
        metrics=[
            keras.metrics.AUC(100_000, name="auc"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(thresholds=0, name="recall"),
        ],
        **STILL,
    )
    logits, label = logits_of(task, graphs)
    score = softmax(logits)[:, 1]
    chosen = score > 0.5
    logs = fit_once(task, graphs)
    assert logs["auc"] == pytest.approx(pairs_won(score, label), abs=1e-3)
    hits = (chosen & (label == 1)).sum()
    assert logs["precision"] == pytest.approx(hits / max(chosen.sum(), 1))
    assert logs["recall"] == pytest.approx(hits / max((label == 1).sum(), 1))


# === compile: several targets ===


@pytest.mark.parametrize("loss", ["binary_crossentropy", "ce", "focal"])
def test_losses_and_metrics_of_targets(loss, targets):
    task = several_targets()
    if loss == "focal":
        loss = keras.losses.BinaryFocalCrossentropy(from_logits=True, gamma=2.0)
    task.compile(
        sgd(),
        loss,
        metrics=[
            "accuracy",
            "AUC",
            keras.metrics.AUC(100_000, name="auc"),
            keras.metrics.BinaryAccuracy(threshold=0.7, name="at_7"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
            keras.metrics.FalsePositives(name="wrong"),
            keras.metrics.BinaryCrossentropy(name="bce"),
        ],
        **STILL,
    )
    z, y = flat_of(task, targets)
    p = 1 / (1 + np.exp(-z))
    of_right = np.where(y == 1, p, 1 - p)
    bce = -np.log(of_right)
    focal = not isinstance(loss, str)
    logs = fit_once(task, targets)
    both(
        logs,
        loss=(bce * (1 - of_right) ** 2 if focal else bce).mean(),
        accuracy=((p > 0.5) == (y == 1)).mean(),
        at_7=((p > 0.7) == (y == 1)).mean(),
        precision=(y[p > 0.5]).mean() if (p > 0.5).any() else 0,
        recall=(p[y == 1] > 0.5).mean(),
        wrong=((p > 0.5) & (y == 0)).sum(),
        bce=bce.mean(),
    )
    assert logs["auc"] == pytest.approx(pairs_won(z, y), abs=1e-3)
    # By its 200 thresholds only.
    plain = keras.metrics.AUC()
    plain.update_state(y.astype("float32"), p.astype("float32"))
    assert logs["AUC"] == pytest.approx(float(plain.result()), abs=1e-5)


def test_metrics_of_targets_are_those_of_scikit_learn():
    right = pytest.importorskip("sklearn.metrics")
    # Enough graphs for both answers to occur, in batches with padding.
    flat, task = data_of("GraphClassifier, several targets", 30), several_targets()
    task.compile(
        sgd(),
        metrics=[
            keras.metrics.BinaryAccuracy(name="accuracy"),
            keras.metrics.AUC(100_000, name="auc"),
            keras.metrics.AUC(100_000, curve="PR", name="average_precision"),
            keras.metrics.Precision(thresholds=[0.4], name="precision"),
            keras.metrics.Recall(thresholds=0.4, name="recall"),
        ],
        weighted_metrics=task.default_metrics()[1:],
        **STILL,
    )
    # Outputs about 0: new ones are all on one side of it.
    *others, kernel, bias = task.head.get_weights()
    out = np.stack(task.predict(flat))
    scale = out.std(axis=0)
    task.head.set_weights([*others, kernel / scale, (bias - out.mean(axis=0)) / scale])
    z, y = flat_of(task, flat)
    p = 1 / (1 + np.exp(-z))
    assert 0.1 < (p > 0.4).mean() < 0.9
    found = task.evaluate(flat, verbose=0, return_dict=True)
    out = np.stack(task.predict(flat))
    each = []
    for column, scores in zip(flat.label.T, out.T, strict=True):
        known = np.isfinite(column)
        each.append(right.roc_auc_score(column[known], scores[known]))
    expected = {
        "accuracy": right.accuracy_score(y, p > 0.5),
        "auc": right.roc_auc_score(y, z),
        "average_precision": right.average_precision_score(y, z),
        "precision": right.precision_score(y, p > 0.4),
        "recall": right.recall_score(y, p > 0.4),
        "roc_auc": np.mean(each),
    }
    for name, value in expected.items():
        # Areas are sums over bins, in which equal graphs are ties for certain.
        wide = name in ("auc", "average_precision", "roc_auc")
        assert found[name] == pytest.approx(value, abs=2e-2 if wide else 1e-5), name


@pytest.mark.parametrize(
    "options, line",
    [
        ({"loss": keras.losses.BinaryCrossentropy()}, "(from_logits=True)"),
        ({"loss": "mse"}, 'loss="binary_crossentropy"'),
        ({"loss": "sparse_categorical_crossentropy"}, 'loss="binary_crossentropy"'),
        ({"metrics": ["sparse_categorical_accuracy"]}, 'metrics=["accuracy", "AUC"]'),
        ({"metrics": [keras.metrics.AUC(multi_label=True)]}, "multi_label=True"),
        ({"metrics": [keras.metrics.Precision(class_id=1)]}, "class_id=1"),
    ],
    ids=named,
)
def test_what_does_not_fit_targets(options, line):
    with pytest.raises(ValueError, match="Expected") as error:
        several_targets().compile("adam", **options)
    assert line in str(error.value)


# === compile: numbers ===


@pytest.mark.parametrize(
    "loss, of_error",
    [
        ("mse", np.square),
        ("mean_squared_error", np.square),
        ("mae", np.abs),
        (keras.losses.MeanAbsoluteError(), np.abs),
        ("huber", lambda e: np.where(np.abs(e) < 1, e**2 / 2, np.abs(e) - 0.5)),
        (keras.losses.log_cosh, lambda e: np.log(np.cosh(e))),
    ],
    ids=named,
)
def test_losses_of_numbers(loss, of_error, numbers):
    task = regressor()
    task.compile(sgd(), loss, metrics=["mae", "RootMeanSquaredError"], **STILL)
    out, label = flat_of(task, numbers)
    both(
        fit_once(task, numbers),
        loss=of_error((out - label) / 2).mean(),
        mae=np.abs(out - label).mean(),
        RootMeanSquaredError=np.sqrt(((out - label) ** 2).mean()),
    )


@pytest.mark.parametrize(
    "options, line",
    [
        ({"loss": "sparse_categorical_crossentropy"}, 'loss="mse"'),
        ({"loss": "cosine_similarity"}, 'loss="mse"'),
        ({"metrics": ["accuracy"]}, 'metrics=["mae"]'),
        ({"metrics": [keras.metrics.R2Score()]}, "R2Score"),
        ({"metrics": [keras.metrics.Mean()]}, "update_state(y_true, y_pred"),
        ({"metrics": [3]}, "names, functions or keras.metrics"),
        ({"loss_weights": [1.0, 2.0, 3.0]}, "one for all 2 targets"),
    ],
    ids=named,
)
def test_what_does_not_fit_numbers(options, line):
    with pytest.raises(ValueError, match="Expected|interpret") as error:
        regressor().compile("adam", **options)
    assert line in str(error.value)


def test_r2_of_one_number():
    graphs = data_of("ForceRegressor", 9)
    keras.utils.set_random_seed(0)
    task = kb.models.GraphRegressor(BACKBONES["GCNBackbone"](), 1, of_batches())
    task.compile(sgd(), metrics=["R2Score"], **STILL)
    found = fit_once(task, graphs)["R2Score"]
    label = np.array([graph.label for graph in graphs]).ravel()
    error = label - np.ravel(task.predict(graphs))
    spread = ((label - label.mean()) ** 2).sum()
    assert found == pytest.approx(1 - (error**2).sum() / spread, abs=1e-5)


def test_the_loss_of_a_task_is_one_for_another(numbers):
    task, again = regressor(), regressor()
    task.compile(sgd(), "mae", **STILL)
    again.compile(sgd(), task.loss, **STILL)
    out, label = flat_of(again, numbers)
    both(fit_once(again, numbers), loss=np.abs(out - label).mean() / 2)
    assert again.get_compile_config()["loss"] == task.get_compile_config()["loss"]


def test_loss_weights_scale_the_loss(numbers):
    task = regressor()
    task.compile(sgd(), "mse", loss_weights=[0.5], **STILL)
    both(fit_once(task, numbers), loss=mse(task, numbers) / 2)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", None, "sum"])
def test_reductions_print_the_mean(reduction, numbers):
    task = regressor()
    task.compile(sgd(), keras.losses.MeanSquaredError(reduction=reduction), **STILL)
    both(fit_once(task, numbers), loss=mse(task, numbers))


def test_the_sum_is_trained_on(numbers):
    steps = []
    for reduction in ("sum", "mean"):
        task = task_of(
            "GraphRegressor", preprocessor=of_batches(len(numbers.num_nodes) + 1)
        )
        task.compile(
            sgd(0.01), keras.losses.MeanSquaredError(reduction=reduction), **STILL
        )
        before = task.get_weights()
        task.fit(numbers, epochs=1, verbose=0)
        after = task.get_weights()
        steps.append([b - a for a, b in zip(before, after, strict=True)])
    count = np.isfinite(numbers.label).sum()
    for total, mean in zip(*steps, strict=True):
        np.testing.assert_allclose(total, count * mean, rtol=1e-3, atol=1e-6)


# === Losses and metrics of one's own ===


def squared(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


def squared_scalar(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


class Squared(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return squared(y_true, y_pred)


class Largest(keras.metrics.Metric):
    """The largest error so far."""

    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = ops.max(ops.abs(ops.cast(y_true, y_pred.dtype) - y_pred))
        value = ops.convert_to_tensor(self.value)
        self.value.assign(ops.maximum(value, error))

    def result(self):
        return ops.convert_to_tensor(self.value)


class WithoutWeights(Largest):
    def update_state(self, y_true, y_pred):
        super().update_state(y_true, y_pred)


@pytest.mark.parametrize("loss", [squared, Squared()], ids=["function", "class"])
def test_own_losses_and_metrics(loss, numbers):
    task = regressor()
    task.compile(sgd(), loss, metrics=[squared, Largest()], **STILL)
    out, label = flat_of(task, numbers)
    both(
        fit_once(task, numbers),
        loss=mse(task, numbers),
        squared=((out - label) ** 2).mean(),
        # Padding repeats what is real: it is no larger.
        largest=np.abs(out - label).max(),
    )


def test_own_losses_and_metrics_of_classes(classes):
    def focal(y_true, y_pred):
        place = ops.cast(y_true[:, 0], "int32")
        logs = ops.log_softmax(y_pred)
        share = ops.sum(logs * ops.one_hot(place, NUM_CLASSES), axis=-1)
        return -((1 - ops.exp(share)) ** 2) * share

    task = classifier()
    task.compile(sgd(), focal, metrics=[focal], **STILL)
    logits, label = logits_of(task, classes)
    p = softmax(logits)[np.arange(len(label)), label]
    value = (-((1 - p) ** 2) * np.log(p)).mean()
    both(fit_once(task, classes), loss=value, focal=value)


def test_padding_may_be_infinite(numbers):
    """log(0) of padded labels reaches neither loss, gradient nor metric."""

    def relative(y_true, y_pred):
        return ops.squeeze(ops.abs(ops.log(ops.abs(y_true)) * y_pred), -1)

    task = regressor()
    task.compile(sgd(1e-3), relative, metrics=[relative], **STILL)
    logs = fit_once(task, numbers)
    assert all(math.isfinite(value) for value in logs.values())
    assert all(np.isfinite(weight).all() for weight in task.get_weights())


@pytest.mark.parametrize(
    "options", [{"loss": squared_scalar}, {"metrics": [squared_scalar]}], ids=named
)
def test_functions_that_return_one_number(options, numbers):
    task = regressor()
    task.compile("adam", **options, **STILL)
    with pytest.raises(ValueError, match="one value per entry.*axis=-1"):
        task.fit(numbers, epochs=1, verbose=0)


def as_they_are(y_true, y_pred):
    return y_pred


class AsTheyAre(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return y_pred


def of_the_first(y_true, y_pred):
    return y_pred[:1, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"loss": as_they_are},
        {"loss": AsTheyAre()},
        {"loss": of_the_first},
        {"metrics": [as_they_are]},
        {"metrics": [of_the_first]},
    ],
    ids=named,
)
def test_functions_that_return_other_than_one_value_per_entry(options, classes):
    task = classifier()
    task.compile("adam", **options, **STILL)
    with pytest.raises(ValueError, match="one value per entry.*Received: shape"):
        task.fit(classes, epochs=1, verbose=0)


def test_a_column_is_one_value_per_entry(numbers):
    """Of single numbers the absolute error [n, 1] is plain enough."""

    def off(y_true, y_pred):
        return ops.abs(y_true - y_pred)

    task = regressor()
    task.compile(sgd(), off, metrics=[off], **STILL)
    out, label = flat_of(task, numbers)
    error = np.abs(out - label).mean()
    both(fit_once(task, numbers), loss=error / 2, off=error)


@pytest.mark.parametrize("given", [{}, {"loss": None}, {"optimizer": None}], ids=named)
def test_none_is_what_is_left_out(given, classes):
    task = classifier()
    task.compile(**{"optimizer": sgd(), **given}, **STILL)
    assert task.optimizer is not None
    found = task.evaluate(classes, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(crossentropy(task, classes), rel=1e-5)


def test_metrics_leave_the_loss_its_name(numbers):
    task = regressor()
    first, second = lambda a, b: ops.zeros_like(b[:, 0]) + 7, lambda a, b: b[:, 0]
    task.compile(sgd(), metrics=[first])
    found = task.evaluate(numbers, verbose=0, return_dict=True)
    assert found["lambda"] == 7 and found["loss"] != 7
    named = keras.metrics.MeanAbsoluteError(name="loss")
    for metrics in ([first, second], [named]):
        with pytest.raises(ValueError, match="distinct names other than 'loss'"):
            task.compile(sgd(), metrics=metrics)


def test_a_class_to_ignore_is_refused():
    loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=1)
    with pytest.raises(ValueError, match="Labels of -1 are ignored"):
        classifier().compile("adam", loss)


def test_files_of_the_older_form_are_refused(tmp_path):
    with pytest.raises(ValueError, match="save\\('model.keras'\\)"):
        classifier().save(tmp_path / "model.h5")


def test_metrics_without_weights_are_refused():
    with pytest.raises(ValueError, match=r"update_state\(y_true, y_pred, sample_weigh"):
        regressor().compile("adam", metrics=[WithoutWeights()])


# === compile: how it runs ===


@pytest.mark.parametrize(
    "options",
    [
        {"run_eagerly": True},
        {"jit_compile": BACKEND != "torch"},
        {"steps_per_execution": 2},
        {"auto_scale_loss": False},
    ],
    ids=named,
)
@pytest.mark.release(elsewhere=True)
def test_ways_to_run(options, classes):
    task = classifier()
    task.compile(sgd(), "crossentropy", metrics=["accuracy"], **options)
    if BACKEND == "torch" and "steps_per_execution" in options:
        with pytest.raises(ValueError, match="steps_per_execution"):
            fit_once(task, classes)
        return
    logs = fit_once(task, classes)
    both(logs, loss=crossentropy(task, classes), accuracy=accuracy(task, classes))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy, classes):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        task = classifier()
        task.compile("sgd", "crossentropy", metrics=["accuracy"], **STILL)
    finally:
        keras.config.set_dtype_policy(before)
    scaled = isinstance(task.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    loss = crossentropy(task, classes)
    found = task.fit(classes, epochs=1, verbose=0).history["loss"][0]
    # The loss of training, not the scaled one.
    assert found == pytest.approx(loss, rel=0.05)
    assert task.head.compute_dtype == "float32"


def test_64_bits_are_refused():
    with pytest.raises(ValueError, match="at most 32 bits.*Received: 'float64'"):
        BACKBONES["GCNBackbone"](dtype="float64")


@pytest.mark.parametrize("name", ["adam", "sgd", "rmsprop"])
def test_names_of_optimizers_are_those_of_keras(name):
    plain = keras.optimizers.get(name).get_config()
    for make in (classifier, regressor, lambda: task_of("NodeSelector")):
        task = make()
        own = type(task.optimizer)
        task.compile(name)
        found = task.optimizer.get_config()
        assert {**found, "name": 0} == {**plain, "name": 0}
        task.compile()
        assert type(task.optimizer) is own
        assert task.optimizer.get_config() != found


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 1.0},
        {"global_clipnorm": 1.0},
        {"clipvalue": 0.5},
        {"use_ema": True, "ema_momentum": 0.9},
        {"gradient_accumulation_steps": 2},
        {"weight_decay": 1e-3},
        {"learning_rate": keras.optimizers.schedules.CosineDecay(1e-3, 100)},
    ],
    ids=named,
)
def test_options_of_optimizers(options, classes):
    task = classifier()
    before = crossentropy(task, classes)
    options = {"learning_rate": 0.02, **options}
    task.compile(keras.optimizers.Adam(**options), "crossentropy", **STILL)
    history = task.fit(classes, epochs=4, verbose=0).history
    assert history["loss"][-1] < before
    assert history["loss"][-1] < history["loss"][0]


# === Callbacks ===


def trained(classes, *callbacks, epochs=3, rate=0.5, **options):
    task = classifier()
    task.compile(sgd(rate), "crossentropy", metrics=["accuracy"], **STILL)
    history = task.fit(
        classes,
        validation_data=classes,
        epochs=epochs,
        callbacks=list(callbacks),
        verbose=0,
        **options,
    )
    return task, history


def test_early_stopping_restores_the_best(classes):
    stop = keras.callbacks.EarlyStopping(
        "val_accuracy", patience=2, restore_best_weights=True, mode="max"
    )
    task, history = trained(classes, stop, epochs=8)
    best = max(history.history["val_accuracy"])
    assert accuracy(task, classes) == pytest.approx(best)


@pytest.mark.parametrize("monitor", ["val_accuracy", "val_loss"])
def test_checkpoints_hold_the_best(monitor, classes, tmp_path):
    path = tmp_path / "best.keras"
    keep = keras.callbacks.ModelCheckpoint(path, monitor, save_best_only=True)
    _, history = trained(classes, keep)
    again = keras.models.load_model(path)
    found = again.evaluate(classes, return_dict=True, verbose=0)
    pick = max if monitor == "val_accuracy" else min
    best = pick(history.history[monitor])
    assert found[monitor.removeprefix("val_")] == pytest.approx(best, rel=1e-5)


def test_plateaus_lower_the_rate(classes):
    lower = keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=9)
    task, history = trained(classes, lower)
    assert history.history["learning_rate"] == pytest.approx([0.5, 0.5, 0.25])


def test_csv_has_the_numbers_of_the_history(classes, tmp_path):
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    _, history = trained(classes, log)
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        found = [float(row[name]) for row in rows]
        assert found == pytest.approx(history.history[name])


def test_backup_resumes(classes, tmp_path):
    def keep():
        return keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)

    trained(classes, keep(), epochs=2)
    task, history = trained(classes, keep(), epochs=3)
    straight, _ = trained(classes, epochs=3)
    assert history.epoch == [2]
    for one, other in zip(task.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_schedules_and_functions(classes):
    seen = []
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["val_accuracy"]),
        on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]),
    )
    _, history = trained(classes, rate, note, epochs=2)
    assert history.history["learning_rate"] == pytest.approx([0.25, 0.125])
    assert seen[-1] == history.history["val_accuracy"][-1]
    # What a bar shows at the end of an epoch is the loss of the epoch.
    assert float(seen[-2]) == pytest.approx(history.history["loss"][-1], rel=1e-6)


def test_training_ends_at_nan(classes):
    end = keras.callbacks.TerminateOnNaN()
    _, history = trained(classes, end, epochs=4, rate=float("nan"))
    assert len(history.epoch) < 4


def test_validation_every_second_epoch(classes):
    _, history = trained(classes, epochs=4, validation_freq=2)
    assert len(history.history["val_loss"]) == 2
    assert len(history.history["loss"]) == 4


def test_a_bar_has_the_right_numbers(classes, capsys):
    task = classifier()
    task.compile(sgd(), "crossentropy", metrics=["accuracy"], **STILL)
    task.fit(classes, epochs=1, verbose=2)
    shown = capsys.readouterr().out
    assert f"loss: {crossentropy(task, classes):.4f}" in shown
    assert f"accuracy: {accuracy(task, classes):.4f}" in shown


# === Loops, layers, models ===


def test_loop_of_ones_own(classes):
    task = classifier()
    task.compile(sgd(0.5), "crossentropy", metrics=["accuracy"], **STILL)
    task.preprocessor = of_batches(len(classes) + 1)
    loader = task.loader(classes)
    before = crossentropy(task, classes)
    for _ in range(3):
        for x, y, weight in loader:
            logs = task.train_on_batch(x, y, weight, return_dict=True)
            np.testing.assert_allclose(logs["loss"], before, rtol=1e-5)
        before = crossentropy(task, classes)
    assert task.test_on_batch(x, y) == pytest.approx(
        [before, accuracy(task, classes)], rel=1e-5
    )


def test_graphs_are_no_batch(classes):
    task = classifier()
    for method in (task.train_on_batch, task.test_on_batch, task.predict_on_batch):
        with pytest.raises(ValueError, match=r"task.loader\(graphs\)\[0\]"):
            method(classes)


def test_class_weight_is_that_of_a_loss(classes):
    task = classifier()
    (batch, *_) = list(task.loader(classes))
    with pytest.raises(ValueError, match="Pass it to fit"):
        task.train_on_batch(*batch[:2], class_weight={0: 1.0})

    def loss(y_true, y_pred):
        weight = ops.take(ops.array([1.0, 5.0, 1.0]), ops.cast(y_true[:, 0], "int32"))
        return weight * keras.losses.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=True
        )

    task.compile(sgd(), loss, **STILL)
    logits, label = logits_of(task, classes)
    losses = -np.log(softmax(logits))[np.arange(len(label)), label]
    expected = (np.array([1, 5, 1])[label] * losses).mean()
    both(fit_once(task, classes), loss=expected)
    task.compile(sgd(), **STILL)
    history = task.fit(classes, class_weight={0: 1.0, 1: 5.0}, verbose=0)
    assert history.history["loss"][0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "options, line",
    [
        ({"batch_size": 32}, "StaticBatcher"),
        ({"steps_per_epoch": 2}, "batch"),
    ],
    ids=named,
)
def test_options_of_fit_that_graphs_do_not_have(options, line, classes):
    with pytest.raises(ValueError, match="Expected graphs") as error:
        classifier().fit(classes, verbose=0, **options)
    assert line in str(error.value)


def test_frozen_layers_stay(classes):
    task = classifier()
    task.backbone.trainable = False
    task.compile(sgd(0.5), "crossentropy", **STILL)
    frozen = task.backbone.get_weights()
    head = task.head.get_weights()
    task.fit(classes, epochs=1, verbose=0)
    for one, other in zip(frozen, task.backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.allclose(head[0], task.head.get_weights()[0])


def test_regularisation_counts_once(numbers):
    task = regressor()
    kernel = task.head.hidden_dense.kernel
    kernel.regularizer = keras.regularizers.L2(0.1)
    task.compile(sgd(), "mse", **STILL)
    more = 0.1 * (ops.convert_to_numpy(kernel) ** 2).sum()
    both(fit_once(task, numbers), loss=mse(task, numbers) + more)


def test_evaluate_gives_a_list_or_a_dictionary(classes):
    task = classifier()
    task.compile("adam", "crossentropy", metrics=["accuracy"], **STILL)
    values = task.evaluate(classes, verbose=0)
    named = task.evaluate(classes, return_dict=True, verbose=0)
    assert values == [named["loss"], named["accuracy"]]
    expected = [crossentropy(task, classes), accuracy(task, classes)]
    assert values == pytest.approx(expected, rel=1e-5)


def test_predict_honours_its_options(classes, capsys):
    class Watch(keras.callbacks.Callback):
        calls = []

        def on_predict_begin(self, logs=None):
            self.calls.append("begin")

        def on_predict_batch_end(self, batch, logs=None):
            self.calls.append(logs["outputs"].shape[-1])

        def on_predict_end(self, logs=None):
            self.calls.append("end")

    for task in (classifier(), task_of("NodeClassifier")):
        watch = Watch()
        watch.calls = []
        plain = task.predict(classes)
        assert not capsys.readouterr().out
        found = task.predict(classes, verbose=1, callbacks=[watch])
        bar = capsys.readouterr().out
        steps = len(watch.calls) - 2
        assert f"{steps}/{steps}" in bar
        assert watch.calls == ["begin", *[NUM_CLASSES] * steps, "end"]
        for one, other in zip(plain, found, strict=True):
            np.testing.assert_array_equal(one, other)
        with pytest.raises(ValueError, match="without steps.*graphs"):
            task.predict(classes, steps=1)
        with pytest.raises(ValueError, match="without batch_size"):
            task.predict(classes, batch_size=32)
        with pytest.raises(TypeError):
            task.predict(classes, wrong=1)


def test_saved_models_go_on(classes, tmp_path):
    task = classifier()
    task.compile("adam", "crossentropy", metrics=["acc"], **STILL)
    task.fit(classes, epochs=1, verbose=0)
    task.save(tmp_path / "task.keras")
    again = keras.models.load_model(tmp_path / "task.keras")
    assert again.evaluate(classes, verbose=0) == pytest.approx(
        task.evaluate(classes, verbose=0), rel=1e-5
    )
    for each in (task, again):
        each.fit(classes, epochs=1, verbose=0)
    for one, other in zip(task.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_own_losses_are_saved_by_name(numbers, tmp_path):
    task = regressor()
    task.compile("adam", squared, metrics=[squared], **STILL)
    task.save(tmp_path / "task.keras")
    known = {"squared": squared}
    again = keras.models.load_model(tmp_path / "task.keras", custom_objects=known)
    found = again.evaluate(numbers, return_dict=True, verbose=0)
    assert found["loss"] == pytest.approx(mse(task, numbers), rel=1e-5)


def test_clones_are_new(classes):
    task = classifier()
    clone = keras.models.clone_model(task)
    clone.set_weights(task.get_weights())
    clone.compile("adam", "crossentropy", metrics=["accuracy"], **STILL)
    found = clone.evaluate(classes, verbose=0)[0]
    assert found == pytest.approx(crossentropy(task, classes), rel=1e-5)


def test_a_task_within_a_functional_model(classes):
    task = classifier()
    ((x, _, _),) = list(task_loader(task, classes))
    inputs = keras.tree.map_structure(
        lambda a: keras.Input(batch_shape=a.shape, dtype=str(a.dtype)), x
    )
    shares = keras.layers.Softmax()(task(inputs))
    model = keras.Model(inputs, shares)
    found = ops.convert_to_numpy(model(x))[0][: len(classes)]
    np.testing.assert_allclose(
        found, softmax(np.stack(task.predict(classes))), atol=1e-5
    )


def task_loader(task, graphs):
    task.preprocessor = of_batches(len(graphs) + 1)
    return task.loader(graphs)


def test_steps_of_ones_own(classes):
    class Doubled(kb.models.GraphClassifier):
        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            return 1.0 + super().compute_loss(x, y, y_pred, sample_weight, training)

    class Constant(kb.models.GraphClassifier):
        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            return 3.0 + 0.0 * ops.sum(y_pred)

    for cls, value in ((Doubled, None), (Constant, 3.0)):
        keras.utils.set_random_seed(0)
        task = cls(BACKBONES["GCNBackbone"](), NUM_CLASSES, of_batches())
        task.compile(sgd(), "crossentropy", metrics=["accuracy"], **STILL)
        right = value or 1.0 + crossentropy(task, classes)
        both(fit_once(task, classes), loss=right, accuracy=accuracy(task, classes))
