import json
import math

import keras
import numpy as np
import pytest

from keras_bandgnn.preprocessing.attention.elastic_tuner import ElasticTuner
from keras_bandgnn.preprocessing.attention.reformation import LADDER


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def timed(set_threshold=lambda value: None, delta=10, **options):
    """A tuner with a clock of the test."""
    tuner = ElasticTuner(set_threshold, delta, **options)
    tuner._clock = Clock()
    return tuner


def epochs(tuner, losses, seconds, first=0, begin=True):
    """Plays epochs to a tuner; the logs of each."""
    clock = tuner._clock
    if begin:
        tuner.on_train_begin()
    out = []
    for epoch, loss in enumerate(losses, first):
        tuner.on_epoch_begin(epoch)
        clock.now += seconds(tuner.threshold) if callable(seconds) else seconds
        logs = {"loss": loss}
        tuner.on_epoch_end(epoch, logs)
        out.append(logs)
    return out


def expected(losses, seconds, delta, ladder, index, momentum=0.9):
    """The thresholds of all epochs and after them, step by step."""
    running, rates, used, compiled = losses[0], [], [], set()
    for epoch, loss in enumerate(losses):
        used.append(ladder[index])
        new = momentum * running + (1 - momentum) * loss
        rate = (running - new) / seconds(ladder[index])
        if epoch == 0 or index not in compiled:
            rate = None
        compiled.add(index)
        running = running if epoch == 0 else new
        rates.append(rate)
        earlier = rates[epoch - delta] if epoch >= delta else None
        if rate is not None and earlier is not None:
            index += 1 if rate >= earlier else -1
            index = min(max(index, 0), len(ladder) - 1)
    return used, ladder[index]


@pytest.mark.parametrize("delta", [1, 3, 10])
@pytest.mark.parametrize("start", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("seed", range(4))
def test_moves_as_the_rule_says(delta, start, seed):
    rng = np.random.default_rng(seed)
    losses = (np.exp(-np.arange(60) / 15) + 0.05 * rng.random(60)).tolist()
    seconds = {value: 9.0 - index for index, value in enumerate(LADDER)}
    calls = []
    tuner = timed(calls.append, delta, start=start)
    logs = epochs(tuner, losses, seconds.get)
    used, last = expected(losses, seconds.get, delta, LADDER, LADDER.index(start))
    assert [entry["threshold"] for entry in logs] == used
    assert tuner.threshold == last
    # Called at the beginning and at every change, not otherwise.
    changes = [b for a, b in zip(used, [*used[1:], last], strict=True) if a != b]
    assert calls == [start, *changes]
    assert set(calls) <= set(LADDER)
    steps = np.abs(np.diff([LADDER.index(value) for value in [*used, last]]))
    assert steps.max() <= 1
    for row, entry in zip(tuner.decisions, logs, strict=True):
        assert row["before"] == entry["threshold"] and row["loss"] == entry["loss"]
        assert row["seconds"] == seconds[row["before"]]


def test_running_loss_and_rate():
    tuner = timed(delta=50)
    epochs(tuner, [2.0, 1.0, 1.5], 4.0)
    rows = tuner.decisions
    assert [row["running_loss"] for row in rows] == pytest.approx([2, 1.9, 1.86])
    # A falling loss has a positive rate.
    assert rows[0]["rate"] is None
    assert [row["rate"] for row in rows[1:]] == pytest.approx([0.025, 0.01])


def test_a_loss_that_falls_faster_and_faster_goes_up():
    losses = [100 - epoch**2 / 100 for epoch in range(40)]
    tuner = timed(delta=4)
    epochs(tuner, losses, 1.0)
    assert tuner.threshold == math.inf
    assert tuner.decisions[-1]["reason"] == "as fast or faster, end of the ladder"
    # After epoch delta + 1 at the earliest: epoch 0 has no rate.
    first = next(row for row in tuner.decisions if row["before"] != row["after"])
    assert first["epoch"] == 5 and first["after"] == 1.5


def test_a_loss_that_falls_slower_goes_down():
    tuner = timed(delta=4, start=5.0)
    epochs(tuner, [math.exp(-epoch / 2) for epoch in range(40)], 1.0)
    assert tuner.threshold == 0
    assert tuner.decisions[-1]["reason"] == "slower, end of the ladder"


def test_compilation_is_not_compared():
    """The first epoch at a threshold may take any time."""
    losses = [100 - epoch**2 / 100 for epoch in range(40)]
    histories = []
    for compile_seconds in (0.0, 1e6):
        tuner = timed(delta=4)
        seen = set()

        def seconds(value, seen=seen, extra=compile_seconds):
            new = value not in seen
            seen.add(value)
            return 1.0 + extra * new

        logs = epochs(tuner, losses, seconds)
        histories.append([entry["threshold"] for entry in logs])
        assert len(seen) <= len(LADDER)
    assert histories[0] == histories[1]
    # Each threshold is measured before it is left.
    values, counts = np.unique(histories[0], return_counts=True)
    assert counts.min() >= 2 and len(values) == 6


def test_validation_takes_no_time():
    tuner = timed()
    clock = tuner._clock
    tuner.on_train_begin()
    tuner.on_epoch_begin(0)
    clock.now += 3
    tuner.on_test_begin()
    clock.now += 50
    tuner.on_test_end()
    clock.now += 1
    tuner.on_epoch_end(0, {"loss": 1.0})
    assert tuner.decisions[0]["seconds"] == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_goes_down(bad):
    tuner = timed(start=5.0, delta=2)
    epochs(tuner, [bad, 1.0, bad, 0.9], 1.0)
    assert [row["after"] for row in tuner.decisions[:3]] == [1.5, 1.5, 1.0]
    assert [row["running_loss"] for row in tuner.decisions] == [
        None,
        1.0,
        1.0,
        pytest.approx(0.99),
    ]


def test_goes_on_from_a_state():
    losses = [100 - epoch**2 / 100 for epoch in range(30)]
    whole = timed(delta=4)
    epochs(whole, losses, 2.0)
    first = timed(delta=4)
    epochs(first, losses[:12], 2.0)
    state = json.loads(json.dumps(first.get_state()))
    calls = []
    second = timed(calls.append, delta=4)
    second.set_state(state)
    epochs(second, losses[12:], 2.0, first=12)
    assert calls[0] == first.threshold
    assert [row["epoch"] for row in second.decisions] == list(range(30))
    # The program is compiled again: that epoch has no rate. The rest is the same.
    assert second.decisions[12]["rate"] is None
    for a, b in zip(whole.decisions, second.decisions, strict=True):
        assert a["running_loss"] == pytest.approx(b["running_loss"])
    # The same in one process: a further fit goes on.
    epochs(first, losses[12:], 2.0, first=12)
    assert first.decisions == second.decisions
    with pytest.raises(ValueError, match="not in"):
        second.set_state({"threshold": 2.0, "decisions": []})


def test_in_fit():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    thresholds = []
    tuner = ElasticTuner(thresholds.append, delta=2, ladder=(0, 1, 2))
    x = np.random.default_rng(0).random((8, 2))
    history = model.fit(
        x, x[:, 0], validation_data=(x, x[:, 0]), epochs=8, verbose=0, callbacks=[tuner]
    )
    assert len(history.history["threshold"]) == 8 == len(tuner.decisions)
    assert history.history["threshold"] == [r["before"] for r in tuner.decisions]
    assert all(row["seconds"] > 0 for row in tuner.decisions)
    assert thresholds[0] == 1.0 and set(thresholds) <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"set_threshold": 3}, "`set_threshold` to be a function"),
        ({"delta": 0}, "`delta` to be at least 1"),
        ({"ladder": (1, 0)}, "`ladder` to be ascending"),
        ({"ladder": (0, 1, 1)}, "`ladder` to be ascending"),
        ({"start": 2.0}, "to contain start=2.0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ElasticTuner(**{"set_threshold": lambda value: None, **options})
