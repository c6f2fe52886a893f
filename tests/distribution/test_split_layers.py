"""What may run with the nodes of a graph on several devices, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from registered import plain_graphs, registered

import keras_bandgnn as kb
from keras_bandgnn.distribution.sequence_layout import check_layers
from keras_bandgnn.models.task_program import TaskProgram
from keras_bandgnn.preprocessing import GraphPreprocessor
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.graph_layer import GraphLayer

CASES = Path(__file__).with_name("sequence_cases.py")
# Layers on the device; the others change graphs on the host.
LAYERS = {
    **{
        name: cls
        for name, cls in registered(keras.layers.Layer).items()
        if not issubclass(cls, GraphLayer | Batcher | GraphPreprocessor)
    },
    "States": TaskProgram,
}
on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX runs programs over meshes"
)


class Readout(keras.layers.Layer):
    """A readout of a user's own, with another layer within it."""

    splits_sequences = True
    units = 8

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.built = True


def declared(cls) -> bool:
    return vars(cls).get("splits_sequences", False)


def classifier(**options):
    backbone = kb.models.GGNNBackbone({"h": {"features": 3}}, 8, 1, num_edge_types=2)
    return kb.models.GraphClassifier(backbone, 2, **options)


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_every_layer_says_whether_it_may(name):
    assert "splits_sequences" in vars(LAYERS[name]), "say so in the class itself"


@on_jax
def test_outputs_and_gradients_are_those_of_one_device():
    done = subprocess.run(
        [sys.executable, str(CASES)], capture_output=True, text=True, timeout=900
    )
    assert not done.returncode, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    may = {name for name, cls in LAYERS.items() if declared(cls)}
    assert may <= {found["case"].split()[0] for found in results}
    for found in results:
        assert found["size"] > 0.1, found
        assert found["out"] < 1e-5 * max(1.0, found["size"]), found
        assert found["slopes"] < 1e-5, found


@pytest.mark.parametrize(
    "name", sorted(name for name, cls in LAYERS.items() if not declared(cls))
)
def test_the_others_are_refused_by_name(name):
    cls = LAYERS[name]
    # Whatever a layer is part of; it need not even be built.
    layer = cls.__new__(cls)
    keras.layers.Layer.__init__(layer)
    task = classifier(readout=Readout(layer))
    with pytest.raises(ValueError, match=f"Received: {name}.*Use data_parallel"):
        check_layers(task)


class Undeclared(kb.layers.GRUReadout):
    def call(self, states, x):
        return super().call(states, x)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Undeclared(8),
        lambda: keras.layers.BatchNormalization(),
        lambda: keras.layers.LayerNormalization(axis=1),
        lambda: keras.layers.Dense(2, activity_regularizer="l2"),
        lambda: keras.Sequential([keras.layers.GlobalAveragePooling1D()]),
    ],
)
def test_what_mixes_nodes_without_a_word_is_refused(layer):
    check_layers(classifier(readout=Readout(keras.layers.Dense(2))))
    task = classifier(readout=Readout(layer()))
    with pytest.raises(ValueError, match="splits_sequences = True"):
        check_layers(task)


@on_jax
def test_a_task_is_refused_before_any_work(monkeypatch):
    with kb.distribution.data_parallel(devices="cpu:0").scope():
        task = classifier(readout=Undeclared(8))
    task.distribution.sequence = 2
    monkeypatch.setattr(kb.preprocessing.GraphPreprocessor, "loader", None)
    graphs = plain_graphs()
    for method in (task.predict, task.evaluate, task.fit):
        with pytest.raises(ValueError, match="Received: Undeclared"):
            method(graphs)
    # States are those of the backbone alone.
    with kb.distribution.data_parallel(devices="cpu:0").scope():
        backbone = kb.models.GCNBackbone({"h": {"features": 3}}, 8)
        task = kb.models.GraphClassifier(backbone, 2)
    task.distribution.sequence = 2
    with pytest.raises(ValueError, match="Received: GCNBackbone"):
        task.embed(graphs)
