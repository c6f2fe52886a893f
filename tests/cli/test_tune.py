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
        compiled = preprocessor.compile(graphs)
        kb.data.write_store(tmp_path / "data" / split, compiled)
    return tmp_path / "data"


def test_searches_resumes_and_exports(data, tmp_path, capsys):
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
    assert "resumed: 1 done, 0 run again" in said
    assert "trial 1 completed" in said and "trial 0 completed" not in said
    task = kb.models.NodeSelector.from_preset(out / "best")
    assert task.preprocessor.batcher.budget["graph"] == 8
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
    assert main([*command, "--hidden", "8"]) == 1
    assert "--overwrite" in capsys.readouterr().err


def test_errors(data, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    out = ["--out", str(tmp_path / "out")]
    for given, message in (
        ([str(data), "--out", str(tmp_path / "full")], "another folder"),
        ([str(data), *out, "--objective", "time-to-accuracy"], "`seconds`"),
        ([str(data), *out, "--model", "schnet", "--overwrite"], "atomic_number"),
        (["no-such-data", *out, "--overwrite"], "no-such-data"),
    ):
        assert main(["tune", *given]) == 1
        assert message in capsys.readouterr().err
