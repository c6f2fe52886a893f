"""Every loss and metric that Keras prints equals plain NumPy over real entries."""

import keras
import numpy as np
import pytest
from task_samples import TASKS, check_complete, data_of, task_of

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    StaticBatcher,
)

pytestmark = pytest.mark.every_backend
ELSEWHERE = pytest.mark.release(elsewhere=True)

BATCHERS = {
    "constant": lambda: StaticBatcher(3),
    "64": lambda: StaticBatcher(4, "64"),
    "power of two": lambda: StaticBatcher(6, "power_of_two"),
    "dynamic": lambda: DynamicBatcher(2),
}


def test_every_task_has_a_sample():
    check_complete()


def labels_of(data):
    """Labels in the order of the predictions."""
    if isinstance(data, kb.data.FlatGraphs):
        return np.float64(data.label)
    return np.concatenate([np.atleast_1d(np.float64(graph.label)) for graph in data])


def log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def expected(name, task, data):
    """Loss and metrics from `predict`, by NumPy."""
    out = [np.float64(rows) for rows in task.predict(data)]
    label = labels_of(data)
    rows = np.concatenate(out) if task.output_level in ("node", "edge") else None
    rows = np.stack(out) if rows is None else rows
    classes = ("NodeSelector", "NodeClassifier", "EdgeClassifier", "GraphClassifier")
    if name in (*classes, "GraphClassifier, ordered classes"):
        known = label >= 0
        rows, right = rows[known], label[known].astype(int)
        losses = -log_softmax(rows)[np.arange(len(right)), right]
        accuracy = (rows.argmax(axis=-1) == right).mean()
        return {"loss": losses.mean(), "accuracy": accuracy}
    if name == "BugLocalizer":
        right = rows[label.reshape(-1) == 1]
        hit = right[:, 0] >= right[:, 1]
        return {"loss": -right[:, 0].mean(), "accuracy": hit.mean()}
    known = np.isfinite(label.reshape(rows.shape))
    z, y = rows[known], label.reshape(rows.shape)[known]
    if name == "GraphClassifier, several targets":
        losses = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
        accuracy = ((z > 0) == (y > 0)).mean()
        return {"loss": losses.mean(), "accuracy": accuracy}
    error = z - y
    found = {
        "loss": (error**2).mean() / 4,
        "mae": np.abs(error).mean(),
        "rmse": np.sqrt((error**2).mean()),
    }
    if name == "ForceRegressor":
        forces = np.concatenate(task.predict_forces(data))
        target = np.concatenate([graph.node["force"] for graph in data])
        found["force_mae"] = np.abs(forces - target).mean()
        found["loss"] += 10.0 * ((forces - target) ** 2).mean() / 4
    return found


def close(logs, numbers, prefix=""):
    for name, value in numbers.items():
        np.testing.assert_allclose(
            logs[prefix + name], value, rtol=1e-5, atol=1e-6, err_msg=name
        )


# Links are pairs of one graph, in batches of their own: see test_link_predictor.py.
# Classes, numbers, and two losses: the others compute on these parts.
SHORT = {"NodeClassifier", "GraphRegressor", "ForceRegressor"}
NAMES = [
    pytest.param(name, marks=[] if name in SHORT else ELSEWHERE)
    for name in sorted({*TASKS} - {"LinkPredictor"})
]


@pytest.mark.parametrize("name", NAMES)
def test_logs_equal_numpy_by_every_batcher(name):
    train, valid = data_of(name, 11), data_of(name, 5, seed=1)
    numbers = None
    for batcher, make in BATCHERS.items():
        task = task_of(name, preprocessor=GraphPreprocessor([], make()))
        # With a rate of 0 all steps of an epoch have the same weights.
        # JAX would compile each operation by itself, and compiles every shape.
        jax = keras.backend.backend() == "jax"
        eager = batcher != "constant" and not jax
        options = {"validation_data": valid}
        if jax and batcher != "constant":
            options = {}
        task.compile(keras.optimizers.SGD(0.0), run_eagerly=eager)
        if numbers is None:
            numbers = [expected(name, task, data) for data in (train, valid)]
        history = task.fit(train, epochs=1, verbose=0, **options).history
        logs = {key: values[0] for key, values in history.items()}
        assert set(logs) >= {"loss", *numbers[0]}
        close(logs, numbers[0])
        if options:
            close(logs, numbers[1], "val_")
        if batcher != "constant":
            continue
        close(task.evaluate(valid, return_dict=True, verbose=0), numbers[1])
        # A batch by itself, as in a loop of one's own.
        task.preprocessor = GraphPreprocessor([], StaticBatcher(len(train)))
        (batch,) = list(task.loader(train))
        for step in (task.train_on_batch, task.test_on_batch):
            close(step(*batch, return_dict=True), numbers[0])
