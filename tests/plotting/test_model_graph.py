"""Pictures of functional models."""

import keras
import numpy as np
import pytest

import keras_bandgnn as kb
from keras_bandgnn.plotting import layers_to_dot


def batch():
    nodes = np.arange(4)
    graph = kb.Graph(4, nodes, (nodes + 1) % 4, node={"kind": nodes % 2})
    return kb.preprocessing.GraphLoader([graph] * 3)[0][0]


def test_a_batch_is_one_box():
    pytest.importorskip("pydot")
    backbone = kb.models.GINEBackbone({"kind": 2}, 8, num_layers=2)
    model = backbone.functional(batch())
    dot = layers_to_dot(model, show_layer_names=True)
    labels = [str(node.get_label()) for node in dot.get_nodes()]
    assert labels.count("batch") == 1 and not any("InputLayer" in n for n in labels)
    for name in ("node_encoder", "message_0", "message_1", "norm_1"):
        assert sum(name in label for label in labels) == 1
    arrows = [(a.get_source(), a.get_destination()) for a in dot.get_edges()]
    assert len(set(arrows)) == len(arrows)
    # "node" has the defaults of all boxes.
    names = {node.get_name() for node in dot.get_nodes()}
    assert names - {"node"} == {end for arrow in arrows for end in arrow}


def test_models_that_keras_draws_as_one_box_are_refused():
    task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    with pytest.raises(ValueError, match=r"task.functional\(batch\)"):
        layers_to_dot(task)
    with pytest.raises(ValueError, match="Expected `model`"):
        layers_to_dot(keras.layers.Dense(1))
