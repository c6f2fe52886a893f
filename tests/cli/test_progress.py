"""Commands that take long say so where there is no terminal."""

import re

import pytest

from keras_bandgnn.cli import training_callbacks
from keras_bandgnn.cli.main import main

LINE = re.compile(
    r"(epoch \d+/2, step \d+/\d+: loss [\d.e+-]+"
    r"(, [\d,.]+ graphs/s, [\d.]+ (s|min|h) left)?"
    r"|evaluation, step \d+: loss [\d.e+-]+"
    r"|prediction, step \d+/\d+(, [\d,.]+ graphs/s, [\d.]+ (s|min|h) left)?)"
)


@pytest.fixture
def store(tmp_path):
    """Stores of molecules that are none."""
    import numpy as np

    import keras_bandgnn as kb

    graphs = []
    for size in (3, 4, 5) * 4:
        position = np.random.default_rng(size).normal(size=(size, 3))
        node = {"atomic_number": np.full(size, 6), "position": position}
        graphs.append(kb.Graph(size, [], [], node=node, label=float(size)))
    for split in ("train", "valid", "test"):
        kb.data.write_store(tmp_path / split, graphs)
    return tmp_path


def test_long_commands_print_a_line_now_and_then(store, monkeypatch, capsys):
    monkeypatch.setattr(training_callbacks, "EVERY", 0.0)
    out = store / "model"
    train = ["train", str(store), "--task", "regression", "--out", str(out)]
    train += ["--hidden", "4", "--layers", "1", "--epochs", "2", "--batch-size", "4"]
    for command, kinds in (
        (train, {"epoch", "evaluation,"}),
        (["evaluate", str(out), str(store / "test")], {"evaluation,"}),
        (["predict", str(out), str(store / "test")], {"prediction,"}),
    ):
        assert main(command) == 0
        lines = capsys.readouterr().err.splitlines()
        assert {line.split()[0] for line in lines} == kinds, command
        assert all(LINE.fullmatch(line) for line in lines), lines
        if command == train:
            assert any("graphs/s" in line for line in lines)
