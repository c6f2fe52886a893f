"""Calls leave the random states of the process as those of a plain Keras model do."""

import random

import keras
import numpy as np
import pytest
import task_samples

import keras_bandgnn as kb

pytestmark = pytest.mark.every_backend("no_more")

EXPLAIN = {
    "saliency": {},
    "integrated_gradients": {"steps": 4, "tolerance": 10.0},
    "gnn_explainer": {"steps": 2},
}


def states():
    """Random states of Python, NumPy and the backend."""
    found = [random.getstate(), [x.tolist() for x in np.random.get_state()[1:2]]]
    if keras.backend.backend() == "torch":
        import torch

        found.append(torch.get_rng_state().tolist())
    return found


class _Arrays(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.ones((2, 3), "float32"), np.ones((2, 1), "float32")


def after_keras(method):
    """The states after a method of a plain Keras model."""
    model = keras.Sequential([keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    model.compile("sgd", "mse")
    model.fit(_Arrays(), verbose=0)
    seed(1)
    getattr(model, method)(_Arrays(), verbose=0)
    return states()


def seed(number):
    random.seed(number)
    np.random.seed(number)
    if keras.backend.backend() == "torch":
        import torch

        torch.manual_seed(number)


def calls(task, data):
    """Calls of a task, by name."""
    graphs = data[0] if isinstance(task, kb.models.LinkPredictor) else data
    yield "fit", lambda: task.fit(graphs, epochs=2, verbose=0)
    yield "evaluate", lambda: task.evaluate(graphs, verbose=0)
    if isinstance(task, kb.models.LinkPredictor):
        return
    yield "fit", lambda: task.fit(graphs, validation_data=graphs, verbose=0)
    yield "predict", lambda: task.predict(graphs)
    yield "loader", lambda: list(task.loader(graphs, shuffle=True))
    for name, options in EXPLAIN.items():
        target = None if task.labels.num_targets == 1 else 0

        def explain(name=name, options=options, target=target):
            try:
                getattr(kb.explain, name)(task, graphs, target=target, **options)
            except ValueError as error:
                assert "Expected" in str(error)

        yield name, explain


@pytest.mark.parametrize("name", sorted(task_samples.TASKS))
@pytest.mark.release(elsewhere=True)
def test_calls_draw_no_more_than_those_of_keras(name):
    task, data = task_samples.task_of(name), task_samples.data_of(name, 4)
    for method, call in calls(task, data):
        seed(1)
        before = states()
        call()
        found = states()
        if found != before:
            plain = method if hasattr(keras.Model, method) else "predict"
            assert found == after_keras(plain), method


def test_dropout_leaves_the_states_to_the_caller():
    backbone = kb.models.GINEBackbone(task_samples.INPUTS, 8, 2, dropout=0.5)
    task = kb.models.GraphRegressor(backbone, num_targets=2)
    data = task_samples.data_of("GraphRegressor", 4)
    draws, losses = [], []
    weights = task.get_weights()
    for number in (1, 2, 1):
        task.set_weights(weights)
        task.compile(keras.optimizers.SGD(0.0))
        seed(number)
        losses.append(task.fit(data, epochs=2, verbose=0).history["loss"])
        draws.append(states())
    assert draws[0] == draws[2]
    assert all(one != other for one, other in zip(*draws[:2], strict=True))
    if keras.backend.backend() == "torch":
        # The seed of `fit` alone decides on dropout.
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_a_step_that_fails_leaves_the_states_to_the_caller():
    task = task_samples.task_of("GraphRegressor")
    data = task_samples.data_of("GraphRegressor", 4)

    class Failing(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            raise RuntimeError("stop")

    seed(3)
    before = states()
    with pytest.raises(RuntimeError, match="stop"):
        task.fit(data, verbose=0, callbacks=[Failing()])
    assert states() == before
