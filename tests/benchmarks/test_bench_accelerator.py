"""The benchmark of accelerators, with tiny sizes on the CPU."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from examples.benchmarks import accelerator, figures
from examples.benchmarks import accelerator_device as device
from examples.benchmarks import accelerator_part as parts
from examples.benchmarks import accelerator_plans as plans
from examples.benchmarks.__main__ import main

pytestmark = [
    # torch_geometric deprecates parts of torch as it loads.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


def test_all_parts_run_small_on_a_cpu(tmp_path, capsys):
    assert main(["accelerator", "--small", "--out", str(tmp_path / "out")]) == 0
    content = figures.read(tmp_path / "out" / "accelerator.json")
    found = content["figures"]
    assert list(found) == list(accelerator._SHARES)
    assert {
        name: part["failed"] for name, part in found.items() if part["failed"]
    } == {}
    reasons = {each["reason"] for part in found.values() for each in part["skipped"]}
    assert "left out by --small" in reasons and "one device" in reasons
    empty = {name for name, part in found.items() if not part["rows"]}
    assert empty == {"calibration", "collectives"}
    for row in found["numerics"]["rows"]:
        errors = [row[name] for name in ("default", "full", "cpu") if name in row]
        assert max(errors) < 1e-4, row
    names = {row["name"].partition(",")[0] for row in content["rows"]}
    assert {"plans", "attention", "tiles"} <= names
    page = (tmp_path / "out" / "accelerator.md").read_text()
    assert "## Plans" in page and "| GGNN" not in page and "Left out:" in page
    assert "8 parts" in capsys.readouterr().out


def test_parts_without_time_are_left_out(tmp_path):
    line = ["accelerator", "--small", "--minutes", "1e-9", "--out", str(tmp_path)]
    assert main(line) == 0
    found = json.loads((tmp_path / "accelerator.json").read_text())["figures"]
    assert [part["skipped"][0]["reason"] for part in found.values()] == ["no time"] * 8


def test_an_error_of_a_part_stops_no_other(tmp_path, monkeypatch, capsys):
    def broken(part, setting):
        part.add("t", a=1)
        raise ValueError("a reason\nand more")

    monkeypatch.setattr(plans, "measure_tiles", broken)
    line = ["accelerator", "--small", "--parts", "tiles", "collectives"]
    assert main([*line, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "accelerator.json").read_text())["figures"]
    failed = {"what": "tiles", "error": "ValueError: a reason"}
    assert found["tiles"]["failed"] == [failed]
    assert found["tiles"]["rows"] == [{"table": "t", "a": 1}]
    assert found["collectives"]["skipped"][0]["reason"] == "one device"
    assert "- tiles: ValueError: a reason" in (tmp_path / "accelerator.md").read_text()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), "out of memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while"), "out of memory"),
        (MemoryError(), "out of memory"),
        (ImportError("No module named 'x'"), "not installed: No module named 'x'"),
        (ValueError("wrong"), None),
    ],
)
def test_what_does_not_fit_is_left_out_and_not_failed(error, reason):
    part = parts.Part("attention", 60.0)

    def fails():
        raise error

    steps = {"full": lambda: fails, "edges": lambda: lambda: None}
    found = parts.alternated(part, steps, 2, "64 nodes")
    assert list(found) == ["edges"] and len(found["edges"].times) == 2
    assert part.skipped == ([] if reason is None else [("64 nodes: full", reason)])
    assert bool(part.failed) == (reason is None)


def test_time_is_shared_out(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(parts.time, "monotonic", lambda: now[0])
    part = parts.Part("plans", 100.0)
    with part.share(4):
        assert part.left() == 25.0
        now[0] = 30.0
        assert not part.has_time_for("degree 3")
        late = parts.alternated(part, {"a": lambda: lambda: None}, 2, "degree 3")
        assert len(late) <= 1
    assert part.left() == 70.0 and part.has_time_for("degree 64", 60.0)
    assert part.skipped[0] == ("degree 3", "no time: 0 s are left")


def test_longer_graphs_are_left_out_where_steps_are_slow(monkeypatch):
    sizes = dataclasses.replace(parts.SMALL, lengths=(16, 64), longest=128)
    setting, part = parts.Setting(sizes, 1), parts.Part("attention", 600.0)
    monkeypatch.setattr(
        plans, "attention_step", lambda kind, *_: lambda: pytest.importorskip("time")
    )
    plans.measure_attention(part, setting)
    assert ("64 nodes, degree 4", "more than 128 edges") in part.skipped
    assert {row["nodes"] for row in part.rows} == {16}
    last, stopped = {("full", 0): 1e9}, set()
    plans._attention_of(part, setting, 64, 4, last, stopped)
    assert stopped == {("full", 0)} and part.skipped[-1][1].startswith("it would take")


def test_kinds_without_memory_are_left_out_of_longer_graphs(monkeypatch):
    sizes = dataclasses.replace(parts.SMALL, lengths=(16, 32), longest=128)
    setting, part = parts.Setting(sizes, 1), parts.Part("attention", 600.0)

    def step(kind, length, *_):
        if kind == "full":
            raise RuntimeError("CUDA out of memory")
        return lambda: None

    monkeypatch.setattr(plans, "attention_step", step)
    plans.measure_attention(part, setting)
    lost = [what for what, why in part.skipped if why == "out of memory"]
    assert lost == ["16 nodes, degree 4: full"] and part.failed == []
    assert {row["kind"] for row in part.rows if row["nodes"] == 32} >= {"edges"}
    assert "full" not in {row["kind"] for row in part.rows}


def test_all_pairs_have_to_fit_into_the_memory_of_the_host(monkeypatch):
    monkeypatch.setattr(device, "kind", lambda: "cpu")
    assert "GiB of the host's memory" in plans._too_large(10**6, 8)


def test_tiles_hold_their_edges():
    tiles, sender, receiver = plans.tiles_of(64, 5, 16, 0.25)
    edge = tiles["edge"][0]
    assert edge.shape == (5, 16, 16) and (edge < len(sender[0])).sum() == 5 * 64
    tile, row, column = np.nonzero(edge < len(sender[0]))
    order = edge[tile, row, column]
    assert (receiver[0][order] == tiles["row"][0][tile] * 16 + row).all()
    assert (sender[0][order] == tiles["column"][0][tile] * 16 + column).all()
    assert (np.diff(receiver[0]) >= 0).all()


@pytest.mark.parametrize("family", ["small graphs", "a band"])
def test_graphs_of_plans_have_the_degree(family):
    graphs, types = plans.graphs_of(family, 5, 128)
    edges = plans.edges_of(graphs, types)
    assert (np.bincount(edges.receiver, minlength=edges.num_nodes) == 5).all()
    for plan in plans.plans_of(types):
        plan.pack(edges, plans.budget_of(plan, edges))


@pytest.mark.release
@pytest.mark.every_backend
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="one CPU device")
def test_collectives_of_two_devices(tmp_path):
    line = [sys.executable, "-m", "examples.benchmarks", "accelerator", "--small"]
    line += ["--parts", "collectives", "--out", str(tmp_path), "--processes", "2"]
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=2"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(root)}
    subprocess.run(line, check=True, env=environment, cwd=root)
    part = json.loads((tmp_path / "accelerator.json").read_text())["figures"]
    assert part["collectives"]["failed"] == []
    rows = part["collectives"]["rows"]
    assert {"GB/s", "graphs/s"} == {row["unit"] for row in rows}
    assert rows[0]["devices"] == rows[-1]["devices"] == 2
