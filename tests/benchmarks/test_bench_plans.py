import json

import numpy as np
import pytest

from examples.benchmarks import allocator
from examples.benchmarks.__main__ import main
from keras_bandgnn.data import write_store
from keras_bandgnn.testing import random_graph


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    write_store(tmp_path / "store", [random_graph(rng, 20) for _ in range(12)])
    return str(tmp_path / "store")


# torch_geometric, where it is installed.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_bench_train_compares_plans(store, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    command = ["train", store, "--nodes", "64", "--hidden", "4"]
    command += ["--steps", "2", "--types", "3", "--rounds", "2"]
    command += ["--allocator", "default", "--json", str(figures)]
    assert main([*command, "--peers", "matmul per type"]) == 0
    found = json.loads(figures.read_text())
    runs, rows = found["figures"]["runs"], found["rows"]
    assert [row["name"] for row in rows] == ["auto", "auto without schedule"]
    for row in rows:
        # Round by round, as supergraphs differ.
        rates = (runs[name]["all"] for name in (row["name"], "matmul per type"))
        pairs = zip(*rates, strict=True)
        assert row["ratio"] == np.median([own / other for own, other in pairs])
        assert row["peer"] == runs["matmul per type"]["graphs_per_second"]
    assert set(runs) == {"auto", "auto without schedule", "matmul per type"}
    assert all(len(run["all"]) == 2 for run in runs.values())
    assert runs["matmul per type"]["ratio"] == 1
    auto, full = runs["auto"], runs["auto without schedule"]
    assert 0 < auto["tera_operations"] < full["tera_operations"]
    assert "ReceptiveField(2)" in capsys.readouterr().out


# torch_geometric, where it is installed.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.release
def test_bench_propagate_times_plans(store, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    command = ["propagate", store, "--nodes", "64", "--hidden", "4"]
    command += ["--steps", "1", "--rounds", "1", "--allocator", "default"]
    command += ["--plans", "segment", "banded:16", "--json", str(figures)]
    assert main(command) == 0
    found = json.loads(figures.read_text())
    times, rows = found["figures"]["times"], found["rows"]
    assert {"auto", "Plan('banded:16', rest='segment')"} < {r["name"] for r in rows}
    assert all(row["ratio"] == row["peer"] / row["ours"] for row in rows)
    assert "Plan('banded:16', rest='segment')" in times
    assert any(name.startswith("torch_geometric") for name in times)
    assert "(auto)" in capsys.readouterr().out


@pytest.mark.release
def test_bench_propagate_reads_a_matrix(tmp_path, capsys):
    path = tmp_path / "ring.npz"
    pointer, column = np.arange(33), (np.arange(32) + 1) % 32
    np.savez(path, n=32, indptr=pointer, indices=column)
    command = ["propagate", str(path), "--hidden", "4", "--steps", "1"]
    command += ["--rounds", "1", "--allocator", "default", "--no-peers"]
    command += ["--plans", "segment", "--ordering", "rcmk"]
    assert main(command) == 0
    assert "32 nodes, 32 edges" in capsys.readouterr().out


def test_the_allocator_restarts_the_command_once(monkeypatch):
    started = []
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.execve", lambda *given: started.append(given))
    allocator.apply("tuned")
    assert started[0][2]["GLIBC_TUNABLES"] == allocator.TUNED["GLIBC_TUNABLES"]
    for name, value in allocator.TUNED.items():
        monkeypatch.setenv(name, value)
    assert "hugetlb" in allocator.apply("tuned")
    assert allocator.apply("default") == "allocator: default"
    assert len(started) == 1
