"""Several threads that use one task."""

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from task_samples import TASKS, data_of, task_of

import keras_bandgnn as kb

pytestmark = pytest.mark.every_backend


def flat(outputs):
    return np.concatenate([np.ravel(rows) for rows in outputs])


@pytest.mark.parametrize("name", TASKS)
def test_threads_predict_the_same(name):
    task, data = task_of(name), data_of(name, 4)
    right = flat(task.predict(data))
    (x, *_) = task.loader(data, training=False)[0]
    output = keras.ops.convert_to_numpy(task.predict_on_batch(x))
    barrier = threading.Barrier(3)

    def predict(_):
        barrier.wait()
        for _ in range(4):
            np.testing.assert_array_equal(flat(task.predict(data)), right)
            values = keras.ops.convert_to_numpy(task.predict_on_batch(x))
            np.testing.assert_array_equal(values, output)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(predict, range(3)))


def test_programs_over_a_task_share_its_lock():
    task, data = task_of("GraphRegressor"), data_of("GraphRegressor", 4)
    other = task_of("GraphRegressor")
    ensemble = kb.models.Ensemble([other, task])
    calls = [
        lambda: flat(task.predict(data)),
        lambda: flat(task.embed(data)),
        lambda: flat(ensemble.predict(data)),
        lambda: flat(one.node for one in kb.explain.saliency(task, data, target=0)),
        lambda: np.array(task.evaluate(data, verbose=0)),
    ]
    right = [call() for call in calls]

    def repeat(number):
        for _ in range(3):
            np.testing.assert_allclose(calls[number](), right[number], atol=1e-6)

    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(repeat, range(len(calls))))


def test_a_task_in_training_is_refused():
    task, data = task_of("GraphRegressor"), data_of("GraphRegressor", 4)
    other = task_of("GraphRegressor")
    calls = {
        "predict": lambda: task.predict(data),
        "evaluate": lambda: task.evaluate(data, verbose=0),
        "fit": lambda: task.fit(data, verbose=0),
        "embed": lambda: task.embed(data),
        "predict_on_batch": lambda: task.predict_on_batch(task.loader(data)[0][0]),
    }
    errors, trained = {}, []

    class InOtherThread(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            with ThreadPoolExecutor(1) as pool:
                errors.update(
                    (name, pool.submit(call).exception())
                    for name, call in calls.items()
                )
                # Another task may be used.
                trained.append(pool.submit(other.predict, data).result())

    task.fit(data, verbose=0, callbacks=[InOtherThread()])
    assert len(trained) == 1 and errors.keys() == calls.keys()
    for name, error in errors.items():
        assert isinstance(error, RuntimeError), (name, error)
        assert "another thread is training" in str(error)
    # The lock is free again, also after a failed fit.
    with pytest.raises(ValueError):
        task.fit(data, [1], verbose=0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(calls["predict"]).exception() is None
