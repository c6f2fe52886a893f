import json

import numpy as np
import pytest

from examples.benchmarks.__main__ import main
from keras_bandgnn import Graph
from keras_bandgnn.data import write_store


# torch_geometric, where it is installed.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_bench_batching(tmp_path, capsys):
    rng = np.random.default_rng(0)
    graphs = [
        Graph(
            n,
            rng.integers(0, n, 2 * n),
            rng.integers(0, n, 2 * n),
            node={"element": rng.integers(0, 5, n)},
            label=float(n),
        )
        for n in rng.integers(3, 30, 60).tolist()
    ]
    write_store(tmp_path / "store", graphs)
    command = ["batching", str(tmp_path / "store"), "--batch-size", "8"]
    command += ["--hidden", "4", "--layers", "1", "--runs", "1"]
    command += ["--json", str(tmp_path / "figures.json")]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "dynamic, best fit" in out and "assembly, batch size 8" in out
    assert "on one ready-made batch" in out and "waited for batches" in out
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    ratios = {row["name"]: row["ratio"] for row in rows}
    assert ratios["feeding, batch size 8"] > 0
    assert "assembly, dynamic, batch size 8" in ratios


def test_data_that_is_not_there(capsys):
    assert main(["batching", "no-such-data"]) == 1
    assert "no-such-data" in capsys.readouterr().err
