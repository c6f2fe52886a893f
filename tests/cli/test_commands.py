import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from examples.benchmarks.__main__ import main as benchmark
from keras_bandgnn.cli.main import main
from keras_bandgnn.data import open_store
from keras_bandgnn.programs import read_varmisuse, write_varmisuse
from keras_bandgnn.programs.program_files import find_programs
from keras_bandgnn.programs.python_source import program_graphs

pytestmark = pytest.mark.every_backend("test_compile_train_evaluate_predict")

# Each function reads its variables in a fixed manner that a small model can learn.
FUNCTION = """
def {name}(alpha, beta):
    total = alpha + beta
    for item in range(total):
        total = total * item
    return total
"""
TRAIN = ["--hidden", "8", "--epochs", "2", "--batch-nodes", "512"]


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "src"
    for index in range(24):
        package = folder / f"p{index % 3}"
        package.mkdir(parents=True, exist_ok=True)
        text = "".join(FUNCTION.format(name=f"f{k}") for k in range(3))
        (package / f"m{index}.py").write_text(text)
    (folder / "broken.py").write_text("def f(:\n")
    return folder


def test_supergraphs_are_larger_where_an_epoch_has_many_steps(monkeypatch):
    from keras_bandgnn import Graph, config
    from keras_bandgnn.cli import train
    from keras_bandgnn.data import FlatGraphs

    graphs = FlatGraphs.from_graphs([Graph(1000, [0], [1])])
    monkeypatch.setattr(config, "total_memory", lambda: 24e9)
    monkeypatch.setattr(train, "_MANY_STEPS", 2)
    for count, nodes in (
        (32, 8192),
        (33, 16384),
        (65, 16384),
        (66, 32768),
        (98, 32768),
        (99, 49152),
        (990, 49152),
    ):
        assert train.batch_nodes(graphs.take([0] * count)) == nodes
    monkeypatch.setattr(config, "total_memory", lambda: 8.5e9)
    assert train.batch_nodes(graphs.take([0] * 990)) == 32768


@pytest.mark.release(elsewhere=True)
def test_compile_train_evaluate_predict(source, tmp_path, capsys):
    data, model = tmp_path / "data", tmp_path / "model"
    steps = ["--steps", "3", "--processes", "1"]
    assert main(["compile", str(source), "--out", str(data), *steps]) == 0
    out = capsys.readouterr().out
    assert "left out: broken.py: SyntaxError" in out
    sizes = {s: len(open_store(data / s)) for s in ("train", "valid", "test")}
    assert min(sizes.values()) > 0
    # Graphs above the budget have supergraphs of their own.
    small = [*TRAIN[:-1], "40", "--minutes", "0.01", "--precision", "mixed_bfloat16"]
    assert main(["train", str(data), "--out", str(tmp_path / "small"), *small]) == 0
    out = capsys.readouterr().out
    found = re.search(r"batch(?:es)? of [\d to]+ nodes, (\d+) % filled", out)
    assert found and 0 < int(found[1]) <= 100, out
    assert re.search(r"\d+ graphs above the budget", out)
    shutil.rmtree(tmp_path / "small")
    assert main(["train", str(data), "--out", str(model), *TRAIN]) == 0
    out = capsys.readouterr().out
    assert "H = 8, T = 3, P = 22" in out and f"{sizes['train']} train" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "model", "src"]
    # What is finished is kept: compiling again does nothing, training asks first.
    assert main(["compile", str(source), "--out", str(data), *steps]) == 0
    assert main(["compile", str(source), "--out", str(data), "--steps", "2"]) == 1
    assert main(["train", str(data), "--out", str(model), *TRAIN]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["train", str(data), "--out", str(source), *TRAIN]) == 1
    assert "Choose another folder" in capsys.readouterr().err
    assert main(["evaluate", str(model), str(data / "test")]) == 0
    out = capsys.readouterr().out
    assert "nearest previous use" in out and "95 % interval" in out
    command = ["evaluate", str(model), str(data / "test"), "--split", "test"]
    assert main(command) == 2
    assert "graphs of a store are compiled" in capsys.readouterr().err
    command[3:] = ["--exclude", "tests"]
    assert main(command) == 2
    assert "--exclude (for program files)" in capsys.readouterr().err
    command = ["predict", str(model), str(data / "test"), "--option", "a=b"]
    assert main(command) == 2
    assert "Received: --option (for regression models)" in capsys.readouterr().err
    found = tmp_path / "found.jsonl"
    one = next((source / "p0").iterdir())
    command = ["predict", str(model), str(one), "--json", str(found), "--top", "3"]
    code, lines = main([*command, "--processes", "1"]), found.read_text().splitlines()
    assert code == (1 if lines else 0)
    for line in lines:
        item = json.loads(line)
        assert item["filename"] == str(one) and item["used"] != item["suggested"]
        assert item["share_used"] < item["share_suggested"]


def test_inspect_and_bench_of_original_files(source, tmp_path, capsys):
    folder = tmp_path / "graphs-train"
    folder.mkdir()
    programs = [
        program
        for file in sorted((source / "p0").iterdir())
        for program in program_graphs(file.read_bytes(), file.name)
    ]
    write_varmisuse(folder / "a.jsonl.gz", programs)
    assert main(["inspect", str(tmp_path), "--split", "train"]) == 0
    out = capsys.readouterr().out
    assert f"graphs: {len(programs)}" in out and "bandwidth below" in out
    pytest.importorskip("matplotlib")
    figure = tmp_path / "figure.png"
    assert main(["inspect", str(folder), "--figure", str(figure)]) == 0
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert benchmark(["host", str(folder), "--runs", "1"]) == 0
    assert "of SciPy's order" in capsys.readouterr().out
    data = tmp_path / "data"
    assert main(["compile", str(tmp_path), "--out", str(data), "--steps", "2"]) == 0
    assert len(open_store(data / "train")) == len(list(read_varmisuse(folder)))
    assert main(["inspect", str(data / "train")]) == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["compile", "nowhere", "--out", "o"], "file or folder at nowhere"),
        (["compile", "empty", "--out", "o"], "Expected Python files"),
        (["train", "empty", "--out", "o"], "bandgnn compile INPUT"),
        (["evaluate", "no-preset", "empty"], "a folder with config.json"),
        (["inspect", "empty"], "Expected Python files"),
        (["predict", "no-preset", "empty"], "one of the presets"),
        (["predict", "no-preset", "empty", "--json", "no/file"], "folder that exists"),
        (["predict", "no-preset", "empty", "--json", "empty"], "must be a file"),
    ],
)
def test_errors_say_what_to_do(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    try:
        code = main(command)
    except SystemExit as stop:  # what the parser refuses
        code = stop.code
    # 1 says that `predict` has found something.
    assert code == (2 if command[0] == "predict" else 1)
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_source_beside_json_is_source(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "graphs-utils").mkdir()
    (tmp_path / "graphs-utils" / "b.py").write_text("x = 1\n")
    kind, found = find_programs(tmp_path, by="none")
    assert kind == "python"
    assert [name for _, name in found["all"]] == ["a.py", "graphs-utils/b.py"]
    kind, found = find_programs(tmp_path / "settings.json")
    assert kind == "varmisuse" and list(found) == ["all"]


def test_three_files_are_enough_for_three_splits(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    _, found = find_programs(tmp_path)
    assert {split: len(files) for split, files in found.items()} == {
        "train": 1,
        "valid": 1,
        "test": 1,
    }


def test_help_and_usage(capsys):
    for command in ("demo", "compile", "train", "evaluate", "predict", "inspect"):
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert caught.value.code == 0
        assert "--backend" in capsys.readouterr().out
    for wrong in ([], ["fly"], ["train", "x"], ["demo", "--epochs", "0"]):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2
        capsys.readouterr()


# A test run in the background passes SIGINT on as ignored.
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from keras_bandgnn.cli.main import command
command()
"""


def run_until(command, marker, environment):
    """Starts a command, interrupts it at `marker`; returns its exit code and output."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", START, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    seen = []
    for line in process.stdout:
        seen.append(line)
        if marker in line:
            process.send_signal(signal.SIGINT)
            break
    rest, _ = process.communicate(timeout=120)
    return process.returncode, "".join(seen) + rest


@pytest.mark.release
def test_interrupted_training_goes_on(source, tmp_path, capsys):
    data, model = tmp_path / "data", tmp_path / "model"
    main(["compile", str(source), "--out", str(data), "--steps", "2"])
    command = ["train", str(data), "--out", str(model), "--hidden", "8"]
    command += ["--epochs", "6", "--batch-nodes", "2048"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code, out = run_until(command, "Epoch 3/6", environment)
    assert code == 130 and "interrupted" in out, out
    assert main([*command, "--dropout", "0.2", "--epochs", "7"]) == 1
    said = capsys.readouterr().err
    assert "--dropout is 0.2, was 0.1; --epochs is 7, was 6. Pass --restart" in said
    assert not model.exists() and (tmp_path / "model.partial").is_dir()
    capsys.readouterr()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "Epoch 1/6" not in out and "Epoch 6/6" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "model", "src"]
    # The same as training without a break.
    other = tmp_path / "other"
    command[3] = str(other)
    assert main(command) == 0
    from keras_bandgnn.models import NodeSelector

    one, two = (NodeSelector.from_preset(p) for p in (model, other))
    graphs = open_store(data / "test")
    for a, b in zip(one.predict(graphs), two.predict(graphs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.release
def test_random_labels_score_at_random(source, tmp_path, capsys):
    command = ["demo", "--source", str(source), "--out", str(tmp_path / "demo")]
    command += ["--steps", "2", *TRAIN, "--processes", "1", "--exclude", "none"]
    assert main([*command, "--shuffle-labels"]) == 0
    capsys.readouterr()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "most suspicious of" in out and "most frequent in the function" in out
    assert (tmp_path / "demo" / "model" / "config.json").is_file()
