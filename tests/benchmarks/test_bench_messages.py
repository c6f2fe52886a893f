import json

import numpy as np
import pytest

from examples.benchmarks.__main__ import main
from keras_bandgnn import Graph
from keras_bandgnn.data import write_store


# torch_geometric deprecates parts of torch as it loads.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_bench_messages_compares_layers(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    rng = np.random.default_rng(0)
    graphs = []
    for number in range(8):
        n, ends = 5 + number, rng.integers(0, 5, (2, 12))
        node = {"h": rng.normal(size=(n, 3)).astype("float32")}
        edge = {"e": rng.normal(size=(12, 2)).astype("float32")}
        graphs.append(Graph(n, *ends, node=node, edge=edge, label=float(number)))
    write_store(tmp_path / "store", graphs)
    figures = tmp_path / "figures.json"
    line = ["messages", str(tmp_path / "store"), "--batch-size", "4", "--hidden", "8"]
    line += ["--layers", "1", "--rounds", "2", "--models", "gine", "gatv2"]
    assert main([*line, "--allocator", "default", "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    assert [row["name"] for row in found["rows"]] == ["gine", "gatv2"]
    assert all(row["ratio"] > 0 for row in found["rows"])
    found = found["figures"]
    assert set(found) == {"gine", "gatv2"}
    assert all(len(each["all"]["ours"]) == 2 for each in found.values())
    assert "times faster" in capsys.readouterr().out
