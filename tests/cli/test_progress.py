"""Commands that take long say so where there is no terminal."""

import re
import time
from contextlib import nullcontext

import pytest

from keras_bandgnn import progress
from keras_bandgnn.cli import main as command_line
from keras_bandgnn.cli.main import _COMMANDS, main

TIME = r"[\d.]+ (s|min|h)"
LINE = re.compile(
    r"(epoch \d+/2, step \d+/\d+: loss [\d.e+-]+"
    rf"(, [\d,.e+]+ graphs/s, {TIME} left of the epoch, {TIME} of all)?"
    r"|evaluation, step \d+(/\d+)?: loss [\d.e+-]+"
    rf"(, [\d,.e+]+ graphs/s, {TIME} left)?"
    rf"|prediction, step \d+/\d+(, [\d,.e+]+ graphs/s, {TIME} left)?)"
)


@pytest.fixture
def store(tmp_path):
    """Stores of molecules that are none."""
    import numpy as np

    import keras_bandgnn as kb

    graphs = []
    for size in (3, 4, 5) * 40:
        position = np.random.default_rng(size).normal(size=(size, 3))
        node = {"atomic_number": np.full(size, 6), "position": position}
        graphs.append(kb.Graph(size, [], [], node=node, label=float(size)))
    for split in ("train", "valid", "test"):
        kb.data.write_store(tmp_path / split, graphs)
    return tmp_path


def test_long_commands_print_a_line_now_and_then(store, monkeypatch, capsys):
    # Each step prints a line; what says nothing itself is not asked.
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(command_line, "heartbeat", lambda _: nullcontext())
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
        lines = [line for line in lines if not line.startswith("Finding neighbours: ")]
        assert {line.split()[0] for line in lines} == kinds, command
        assert all(LINE.fullmatch(line) for line in lines), lines
        if command == train:
            assert any("graphs/s" in line for line in lines)


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_says_that_it_runs(name, monkeypatch, capsys):
    class Parsed:
        command, debug, backend = name, False, None

        @staticmethod
        def run(options):
            time.sleep(0.3)

    class Parser:
        def parse_args(self, arguments):
            return Parsed

    monkeypatch.setattr(progress, "EVERY", 0.05)
    monkeypatch.setattr(command_line, "_parser", lambda arguments: Parser())
    monkeypatch.setattr(command_line, "_after_interruption", lambda parsed: "")
    monkeypatch.setattr(command_line, "choose_backend", lambda backend: None)
    assert main([name]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert set(lines) == (set() if name == "lsp" else {f"{name}: running for 0 s"})
