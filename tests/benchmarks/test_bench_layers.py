"""The benchmarks of attention, of models over atoms and of large graphs."""

import numpy as np
import pytest

from examples.benchmarks import figures
from examples.benchmarks.__main__ import main
from keras_bandgnn import Graph
from keras_bandgnn.data import write_store

pytestmark = [
    # torch_geometric deprecates parts of torch as it loads.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


def test_bench_attention_with_and_without_full_attention(tmp_path):
    path = tmp_path / "figures.json"
    line = ["attention", "--lengths", "32", "64", "--degrees", "2", "--heads", "2"]
    line += ["--key-dim", "2", "--longest", "32", "--rounds", "1", "--json", str(path)]
    assert main([*line, "--allocator", "default"]) == 0
    names = [row["name"] for row in figures.read(path)["rows"]]
    assert names == [
        "32 nodes, degree 2",
        "32 nodes, degree 2, against full attention",
        "64 nodes, degree 2",
    ]


def test_bench_attention_runs_once_with_each_allocator(tmp_path, monkeypatch):
    path, lines = tmp_path / "figures.json", []
    line = ["attention", "--json", str(path)]
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.argv", ["benchmarks", *line])

    def started(command, check):
        lines.append(command[1:])
        part = command[command.index("--json", command.index("--json") + 1) + 1]
        rows = [figures.row("64 nodes", 1.0, 2.0, "ms")]
        figures.write_json(part, {"format": figures.FORMAT, "rows": rows, "figures": 1})

    monkeypatch.setattr("subprocess.run", started)
    monkeypatch.setattr("examples.benchmarks.figures.versions", dict)
    assert main(line) == 0
    assert all(each[:3] == ["-m", "examples.benchmarks", "attention"] for each in lines)
    found = figures.read(path)
    assert found["figures"] == {"tuned": 1, "default": 1}
    assert [row["name"] for row in found["rows"]] == [
        "64 nodes, tuned allocator",
        "64 nodes, default allocator",
    ]


def test_bench_geometry_names_models_and_batches(tmp_path):
    rng = np.random.default_rng(0)
    graphs = [
        Graph(
            n,
            [],
            [],
            node={
                "atomic_number": rng.integers(1, 9, n),
                "position": rng.normal(size=(n, 3)).astype("float32"),
            },
            label=float(n),
        )
        for n in (3, 4, 5)
    ]
    write_store(tmp_path / "store", graphs)
    path = tmp_path / "figures.json"
    line = ["geometry", str(tmp_path / "store"), "--batch-sizes", "2", "--hidden", "4"]
    line += ["--steps", "1", "--functions", "4", "--rounds", "1", "--json", str(path)]
    assert main([*line, "--allocator", "default"]) == 0
    rows = figures.read(path)["rows"]
    assert [row["name"] for row in rows] == ["schnet, 2 graphs", "painn, 2 graphs"]


def test_rows_of_large_graphs_are_those_of_both_sides():
    from examples.benchmarks.large_graphs import kept_rows

    found = {
        "sample ours": {"1": 10.0, "2": 15.0},
        "sample peer": {"0": 2.0, "1": 5.0},
        "train ours": {"epochs": [9.0, 2.0, 2.0], "peak": 1.0},
        "train peer": {"failed": 1},
    }
    ratios = {row["name"]: row["ratio"] for row in kept_rows(found)}
    assert ratios == {
        "sampling, 1 workers": 2.0,
        "sampling, 2 workers": None,
        "training, epoch": None,
        "training, peak of memory": None,
    }
    found["train peer"] = {"epochs": [3.0], "peak": 3.0}
    rows = {row["name"]: row for row in kept_rows(found)}
    assert rows["training, epoch"]["ratio"] == 1.5
    assert rows["training, peak of memory"]["ratio"] == 3.0
    assert kept_rows({"sample ours": {"failed": 1}}) == []
