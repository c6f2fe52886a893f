"""A graph layer of your own: messages along edges in both directions.

Messages follow the direction of the edges, so a node receives nothing from the nodes
that it points to. This layer adds the reverse of every edge, with a separate type.

    python examples/own_layer.py [--short]
"""

import sys
import tempfile

import keras
import numpy as np

import keras_bandgnn as kb


@keras.saving.register_keras_serializable(package="own_layer")
class ReverseEdges(kb.preprocessing.GraphLayer):
    """Adds the reverse of each edge; the reverse of type p has type p + 1."""

    def call(self, graph: kb.Graph) -> kb.Graph:
        return graph.replace(
            senders=np.concatenate([graph.senders, graph.receivers]),
            receivers=np.concatenate([graph.receivers, graph.senders]),
            edge_type=np.concatenate([graph.edge_type, graph.edge_type + 1]),
        )


def random_graph(rng: np.random.Generator) -> kb.Graph:
    """A random graph; the label of a node: does it point to a red one?"""
    size = int(rng.integers(5, 30))
    senders, receivers = rng.integers(0, size, (2, size))
    red = rng.integers(0, 2, size)
    label = np.isin(np.arange(size), senders[red[receivers] == 1]).astype(np.int32)
    return kb.Graph(
        size, senders, receivers, node={"red": red}, label=label, label_level="node"
    )


short = "--short" in sys.argv
rng = np.random.default_rng(0)
graphs = [random_graph(rng) for _ in range(200 if short else 2000)]
test = [random_graph(rng) for _ in range(100)]
for layers in ([], [ReverseEdges()]):
    keras.utils.set_random_seed(0)
    backbone = kb.models.GGNNBackbone({"red": 2}, 16, num_steps=1, num_edge_types=2)
    preprocessor = kb.preprocessing.GraphPreprocessor(layers)
    task = kb.models.NodeClassifier(backbone, 2, preprocessor)
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(graphs, epochs=10 if short else 20, verbose=0)
    accuracy = task.evaluate(test, verbose=0)[1]
    print(f"{len(layers)} layers: accuracy {accuracy:.3f}")

with tempfile.TemporaryDirectory() as folder:
    task.save_to_preset(f"{folder}/preset")
    restored = kb.models.Task.from_preset(f"{folder}/preset")
pairs = zip(task.predict(test), restored.predict(test), strict=True)
difference = max(float(np.abs(one - other).max()) for one, other in pairs)
print(f"saved and loaded: largest difference {difference:.1e}")
