"""The benchmark of latency, on two small presets."""

import json
import time

import keras

from examples.benchmarks import latency
from examples.benchmarks.__main__ import main


def test_latency_of_a_molecule_and_a_function(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    line = ["latency", "schnet_qm9_u0", "ggnn_bugs_python", "--calls", "3"]
    line += ["--warmup", "1", "--sizes", "3", "--many", "4", "--starts", "0"]
    line += ["--allocator", "default", "--json", str(figures), "--no-export"]
    assert main(line) == 0
    found = json.loads(figures.read_text())
    assert set(found) == {"schnet_qm9_u0", "ggnn_bugs_python"}
    for each in found.values():
        assert 0 < each["one"]["p50"] <= each["one"]["p99"]
        assert each["sizes"]["p50"] > 0 and each["keras"] > 0
    assert "one call of predict, ms" in capsys.readouterr().out


def test_stages_of_a_start():
    found = latency.cold("schnet_qm9_u0", None, time.time())
    assert tuple(found) == latency.STAGES and all(found.values())


def test_molecules_and_functions_grow():
    sizes = [latency.alkane(n).num_nodes for n in (1, 2, 9)]
    assert sizes == [5, 8, 29]
    texts = latency.sources()
    assert len(texts) > 50 and len(texts[0]) < len(texts[-1])


def test_exported_models_are_timed(tmp_path):
    from keras_bandgnn.models import Task

    task = Task.from_preset("schnet_qm9_u0")
    graphs = latency.graphs_for(task, 4)
    found = latency.exported(task, graphs, str(tmp_path / "model"))
    if keras.backend.backend() in latency.FORMATS:
        assert found > 0
    else:
        assert found.startswith("not measured on")
