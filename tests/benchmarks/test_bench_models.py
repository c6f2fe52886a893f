import json

import keras
import pytest

from examples.benchmarks import models
from examples.benchmarks.__main__ import main

pytestmark = [
    # torch_geometric deprecates parts of torch as it loads.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


@pytest.mark.release
def test_bench_models_compares_steps_and_epochs(tmp_path):
    pytest.importorskip("torch_geometric")
    figures = tmp_path / "figures.json"
    line = ["models", "--models", "mpeu", "gt", "--nodes", "60", "--edges", "200"]
    line += ["--graphs", "8", "--batch-size", "4", "--hidden", "8", "--heads", "2"]
    line += ["--layers", "1", "--rounds", "2", "--warmup", "1", "--epochs", "1"]
    assert main([*line, "--allocator", "default", "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    assert "gt, whole, step" in {row["name"] for row in found["rows"]}
    found = found["figures"]
    assert set(found) == {
        f"{m} {s}" for m in ("mpeu", "gt") for s in ("whole", "small")
    }
    for each in found.values():
        assert {"ours step", "peer step", "ours epoch", "bare epoch"} <= set(each)


def test_bench_models_measures_steps_that_torch_compiles(tmp_path, monkeypatch, capsys):
    figures = tmp_path / "figures.json"
    # Torch compiles even small models for half a minute.
    monkeypatch.setattr(models, "compiled_step", lambda *_: (lambda: None, 30.0))
    line = ["models", "--models", "gcn", "--sizes", "small", "--graphs", "8"]
    line += ["--batch-size", "4", "--hidden", "8", "--layers", "1", "--rounds", "1"]
    line += ["--warmup", "1", "--epochs", "0", "--compiled", "--allocator", "default"]
    torch = keras.backend.backend() == "torch"
    assert main([*line, "--json", str(figures)]) == (0 if torch else 1)
    if torch:
        found = json.loads(figures.read_text())["figures"]["gcn small"]
        assert {"ours step", "compiled step", "compilation, s"} <= set(found)
    else:
        assert "Expected --backend torch with --compiled" in capsys.readouterr().err
