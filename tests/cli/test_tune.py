import json

import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.cli.main import main

pytest.importorskip("keras_tuner")


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    layers = [kb.preprocessing.ReachabilityFilter(1), kb.preprocessing.RCMKCompile(64)]
    preprocessor = kb.preprocessing.GraphPreprocessor(layers)
    for split, count in (("train", 24), ("valid", 8)):
        graphs = []
        for _ in range(count):
            marked = int(rng.integers(2))
            node = {"type": [0, 0, 1 + marked, 2 - marked]}
            ends = ([2, 3, 0, 1], [0, 1, 1, 0])
            graphs.append(
                kb.Graph(4, *ends, node=node, candidates=[0, 1], label=marked)
            )
        compiled = preprocessor.transform(graphs)
        kb.data.write_store(tmp_path / "data" / split, compiled)
    return tmp_path / "data"


def test_searches_resumes_and_exports(data, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    command = ["tune", str(data), "--out", str(out), "--hidden", "4", "--epochs", "1"]
    command += ["--batch-size", "8", "--limit", "16", "--layers", "1"]
    assert main([*command, "--trials", "1"]) == 0
    said = capsys.readouterr().out
    assert "graphs: 16 train, 4 valid" in said
    assert "trial 0 completed: val_accuracy" in said and "best: trial 0" in said
    # More trials, and the best as a preset.
    assert main([*command, "--trials", "2", "--export", "best"]) == 0
    said = capsys.readouterr().out
    assert "resumed: 1 finished, 0 restarted" in said
    assert "trial 1 completed" in said and "trial 0 completed" not in said
    task = kb.models.NodeSelector.from_preset(out / "best")
    assert task.preprocessor.batcher.graphs == 8
    valid = kb.data.open_store(data / "valid")
    found = np.mean(
        [
            p.argmax() == g.label
            for p, g in zip(task.predict(list(valid)[:4]), valid, strict=False)
        ]
    )
    scores = [
        json.loads((out / "search" / f"trial_{k}" / "trial.json").read_text())["score"]
        for k in range(2)
    ]
    assert found == pytest.approx(max(scores))
    # Nothing is left to do, and the preset is replaced.
    assert main([*command, "--trials", "2", "--export", "best"]) == 0
    capsys.readouterr()
    assert main([*command, "--hidden", "8", "--seed", "3"]) == 1
    said = capsys.readouterr().err
    assert "Received: --hidden is 8, was 4; --seed is 3, was 0. Pass --over" in said
    # The same graphs and the same search by other paths.
    monkeypatch.chdir(data)
    command[1], command[3] = ".", "../out"
    assert main([*command, "--trials", "2"]) == 0
    assert "resumed: 2 finished" in capsys.readouterr().out
    again = ["--trials", "1", "--seed", "3", "--overwrite"]
    assert main([*command, *again]) == 0
    said = capsys.readouterr().out
    assert "resumed" not in said and "1 trials" in said


@pytest.mark.release
def test_workers(data, tmp_path, capfd):
    out = tmp_path / "out"
    command = ["tune", str(data), "--out", str(out), "--hidden", "4", "--epochs", "1"]
    command += ["--batch-size", "8", "--limit", "16", "--layers", "1"]
    assert main([*command, "--trials", "1"]) == 0
    assert main([*command, "--trials", "3", "--workers", "2"]) == 0
    said = capfd.readouterr().out
    assert "resumed: 1 finished, 0 restarted" in said and "3 trials" in said
    assert all(f"trial {k} completed" in said for k in range(3))
    # An error of a worker is that of the command.
    options = json.loads((out / "worker.json").read_text())
    assert options["overwrite"] is False and options["workers"] == 2


def test_a_worker_that_fails(data, tmp_path, capfd, monkeypatch):
    from keras_bandgnn.cli import tune_workers

    start = tune_workers._start

    def broken(folder, name, environment):
        if name != "chief":
            environment = {**environment, "KERAS_BACKEND": "none"}
        return start(folder, name, environment)

    monkeypatch.setattr(tune_workers, "_start", broken)
    command = ["tune", str(data), "--out", str(tmp_path / "out"), "--hidden", "4"]
    assert main([*command, "--trials", "1", "--workers", "2"]) == 1
    message = capfd.readouterr().err
    assert "worker0 exited with code 1" in message and "same command again" in message


def test_errors(data, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    out = ["--out", str(tmp_path / "out")]
    for given, message in (
        ([str(data), "--out", str(tmp_path / "full")], "a folder with other files"),
        ([str(data), *out, "--objective", "time-to-accuracy"], "`seconds`"),
        # What failed has not taken the folder.
        ([str(data), *out, "--model", "schnet"], "atomic_number"),
        (["no-such-data", *out], "no-such-data"),
        ([str(data), *out, "--path", "x"], "--path with the name of a data set"),
        (["demo", *out, "--path", "x"], "that demo reads. Received: --path"),
        ([str(data), *out, "--source", "x"], "--source (for demo)"),
        ([str(data), *out, "--graph", "knn:3"], "--graph (for --model schnet, mpeu"),
        ([str(data), *out, "--model", "gt", "--space", "adam"], "--space (for --mod"),
    ):
        assert main(["tune", *given]) == (2 if "--" in message else 1)
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_demo_of_another_source(tmp_path, capsys):
    line = "def f(a, b):\n    c = a + b\n    return a * c - b\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for k in range(6):
            (tmp_path / name / f"m{k}.py").write_text(line * (1 + (name == "two")))
    out = tmp_path / "out"
    command = ["tune", "demo", "--out", str(out), "--hidden", "4", "--epochs", "1"]
    command += ["--trials", "1", "--processes", "1"]
    one, two = (["--source", str(tmp_path / name)] for name in ("one", "two"))
    # Its graphs are there, its search is not.
    assert main([*command, *one, "--objective", "time-to-accuracy"]) == 1
    assert sorted(path.name for path in out.iterdir()) == ["data"]
    assert main([*command, *two]) == 1
    assert "another store. Pass --overwrite" in (capsys.readouterr().err)
    assert main([*command, *one]) == 0
    few = len(kb.data.open_store(out / "data" / "train"))
    assert main([*command, *two, "--overwrite"]) == 0
    assert len(kb.data.open_store(out / "data" / "train")) > few
