import json
import re

import pytest

from examples.benchmarks.__main__ import main
from keras_bandgnn.cli import report


# torch_geometric deprecates parts of torch as it loads.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_bench_explain_says_how_far_it_is(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch_geometric")
    progress = report.progress
    monkeypatch.setattr(report, "progress", lambda title: progress(title, every=0.0))
    figures = tmp_path / "figures.json"
    line = ["explain", "--graphs", "1", "2", "--nodes", "6", "--hidden", "4"]
    line += ["--layers", "1", "--steps", "2", "--rounds", "1", "--json", str(figures)]
    assert main(line) == 0
    found = json.loads(figures.read_text())["figures"]
    assert set(found) == {"gnn_explainer 1", "gnn_explainer 2"} | {
        "saliency 1",
        "saliency 2",
    }
    assert all(len(each["all"]["ours"]) == 1 for each in found.values())
    output = capsys.readouterr()
    assert "times faster" in output.out
    assert len(re.findall(r"explanations:? .*24", output.err)) == 24
