"""`fit` says how far it is where there is no terminal."""

import re

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn import progress
from keras_bandgnn.training.progress_callbacks import ProgressLines

GRAPHS = [
    kb.Graph(3, [0, 1], [1, 2], node={"kind": [1, 2, 3]}, label=i % 2)
    for i in range(24)
]
EPOCH = r"epoch 2/3, step {}/6: loss [\d.e+-]+"


def task_of():
    keras.utils.set_random_seed(0)
    return kb.models.GraphClassifier(
        kb.models.GCNBackbone({"kind": 4}, 8, num_layers=1),
        2,
        kb.preprocessing.GraphPreprocessor([], kb.preprocessing.StaticBatcher(4)),
    )


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)


@pytest.mark.parametrize("options", ({}, {"verbose": "auto"}, {"verbose": 2}))
def test_lines_within_an_epoch(always, capsys, options):
    task_of().fit(GRAPHS, epochs=3, validation_data=GRAPHS[:8], **options)
    out, err = capsys.readouterr()
    # A line per epoch, as with verbose=2, and no states of a bar.
    assert "\b" not in out and out.count("val_loss") == 3
    # Keras calls `on_train_batch_end` in threads: lines this close may change places.
    lines = sorted(line for line in err.splitlines() if line.startswith("epoch 2/3"))
    assert len(lines) == 6
    assert re.fullmatch(EPOCH.format(1), lines[0])
    times = r", [\d,.e+]+ graphs/s, [\d.]+ s left of the epoch, [\d.]+ s of all"
    assert re.fullmatch(EPOCH.format(4) + times, lines[3])
    validation = [line for line in err.splitlines() if line.startswith("evaluation")]
    assert len(validation) == 3 * 2
    assert all(re.fullmatch(r"evaluation, step \d+: loss .*", v) for v in validation)


def test_silence_and_bars_have_no_lines(always, capsys):
    task = task_of()
    task.fit(GRAPHS, verbose=0)
    task.evaluate(GRAPHS, verbose=0)
    task.predict(GRAPHS)
    assert capsys.readouterr() == ("", "")
    task.fit(GRAPHS, verbose=1)
    assert capsys.readouterr().err == ""


def test_evaluations_know_their_steps(always, capsys):
    task_of().evaluate(GRAPHS)
    lines = sorted(capsys.readouterr().err.splitlines())
    assert len(lines) == 6
    assert re.fullmatch(
        r"evaluation, step 3/6: loss [\d.e+-]+, [\d,.e+]+ graphs/s, \d+ s left",
        lines[2],
    )


@pytest.mark.every_backend
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="it runs single steps")
def test_several_steps_in_one_execution(always, capsys):
    task = task_of()
    task.compile(steps_per_execution=3)
    task.fit(GRAPHS, epochs=2)
    lines = capsys.readouterr().err.splitlines()
    steps = [re.match(r"epoch \d/2, step (\d)/6", line)[1] for line in lines]
    assert sorted(set(steps)) in (["1", "4"], ["3", "6"])


def test_a_line_within_thirty_seconds_with_the_time_left(monkeypatch, capsys):
    class Clock:
        moment = 0.0

        def __call__(self):
            return self.moment

    monkeypatch.setattr(progress, "now", clock := Clock())
    monkeypatch.setattr(progress, "_last_line", 0.0)
    lines = ProgressLines()
    lines.set_params({"steps": 100, "epochs": 4, "verbose": 2})
    loader = kb.preprocessing.GraphLoader(GRAPHS, kb.preprocessing.StaticBatcher(4))
    lines.follow(loader)
    lines.on_train_begin()
    read = []

    class Loss:
        def __float__(self):
            read.append(clock.moment)
            return 0.5

    for epoch in range(2):
        lines.on_epoch_begin(epoch)
        for step in range(100):
            # The first step compiles.
            clock.moment += 10 if step == 0 and epoch == 0 else 1
            lines.on_train_batch_end(step, {"loss": Loss()})
        # Validation, between two epochs.
        clock.moment += 20
    lines.on_train_end()
    text = capsys.readouterr().err.splitlines()
    assert text[0] == (
        "epoch 1/4, step 16/100: loss 0.5, 4 graphs/s, 84 s left of the epoch, "
        "6.4 min of all"
    )
    assert len(text) == len(read) == 8
    assert text[-1].startswith("epoch 2/4, step 76/100: loss 0.5, 4 graphs/s, 24 s ")
    assert text[-1].endswith(" of all")
    assert np.all(np.diff(read) >= 25) and np.all(np.diff(read) <= 30)


def test_steps_of_samples_are_counted(always, capsys):
    n = 40
    graph = kb.Graph(
        n,
        np.arange(n - 1),
        np.arange(1, n),
        node={"kind": np.arange(n) % 4},
        label=np.arange(n) % 2,
        label_level="node",
    )
    task = kb.models.NodeClassifier(kb.models.SAGEBackbone({"kind": 4}, 8), 2)
    sampler = kb.preprocessing.NeighborSampler([2] * 4, batch_size=10)
    task.fit(graph, sampler=sampler, epochs=1)
    assert " steps/s, " in capsys.readouterr().err


def test_a_callback_of_ones_own_is_not_doubled(always, capsys):
    task_of().fit(GRAPHS, verbose=2, callbacks=[ProgressLines()])
    assert len(capsys.readouterr().err.splitlines()) == 6
