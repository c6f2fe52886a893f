"""Tasks whose preprocessor has transforms of graphs."""

import numpy as np

from keras_bandgnn import Graph
from keras_bandgnn.models import GCNBackbone, NodeClassifier, Task
from keras_bandgnn.preprocessing import (
    AddSelfLoops,
    GraphPreprocessor,
    LargestComponent,
    NormalizeFeatures,
    ToUndirected,
)

INPUTS = {"feature": {"features": 3}}


def graph():
    rng = np.random.default_rng(0)
    return Graph(
        9,
        [5, 1, 1, 3, 2, 8],
        [1, 3, 3, 7, 2, 6],
        node={"feature": rng.integers(1, 5, (9, 3)), "train_mask": [1] * 9},
        label=[0, 1] * 4 + [0],
        label_level="node",
    )


def task_of(layers):
    backbone = GCNBackbone(INPUTS, hidden_dim=4, num_layers=2)
    return NodeClassifier(backbone, 2, preprocessor=GraphPreprocessor(layers))


def test_nodes_outside_the_largest_component_have_no_predictions(tmp_path):
    layers = [ToUndirected(), LargestComponent(), NormalizeFeatures()]
    task = task_of(layers)
    task.fit(graph(), mask="train_mask", epochs=1, verbose=0)
    logits = task.predict(graph(), verbose=0)
    logits = logits[0] if isinstance(logits, list) else logits
    kept = [1, 3, 5, 7]
    assert logits.shape == (9, 2)
    assert np.isfinite(logits[kept]).all()
    assert np.isnan(np.delete(logits, kept, axis=0)).all()
    # They count in no loss: labels of the others do not matter.
    other = np.array(graph().label)
    other[[0, 2, 4, 6, 8]] = 1
    first = task.evaluate(graph(), verbose=0, return_dict=True)
    again = task.evaluate(graph().replace(label=other), verbose=0, return_dict=True)
    assert first == again
    task.save_to_preset(tmp_path / "preset")
    loaded = Task.from_preset(tmp_path / "preset")
    config = loaded.preprocessor.layers_config()
    assert config == task.preprocessor.layers_config()
    np.testing.assert_allclose(
        loaded.predict(graph(), verbose=0)[0], task.predict(graph(), verbose=0)[0]
    )


def test_transforms_are_those_of_the_dense_matrix():
    """A GCN over transformed graphs is one over the transformed dense matrix."""
    task = task_of([ToUndirected(self_loops=False), AddSelfLoops()])
    dense = np.zeros((9, 9), int)
    dense[graph().senders, graph().receivers] = 1
    dense = np.maximum(dense, dense.T)
    np.fill_diagonal(dense, 1)
    same = graph().replace(
        senders=np.nonzero(dense)[0], receivers=np.nonzero(dense)[1], edge_type=None
    )
    plain = NodeClassifier(task.backbone, 2, preprocessor=GraphPreprocessor())
    states = task.embed(graph())[0], plain.embed(same)[0]
    np.testing.assert_allclose(*states, atol=1e-5)
