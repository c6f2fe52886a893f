import math

import keras
import numpy as np
import pytest

from keras_bandgnn.training import TimeToAccuracy
from keras_bandgnn.training.time_to_accuracy import TimeLimit, direction_of


class Clock:
    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


class Model:
    stop_training = False

    def __init__(self):
        self.optimizer = keras.optimizers.SGD(0.1)


def play(watch, values, step=1.0, steps=4, first=100.0, validation=7.0):
    """Plays epochs of some steps; the first step of all takes long.

    Validation is set up before it begins.
    """
    clock, model = watch._clock, Model()
    watch.set_model(model)
    watch.on_train_begin()
    for epoch, value in enumerate(values):
        watch.on_epoch_begin(epoch)
        for batch in range(steps):
            watch.on_train_batch_begin(batch)
            clock.now += first if not (epoch or batch) else step
            watch.on_train_batch_end(batch)
        clock.now += 13.0
        watch.on_test_begin()
        clock.now += validation
        watch.on_test_end()
        watch.on_epoch_end(epoch, {"loss": 1.0, watch_name(watch): value})
        clock.now += 1000.0
        if model.stop_training:
            return epoch + 1
    return len(values)


def watch_name(watch):
    return getattr(watch, "monitor", "val_accuracy")


def test_crossing_of_the_smoothed_curve():
    values = [0.2, 0.9, 0.3, 0.8, 0.7, 0.9, 0.9]
    watch = TimeToAccuracy(0.7, window=3, seconds=Clock())
    assert play(watch, values) == 7
    smoothed = [np.mean(values[max(0, k - 2) : k + 1]) for k in range(7)]
    np.testing.assert_allclose([row["smoothed"] for row in watch.curve], smoothed)
    first = int(np.argmax(np.array(smoothed) >= 0.7))
    assert watch.reached and watch.crossing == watch.curve[first]
    assert watch.crossing["epoch"] == first and watch.crossing["value"] == values[first]
    assert watch.best == pytest.approx(max(smoothed))
    # The first step compiles and does not count; nor do validation and callbacks.
    assert [row["seconds"] for row in watch.curve] == [3 + 4.0 * k for k in range(7)]
    assert [row["steps"] for row in watch.curve] == [4 + 4 * k for k in range(7)]
    assert watch.first_step == 100.0
    assert f"after {watch.crossing['steps']} steps" in watch.summary()


def test_stops_falls_and_starts_anew():
    watch = TimeToAccuracy(0.5, "val_rmse", window=1, stop=True, seconds=Clock())
    assert watch.mode == "min"
    assert play(watch, [0.9, 0.6, 0.4, 0.1]) == 3
    assert watch.crossing["steps"] == 12
    assert play(watch, [0.9, 0.8]) == 2
    assert not watch.reached and watch.seconds == 7.0
    assert watch.summary() == "val_rmse has not reached 0.5, at best 0.8"
    # A metric that is not a number is no crossing.
    assert play(watch, [math.nan, math.nan]) == 2
    assert not watch.reached and math.isnan(watch.best)


def test_an_epoch_of_one_step():
    watch = TimeToAccuracy(0.5, seconds=Clock())
    play(watch, [0.1, 0.1, 0.1], steps=1)
    assert [row["seconds"] for row in watch.curve] == [0.0, 1.0, 2.0]


def test_a_step_whose_end_is_not_noted_yet():
    watch = TimeToAccuracy(0.5, seconds=Clock())
    watch.on_train_batch_end = lambda batch: None
    play(watch, [0.1, 0.1], steps=2)
    # To the beginning of validation.
    assert [row["seconds"] for row in watch.curve] == [14.0, 29.0]


def test_ends_of_steps_in_the_order_of_threads():
    watch = TimeToAccuracy(0.5, seconds=Clock())
    watch.set_model(Model())
    watch.on_train_begin()
    watch.on_epoch_begin(0)
    for batch in range(3):
        watch.on_train_batch_begin(batch)
        watch._clock.now += 1.0
    for batch in (1, 2, 0):
        watch.on_train_batch_end(batch)
    watch._clock.now += 5.0
    watch.on_test_begin()
    assert watch.seconds == 2.0


def test_time_limit_is_of_training_time():
    limit = TimeLimit(10.0, seconds=Clock())
    # 3 seconds in the first epoch, then 4 each: the third is a part of one.
    assert play(limit, [0.0] * 9) == 3
    assert limit.seconds == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("val_accuracy", "max"),
        ("roc_auc", "max"),
        ("val_loss", "min"),
        ("val_mae", "min"),
        ("val_mean_squared_error", "min"),
    ],
)
def test_direction(name, mode):
    assert direction_of(name) == mode


def test_errors():
    with pytest.raises(ValueError, match="`target` to be a finite number"):
        TimeToAccuracy(math.inf)
    with pytest.raises(ValueError, match="`window`"):
        TimeToAccuracy(0.5, window=0)
    with pytest.raises(ValueError, match="`mode`"):
        TimeToAccuracy(0.5, mode="up")
    with pytest.raises(ValueError, match="`limit`"):
        TimeLimit(0)
    watch = TimeToAccuracy(0.5, "val_f1", seconds=Clock())
    watch.set_model(Model())
    watch.on_train_begin()
    with pytest.raises(ValueError, match="val_f1.*need validation_data"):
        watch.on_epoch_end(0, {"loss": 1.0})


def test_in_fit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5]], "float32")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.2), "mse")
    watch = TimeToAccuracy(0.05, "val_loss", window=2, stop=True)
    model.fit(
        x,
        y,
        batch_size=16,
        epochs=50,
        validation_data=(x, y),
        callbacks=[watch],
        verbose=0,
    )
    assert watch.reached and watch.steps == 4 * len(watch.curve) < 200
    assert watch.steps == int(model.optimizer.iterations)
    assert 0 < watch.crossing["seconds"] < 60
