import json
import sys
import types

import keras
import numpy as np
import pytest

from examples.benchmarks.__main__ import main
from examples.benchmarks.kgcnn import arrays_of
from keras_bandgnn import Graph

CLASSES = 2


@pytest.fixture
def chain(monkeypatch):
    """A chain in place of a citation graph, in every part."""
    count = 6
    nodes = np.arange(count)
    ends = (
        np.concatenate([nodes[:-1], nodes[1:]]),
        np.concatenate([nodes[1:], nodes[:-1]]),
    )
    node = {"feature": np.eye(count, dtype="float32")}
    for number, part in enumerate(("train", "valid", "test")):
        node[f"{part}_mask"] = nodes % 3 == number
    graph = Graph(count, *ends, node=node, label=nodes % CLASSES, label_level="node")
    monkeypatch.setattr(
        "examples.benchmarks.kgcnn.node_graphs", lambda options: [(graph, 0)]
    )
    return graph


def test_the_peer_reads_the_normalized_adjacency(chain):
    found = arrays_of(chain)
    ends, weights = found["edge_indices"][0], found["edge_weights"][0, :, 0]
    matrix = np.zeros((6, 6))
    matrix[tuple(ends.T)] = weights
    adjacency = np.eye(6) + np.eye(6, k=1) + np.eye(6, k=-1)
    root = np.sqrt(adjacency.sum(1))
    np.testing.assert_allclose(matrix, adjacency / root / root[:, None], rtol=1e-6)
    assert found["total_nodes"] == 6 and found["total_edges"] == 16


def test_without_the_peer_the_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "kgcnn", None)
    assert main(["kgcnn", "cora", "--allocator", "default"]) == 1
    assert 'pip install "kgcnn"' in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "kgcnn", types.ModuleType("kgcnn"))
    monkeypatch.setitem(sys.modules, "tree", None)
    assert main(["kgcnn", "cora", "--allocator", "default"]) == 1
    assert 'pip install "dm-tree"' in capsys.readouterr().err


def test_accuracies_and_times_stand_beside_those_of_the_peer(
    chain, monkeypatch, capsys, tmp_path
):
    def make_model(inputs, **kwargs):
        """A model with the inputs and the output of the peer's."""
        read = [keras.Input(**each) for each in inputs]
        dense = keras.layers.Dense(CLASSES, activation="softmax")
        return keras.Model(read, dense(read[0]))

    peer = types.ModuleType("kgcnn.literature.GCN")
    peer.make_model = make_model
    for name in ("kgcnn", "kgcnn.literature", "tree"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, peer.__name__, peer)
    figures = tmp_path / "figures.json"
    line = ["kgcnn", "cora", "--json", str(figures), "--epochs", "2", "--hidden", "4"]
    assert main([*line, "--allocator", "default"]) == 0
    assert "GCN, kgcnn" in capsys.readouterr().out
    found = json.loads(figures.read_text())["figures"]
    assert set(found) == {"keras-bandgnn", "kgcnn"}
    for (each,) in found.values():
        assert 0 <= each["score"] <= 1 and np.shape(each["times"]) == (2, 2)
