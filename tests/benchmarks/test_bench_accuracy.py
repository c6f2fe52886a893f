import argparse
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from examples.benchmarks.__main__ import main
from examples.benchmarks.protocols import MODELS, PROTOCOLS, settings_of
from examples.benchmarks.published import PUBLISHED
from keras_bandgnn.cli import resuming

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)


@pytest.fixture
def nodes(tmp_path):
    """A graph in the files of Platonov et al., with two splits."""
    count, splits = 40, 2
    part = np.stack([RNG.permutation(count) for _ in range(splits)]) % 4
    np.savez(
        tmp_path / "minesweeper.npz",
        node_features=RNG.normal(size=(count, 3)).astype("float32"),
        node_labels=np.arange(count) // 2 % 2,
        edges=RNG.integers(0, count, (80, 2)),
        train_masks=part < 2,
        val_masks=part == 2,
        test_masks=part == 3,
    )
    return tmp_path


@pytest.fixture
def molecules(tmp_path):
    """Molecules of several scaffolds, in the columns of ESOL."""
    pytest.importorskip("rdkit")
    lines = ["smiles,measured log solubility in mols per litre"]
    for size in range(3, 23):
        lines.append(f"OC1{'C' * (size - 2)}C1,{RNG.normal():.3f}")
    (tmp_path / "delaney-processed.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(capsys, *line):
    assert main(["accuracy", *line, "--allocator", "default"]) == 0
    return capsys.readouterr().out


def test_scores_of_nodes_are_kept(nodes, tmp_path, capsys):
    results = tmp_path / "results.json"
    line = ["minesweeper", "sage", "--path", str(nodes), "--results", str(results)]
    line += ["--setting", "epochs=2", "--setting", "num_layers=2", "--seeds"]
    assert "minesweeper, auc" in run(capsys, *line, "2")
    run(capsys, *line, "1")
    (record,) = json.loads(results.read_text())
    assert len(record["scores"]) == 1 and 0 <= record["mean"] <= 1
    assert record["settings"]["num_layers"] == 2 and record["parameters"] > 0


def test_scores_of_graphs_stand_beside_those_in_print(molecules, capsys):
    line = ["esol", "gine", "--path", str(molecules), "--seeds", "1"]
    out = run(capsys, *line, "--setting", "epochs=1", "--setting", "hidden_dim=8")
    assert "keras-bandgnn, gine" in out and "1 runs" in out


@pytest.mark.release
def test_interrupted_runs_go_on(nodes, tmp_path, capsys):
    results, preset = tmp_path / "results.json", tmp_path / "preset"
    line = ["minesweeper", "gcn", "--path", str(nodes), "--seeds", "2", "--name", "A"]
    line += ["--setting", "epochs=2", "--setting", "num_layers=2"]
    line += ["--results", str(results), "--preset", str(preset)]
    run(capsys, *line)
    (whole,) = json.loads(results.read_text())
    half = {**whole, "scores": whole["scores"][:1], "valid": whole["valid"][:1]}
    results.write_text(json.dumps([half]))
    out = run(capsys, *line)
    (record,) = json.loads(results.read_text())
    assert record["scores"] == whole["scores"] and "\n0: auc" not in out
    assert "2 runs" in (preset / "README.md").read_text()
    assert "2 runs" in run(capsys, *line) and "gcn" == record["model"]


@pytest.mark.release
def test_interrupted_trainings_go_on_after_their_last_epoch(
    molecules, tmp_path, capsys, monkeypatch
):
    line = ["esol", "gine", "--path", str(molecules), "--seeds", "1"]
    line += ["--setting", "epochs=3", "--setting", "hidden_dim=8", "--results"]
    run(capsys, *line, str(tmp_path / "whole.json"))
    results, after = tmp_path / "results.json", resuming.Limits.on_epoch_end

    def stop(callback, epoch, logs=None):
        after(callback, epoch, logs)
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(resuming.Limits, "on_epoch_end", stop)
        main(["accuracy", *line, str(results), "--allocator", "default", "--debug"])
    assert list(tmp_path.glob("results.json.partial/*/progress"))
    run(capsys, *line, str(results))
    whole, resumed = (
        json.loads((tmp_path / name).read_text())[0]
        for name in ("whole.json", "results.json")
    )
    assert whole["scores"] == resumed["scores"] and whole["valid"] == resumed["valid"]
    assert not list(tmp_path.glob("results.json.partial/*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--setting", "x=1"], "settings that .* has: rate, .*Received: x=1"),
        (["--setting", "epochs"], "Expected --setting NAME=VALUE. Received: .* epochs"),
        (["--setting", "epochs=abc"], "`epochs` to be an integer"),
        (["--setting", "rate=-1"], "`rate` to be positive"),
        (["--setting", "hidden_dim=much"], "`hidden_dim` to be an integer"),
        (["--setting", "norm=much"], "`norm` to be one of"),
        (["--setting", "monitor=much"], "`monitor` to be one of"),
        (["--preset", "{other}"], "Expected .* to be new, an empty folder or a preset"),
        (["--results", "{other}/a"], "to hold the scores of this command"),
    ],
)
@pytest.mark.parametrize("level", ["node", "graph"])
def test_what_is_wrong_is_said_before_data_is_read(
    options, message, level, tmp_path, capsys
):
    (tmp_path / "a").write_text("1")
    options = [option.format(other=tmp_path) for option in options]
    line = {"node": ["cora", "gcn"], "graph": ["zinc", "gine"]}[level]
    # Reading data would fail at its path.
    line += ["--path", str(tmp_path / "none"), "--allocator", "default", *options]
    assert main(["accuracy", *line]) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.release
def test_settings_of_every_protocol_are_read_by_the_run(name, model):
    options = argparse.Namespace(set=name, model=model, setting=["remat=True"])
    assert settings_of(options)["remat"] is True
    options.setting = ["jumping_knowledge=None", "rate=0.1"]
    assert settings_of(options)["jumping_knowledge"] is None


def test_the_page_is_made_from_the_records():
    page = runpy.run_path(str(ROOT / "docs" / "benchmarks.py"))["page"]()
    message = "records have changed: run `python docs/benchmarks.py` and commit"
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page, message


@pytest.mark.parametrize("name", PROTOCOLS)
def test_scores_in_print_have_a_source_and_the_units_of_the_metric(name):
    for model, score, source in PUBLISHED[name]:
        assert model and source
        assert re.fullmatch(r"\d+(\.\d+)?( ± \d+\.\d+)?", score), score
        assert (float(score.split()[0]) > 20) == PROTOCOLS[name].higher
