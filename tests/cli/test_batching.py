import sys

import keras
import numpy as np
import pytest

from keras_bandgnn import Graph
from keras_bandgnn.cli.main import main
from keras_bandgnn.data import write_store
from keras_bandgnn.models import GGNNBackbone, GraphRegressor
from tests.array_files import load_qm9

OPTIONS = ["--batch-size", "3", "--steps", "40", "--hidden", "4", "--layers", "1"]


def graphs_of(count=40, **changes):
    rng = np.random.default_rng(0)
    for n in rng.integers(3, 20, count):
        fields = {
            "edge_type": rng.integers(0, 2, 2 * n),
            "node": {"kind": rng.integers(0, 5, n), "place": rng.normal(size=(n, 3))},
            "label": [float(n), 1.0],
        }
        yield Graph(int(n), *rng.integers(0, n, (2, 2 * n)), **{**fields, **changes})


@pytest.fixture
def store(tmp_path):
    write_store(tmp_path / "store", graphs_of())
    return str(tmp_path / "store")


def test_table_of_a_store(store, capsys):
    few = ["--algorithms", "constant", "64"]
    assert main(["batching", store, *OPTIONS, *few]) == 0
    out = capsys.readouterr().out
    assert "40 graphs, batch size 3, 40 steps" in out
    assert out.index("\nconstant ") < out.index("\n64 ")
    assert "dynamic" not in out and "is chosen for 40 steps" in out


def test_model_of_a_folder_and_of_candidates(tmp_path, store, capsys):
    backbone = GGNNBackbone({"kind": 5}, 4, num_steps=1, num_edge_types=2)
    keras.utils.set_random_seed(0)
    GraphRegressor(backbone, num_targets=2).save_to_preset(tmp_path / "model")
    command = ["batching", store, *OPTIONS[:4], "--algorithms", "dynamic"]
    assert main([*command, "--model", str(tmp_path / "model")]) == 0
    assert "dynamic is chosen" in capsys.readouterr().out
    chosen = {"candidates": [0, 2], "label": 1, "slot": 1}
    write_store(tmp_path / "programs", graphs_of(**chosen))
    command[1] = str(tmp_path / "programs")
    assert main([*command, "--hidden", "4", "--layers", "1"]) == 0
    assert "dynamic is chosen" in capsys.readouterr().out


def test_data_set_by_name(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 9, 60)
    offset = np.cumsum(sizes) - sizes
    edges = [
        (o + i, o + i + 1)
        for o, n in zip(offset, sizes, strict=True)
        for i in range(n - 1)
    ]
    lines = [f"{a + 1}, {b + 1}\n{b + 1}, {a + 1}" for a, b in edges]
    (tmp_path / "TOY_A.txt").write_text("\n".join(lines))
    ids = np.repeat(np.arange(1, 61), sizes)
    (tmp_path / "TOY_graph_indicator.txt").write_text("\n".join(map(str, ids)))
    (tmp_path / "TOY_graph_labels.txt").write_text("\n".join("01" * 30))
    kinds = "\n".join(map(str, rng.integers(0, 3, ids.size)))
    (tmp_path / "TOY_node_labels.txt").write_text(kinds)
    few = ["--algorithms", "dynamic", "--criterion", "graph"]
    command = ["batching", "tu:TOY", "--path", str(tmp_path), *OPTIONS, *few]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "60 graphs" in out and "us per graph" in out
    assert main([*command, "--option", "edges"]) == 2
    assert "Expected --option NAME=VALUE" in capsys.readouterr().err
    assert main([*command, "--option", "edges=full"]) == 1
    assert "Received: edges='full'" in capsys.readouterr().err


def test_errors(tmp_path, store, capsys):
    assert main(["batching", store, "--split", "train"]) == 2
    assert "Received: a store" in capsys.readouterr().err
    assert main(["batching", str(tmp_path)]) == 1
    assert f"bandgnn batching NAME --path {tmp_path}" in capsys.readouterr().err
    assert main(["batching", "qm8"]) == 1
    assert "qm9" in capsys.readouterr().err
    write_store(tmp_path / "bare", graphs_of(label=None))
    assert main(["batching", str(tmp_path / "bare"), *OPTIONS]) == 1
    assert "Received: node features ['kind', 'place'], no labels" in (
        capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main(["batching", store, "--algorithms", "32"])


@pytest.mark.release
def test_qm9(shared_data, tmp_path, capsys):
    folder = shared_data / "qm9_3d"
    if not folder.is_dir():
        pytest.skip("no qm9_3d")
    write_store(tmp_path / "qm9", load_qm9(folder, edges="full"))
    command = ["batching", str(tmp_path / "qm9")]
    few = ["--algorithms", "dynamic", "constant", "--steps", "1000"]
    few += ["--packing", "sequential"]
    assert main([*command, "--hidden", "8", "--layers", "1", *few]) == 0
    out = capsys.readouterr().out
    assert "8,000 graphs, batch size 32, 1,000 steps" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:4]}
    # One shape each; all 32 graphs in a static batch, some fewer in a dynamic one.
    assert rows["dynamic"][1] == rows["constant"][1] == "1"
    assert 30 < float(rows["dynamic"][5]) < float(rows["constant"][5]) <= 32
    assert sys.modules["keras"].backend.backend() in out
