"""A backbone of your own: GraphSAGE with the mean over the neighbours.

The backbone is a Keras model from a batch to node states. Its sums over edges go
through `BandedMessagePassing`, so it runs under every plan, and its weights fit all of
them. It is tested, trained beside a GCN, saved in a preset, and loaded again.

    python examples/own_backbone.py
    python examples/own_backbone.py --short

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import tempfile

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor
from keras_bandgnn.primitives import Banded, Grouped, Plan


@keras.saving.register_keras_serializable(package="own_backbone")
class SAGEBackbone(kb.models.Backbone):
    """h'[n] = relu(U h[n] + b + mean of W h[j] over the neighbours j of n).

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: Width of a state.
        num_layers: Number of layers, each with its own weights.
        num_edge_types: Types of edges; each has a W of its own.

    Reference:
        Hamilton et al. 2017.
    """

    def __init__(
        self,
        inputs,
        hidden_dim: int = 16,
        num_layers: int = 2,
        num_edge_types: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim, self.num_layers = hidden_dim, num_layers
        self.num_edge_types = num_edge_types
        policy = self.dtype_policy
        self.encoder = kb.layers.NodeEncoder(hidden_dim, inputs, dtype=policy)
        self.neighbours = [
            kb.layers.BandedMessagePassing(
                hidden_dim, num_edge_types, reduce="mean", dtype=policy
            )
            for _ in range(num_layers)
        ]
        self.own = [
            keras.layers.Dense(hidden_dim, dtype=policy) for _ in range(num_layers)
        ]
        self.build()

    def build(self, input_shape=None):
        """Makes all weights from the arguments."""
        self.encoder.build()
        for layer in (*self.neighbours, *self.own):
            layer.build((None, None, self.hidden_dim))
        self.built = True

    def hidden_states(self, x, training=False):
        """Yields the embedded features, then the states after each layer."""
        states = self.encoder(x["node"])
        yield states
        # The work on the plan is the same for all layers.
        plan = self.neighbours[0].prepare(x["plan"], keras.ops.shape(states)[1])
        for neighbours, own in zip(self.neighbours, self.own, strict=True):
            states = keras.ops.relu(own(states) + neighbours(states, plan))
            yield states

    def call(self, x, training=False):
        """Returns the states after the last layer, [G, N, hidden_dim]."""
        *_, states = self.hidden_states(x, training)
        return states

    def check(self, graphs) -> None:
        """Raises a ValueError if the graphs lack a feature."""
        self.encoder.check(graphs.node)

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {
            "name": self.name,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "inputs": self.encoder.inputs,
            "hidden_dim": self.hidden_dim,
            "num_layers": self.num_layers,
            "num_edge_types": self.num_edge_types,
        }


def make_graph(rng: np.random.Generator) -> kb.Graph:
    """A random graph; the label of a node: is it unlike most of its neighbours?"""
    size = int(rng.integers(5, 30))
    senders, receivers = rng.integers(0, size, (2, 3 * size))
    red = rng.integers(0, 2, size)
    unlike = np.bincount(receivers, red[senders] != red[receivers], minlength=size)
    degree = np.bincount(receivers, minlength=size)
    return kb.Graph(
        size,
        senders,
        receivers,
        node={"red": red},
        label=(2 * unlike > degree).astype(int),
        label_level="node",
    )


def largest_difference(one: list, other: list) -> float:
    pairs = zip(one, other, strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    train = [make_graph(rng) for _ in range(200 if options.short else 2000)]
    test = [make_graph(rng) for _ in range(50 if options.short else 500)]

    for backbone in (kb.models.GCNBackbone, SAGEBackbone):
        keras.utils.set_random_seed(0)
        task = kb.models.NodeClassifier(backbone({"red": 2}, 16, num_layers=1), 2)
        task.compile(keras.optimizers.Adam(1e-2))
        task.fit(train, epochs=10 if options.short else 20, verbose=0)
        accuracy = task.evaluate(test, verbose=0, return_dict=True)["accuracy"]
        print(f"{backbone.__name__}: accuracy {accuracy:.3f}")

    # What a backbone has to hold: neither the plan nor the rest of a batch matters.
    expected = task.predict(test)
    for plan in (Plan(Banded(8)), Plan(rest=Grouped())):
        task.preprocessor = GraphPreprocessor([], DynamicBatcher(3), plan)
        difference = largest_difference(expected, task.predict(test))
        print(f"{plan}, batches of 3: largest difference {difference:.1e}")
        assert difference < 1e-4

    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(f"{folder}/preset")
        again = kb.models.NodeClassifier.from_preset(f"{folder}/preset")
    difference = largest_difference(task.predict(test), again.predict(test))
    print(f"loaded: a {type(again.backbone).__name__}, difference {difference:.1e}")


if __name__ == "__main__":
    main()
