"""A graph layer of your own: messages along edges in both directions.

Edges lead from a node to others, and messages follow them. So a node hears nothing of
the nodes that it points to, and whether one of these is red is beyond the model. A
layer that adds every edge the other way, with a type of its own, lets it learn that.
The layer is registered, so the preset has it and loads it again.

    python examples/own_layer.py
    python examples/own_layer.py --short

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import tempfile

import keras
import numpy as np

import keras_bandgnn as kb


@keras.saving.register_keras_serializable(package="own_layer")
class ReverseEdges(kb.preprocessing.GraphLayer):
    """Adds each edge the other way, with a type of its own.

    Args:
        num_edge_types: Types of edges before; type p comes back as p + num_edge_types.
    """

    def __init__(self, num_edge_types: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.num_edge_types = num_edge_types

    def call(self, graph: kb.Graph) -> kb.Graph:
        """Returns the graph with twice as many edges."""
        return graph.replace(
            senders=np.concatenate([graph.senders, graph.receivers]),
            receivers=np.concatenate([graph.receivers, graph.senders]),
            edge_type=np.concatenate(
                [graph.edge_type, graph.edge_type + self.num_edge_types]
            ),
            edge={k: np.concatenate([v, v]) for k, v in graph.edge.items()},
        )

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "num_edge_types": self.num_edge_types}


def make_graph(rng: np.random.Generator) -> kb.Graph:
    """A random graph; the label of a node: does it point to a red one?"""
    size = int(rng.integers(5, 30))
    senders, receivers = rng.integers(0, size, (2, size))
    red = rng.integers(0, 2, size)
    label = np.zeros(size, np.int32)
    label[senders[red[receivers] == 1]] = 1
    return kb.Graph(
        size, senders, receivers, node={"red": red}, label=label, label_level="node"
    )


def trained(layers: list, graphs: list, epochs: int) -> kb.models.NodeClassifier:
    keras.utils.set_random_seed(0)
    backbone = kb.models.GGNNBackbone({"red": 2}, 16, num_steps=1, num_edge_types=2)
    preprocessor = kb.preprocessing.GraphPreprocessor(layers)
    task = kb.models.NodeClassifier(backbone, 2, preprocessor)
    task.compile(keras.optimizers.Adam(1e-2))
    task.fit(graphs, epochs=epochs, verbose=0)
    return task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    train = [make_graph(rng) for _ in range(200 if options.short else 2000)]
    test = [make_graph(rng) for _ in range(100 if options.short else 500)]
    epochs = 10 if options.short else 20

    for name, layers in (("as they are", []), ("both ways", [ReverseEdges()])):
        task = trained(layers, train, epochs)
        accuracy = task.evaluate(test, verbose=0, return_dict=True)["accuracy"]
        print(f"edges {name}: accuracy {accuracy:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(f"{folder}/preset")
        again = kb.models.Task.from_preset(f"{folder}/preset")
    pairs = zip(task.predict(test), again.predict(test), strict=True)
    largest = max(float(np.abs(one - other).max()) for one, other in pairs)
    print(f"loaded: {again.preprocessor.graph_layers[0]}")
    print(f"largest difference after saving and loading: {largest:.1e}")


if __name__ == "__main__":
    main()
