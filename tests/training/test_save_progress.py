import json
import os
import signal
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import (
    DynamicBatcher,
    GraphPreprocessor,
    StaticBatcher,
)
from keras_bandgnn.training import SaveProgress

pytestmark = pytest.mark.every_backend(
    "middle_of_an_epoch", "every_backend", "shapes_that_vary", "state_of_the_optimizer"
)


class Stop(keras.callbacks.Callback):
    """Fails in the middle of an epoch, as a crash would."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.place = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            raise InterruptedError


def graphs(count=40):
    rng = np.random.default_rng(0)
    out = []
    for _ in range(count):
        n = int(rng.integers(3, 9))
        kind = rng.integers(0, 3, n)
        out.append(
            kb.Graph(
                n,
                np.arange(n - 1),
                np.arange(1, n),
                node={"type": kind},
                candidates=[0, 1],
                label=int(kind[0] > kind[1]),
            )
        )
    return out


def task(batcher):
    keras.utils.set_random_seed(0)
    backbone = kb.models.GGNNBackbone(
        {"type": 3}, hidden_dim=8, num_steps=2, num_edge_types=1, dropout=0.2
    )
    made = kb.models.NodeSelector(backbone, GraphPreprocessor([], batcher))
    made.compile(keras.optimizers.Adam(0.01))
    return made


def weights(model):
    return [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]


@pytest.mark.parametrize("kind", ["dynamic", "64"])
@pytest.mark.parametrize("place", [(1, 3), (1, 0)])
@pytest.mark.release(elsewhere=True)
def test_goes_on_in_the_middle_of_an_epoch(tmp_path, kind, place):
    def batcher():
        if kind == "64":
            return StaticBatcher(3, "64")
        return DynamicBatcher(3, packing="sequential")

    whole = task(batcher())
    history = whole.fit(graphs(), epochs=3, verbose=0, seed=5)
    model = task(batcher())
    saving = SaveProgress(tmp_path / "progress", save_freq=2)
    with pytest.raises(InterruptedError):
        model.fit(
            graphs(), epochs=3, verbose=0, seed=5, callbacks=[saving, Stop(*place)]
        )
    saved = saving.saved()
    assert (saved["loader"]["epoch"], saved["loader"]["batch"]) in ((1, 4), (1, 0))
    assert len(list((tmp_path / "progress").iterdir())) == 2
    resumed = task(batcher())
    again = SaveProgress(tmp_path / "progress", save_freq=2)
    after = resumed.fit(graphs(), epochs=3, verbose=0, seed=5, callbacks=[again])
    assert after.epoch == [1, 2] and len(after.history["loss"]) == 2
    assert after.history["loss"][-1] == pytest.approx(history.history["loss"][-1], 1e-4)
    for a, b in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    # Nothing is left once training has ended.
    assert not (tmp_path / "progress").exists()


class StopInValidation(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        raise InterruptedError


def test_a_stop_during_validation(tmp_path):
    whole = task(DynamicBatcher(3))
    history = whole.fit(graphs(), validation_data=graphs(9), epochs=2, verbose=0)
    saving = SaveProgress(tmp_path / "p", 1)
    with pytest.raises(InterruptedError):
        task(DynamicBatcher(3)).fit(
            graphs(),
            validation_data=graphs(9),
            epochs=2,
            verbose=0,
            callbacks=[saving, StopInValidation()],
        )
    model = task(DynamicBatcher(3))
    again = model.fit(
        graphs(),
        validation_data=graphs(9),
        epochs=2,
        verbose=0,
        callbacks=[SaveProgress(tmp_path / "p", 1)],
    )
    assert again.epoch == [0, 1]
    for a, b in zip(
        history.history["val_loss"], again.history["val_loss"], strict=True
    ):
        assert a == pytest.approx(b, abs=1e-5)
    # The loader is whole again.
    assert len(model.predict(graphs())) == 40


def test_graphs_above_the_budget_on_every_backend(tmp_path):
    data = (
        graphs()
        + [
            kb.Graph(
                40,
                range(39),
                range(1, 40),
                node={"type": [1] * 40},
                candidates=[0, 1],
                label=0,
            )
        ]
        * 3
    )
    saving = SaveProgress(tmp_path / "p", 2)
    made = [task(DynamicBatcher(budget={"node": 30})) for _ in range(2)]
    with pytest.raises(InterruptedError):
        made[0].fit(data, epochs=2, verbose=0, callbacks=[saving, Stop(0, 4)])
    again = SaveProgress(tmp_path / "p", 2)
    history = made[1].fit(data, epochs=2, verbose=0, callbacks=[again])
    assert np.isfinite(history.history["loss"]).all()


def test_damaged_files(tmp_path):
    (tmp_path / "progress.json").write_text("{")
    with pytest.raises(ValueError, match="Delete the folder"):
        SaveProgress(tmp_path).saved()
    (tmp_path / "progress.json").write_text(
        '{"weights": "a", "loader": {}, "seeds": []}'
    )
    with pytest.raises(ValueError, match="Delete the folder"):
        SaveProgress(tmp_path).saved()


def test_other_graphs_are_refused(tmp_path):
    model = task(DynamicBatcher(3))
    saving = SaveProgress(tmp_path, save_freq=1)
    with pytest.raises(InterruptedError):
        model.fit(graphs(), verbose=0, callbacks=[saving, Stop(0, 1)])
    with pytest.raises(ValueError, match="training began with"):
        task(DynamicBatcher(3)).fit(
            graphs(41), verbose=0, callbacks=[SaveProgress(tmp_path)]
        )


def test_an_unfinished_save_changes_nothing(tmp_path, monkeypatch):
    model = task(DynamicBatcher(3))
    saving = SaveProgress(tmp_path, save_freq=1)
    with pytest.raises(InterruptedError):
        model.fit(graphs(), verbose=0, callbacks=[saving, Stop(0, 1)])
    before = json.dumps(saving.saved())

    def fail(path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(model, "save_weights", fail)
    with pytest.raises(OSError, match="disk full"):
        saving.save(0, 7)
    assert json.dumps(saving.saved()) == before
    task(DynamicBatcher(3)).fit(graphs(), verbose=0, callbacks=[SaveProgress(tmp_path)])


def test_bad_arguments():
    with pytest.raises(ValueError, match="`save_freq` to be at least 1"):
        SaveProgress("x", save_freq=0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Make the model a"):
        model.fit(np.ones((4, 1)), np.ones(4), callbacks=[SaveProgress("x")], verbose=0)


@pytest.mark.release(elsewhere=True)
def test_shapes_that_vary_train_evaluate_and_predict():
    model = task(StaticBatcher(3, "power_of_two"))
    data = graphs(60)
    rng = np.random.default_rng(1)
    for n in (40, 90, 200):
        data.append(
            kb.Graph(
                n,
                rng.integers(0, n, 3 * n),
                rng.integers(0, n, 3 * n),
                node={"type": rng.integers(0, 3, n)},
                candidates=[0, 1],
                label=0,
            )
        )
    history = model.fit(data, epochs=2, validation_data=data, verbose=0)
    assert np.isfinite(history.history["val_loss"]).all()
    scores = model.evaluate(data, verbose=0, return_dict=True)
    predicted = model.predict(data)
    right = np.mean(
        [p.argmax() == g.label for p, g in zip(predicted, data, strict=True)]
    )
    assert scores["accuracy"] == pytest.approx(right, abs=1e-6)
    # The same as with one shape for all.
    model.preprocessor.batcher = DynamicBatcher(7)
    for a, b in zip(predicted, model.predict(data), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def interruption(folder, **options):
    """Progress saved after two batches of epoch 0."""
    model = task(DynamicBatcher(3))
    saving = SaveProgress(folder, save_freq=2)
    with pytest.raises(InterruptedError):
        model.fit(graphs(), verbose=0, callbacks=[saving, Stop(0, 2)], **options)
    return saving


def test_progress_without_the_state_of_the_optimizer_is_refused(tmp_path):
    saved = interruption(tmp_path).saved()
    model = task(DynamicBatcher(3))
    model.compile(keras.optimizers.SGD(0.01))
    before = weights(model)
    with pytest.raises(ValueError, match="state of the optimizer SGD.*start again"):
        model.fit(graphs(), verbose=0, callbacks=[SaveProgress(tmp_path)])
    with h5py.File(tmp_path / saved["weights"], "a") as file:
        del file["optimizer"]
    with pytest.raises(ValueError, match="the optimizer Adam.*Received: 0"):
        task(DynamicBatcher(3)).fit(
            graphs(), verbose=0, callbacks=[SaveProgress(tmp_path)]
        )
    # Nothing was loaded.
    for one, other in zip(before, weights(model), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_resumed_epoch_has_its_header(tmp_path, capsys, verbose):
    interruption(tmp_path, epochs=3)
    capsys.readouterr()
    task(DynamicBatcher(3)).fit(
        graphs(), epochs=3, verbose=verbose, callbacks=[SaveProgress(tmp_path)]
    )
    lines = capsys.readouterr().out.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith("Resuming"))
    assert lines[first].startswith("Resuming epoch 1/3 after batch 2/")
    headers = [line for line in lines if line.startswith("Epoch ")]
    assert headers == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]


SCRIPT = """
import os, signal, sys
import keras
sys.path.insert(0, {tests!r})
from test_save_progress import *

class Press(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == {batch}:
            os.kill(os.getpid(), signal.SIGINT)

# Processes in the background of a shell ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
saving = SaveProgress({folder!r}, save_freq=2)
before = signal.getsignal(signal.SIGINT), sys.excepthook
try:
    task(DynamicBatcher(3)).fit(
        graphs(), epochs=2, verbose=0, callbacks=[saving, Press()]
    )
finally:
    assert before == (signal.getsignal(signal.SIGINT), sys.excepthook)
    assert saving._lock is None
"""


@pytest.mark.parametrize("batch", [pytest.param(0, marks=pytest.mark.release), 2])
def test_a_script_ends_with_one_line_and_resumes(tmp_path, batch):
    folder = str(tmp_path / "progress")
    tests = os.path.dirname(__file__)
    script = SCRIPT.format(tests=tests, folder=folder, batch=batch)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    place = "the same fit resumes in epoch 1 after batch 2"
    if batch == 0:
        place = "nothing is saved yet, the same fit starts again"
    # TensorFlow, which Keras imports for a seed, may write lines before it.
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"interrupted: {place} ({folder})"
    history = task(DynamicBatcher(3)).fit(
        graphs(), epochs=2, verbose=0, callbacks=[SaveProgress(folder)]
    )
    assert history.epoch == [0, 1]


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_interruptions_are_keyboard_interrupts(tmp_path, monkeypatch, capsys):
    def fit(*callbacks):
        model = task(DynamicBatcher(3))
        with pytest.raises(KeyboardInterrupt) as error:
            model.fit(graphs(), verbose=0, callbacks=[*callbacks, Interrupt()])
        return error.type

    # Without saved progress there is nothing to say.
    assert fit() is KeyboardInterrupt and not capsys.readouterr().err
    assert issubclass(fit(SaveProgress(tmp_path)), SystemExit)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert fit(SaveProgress(tmp_path)) is KeyboardInterrupt
    assert "starts again" in capsys.readouterr().err
