"""The layers of the library inside a Keras model of your own.

`BandedMessagePassing` and `GRUUpdate` are ordinary Keras layers over the batch
contract. Here they form a model that counts: the label of a graph is the number of its
edges of type 1 per node. A `GraphLoader` yields the batches, and Keras' `fit` trains
the model.

    python examples/keras_layers.py
    python examples/keras_layers.py --short

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse

import keras
import numpy as np
from keras import ops

import keras_bandgnn as kb
from keras_bandgnn import layers, preprocessing
from keras_bandgnn.ops import batched_segment_sum

NUM_TYPES = 3


class EdgeCounter(keras.Model):
    """Two steps of messages, then the mean over the nodes of each graph.

    Args:
        units: Width of a node state.
    """

    def __init__(self, units: int):
        super().__init__()
        self.embedding = keras.layers.Embedding(10, units)
        self.messages = layers.BandedMessagePassing(units, num_edge_types=NUM_TYPES)
        self.update = layers.GRUUpdate(units)
        self.head = keras.layers.Dense(1)

    def call(self, batch):
        """Return one number per graph, [G, B, 1]."""
        states = self.embedding(batch["node"]["type"])
        prepared = self.messages.prepare(batch)  # Shared by both steps.
        for _ in range(2):
            states = self.update(self.messages(states, prepared), states)
        # Padding nodes belong to the last slot, which is also padding.
        slots = ops.shape(batch["graph"]["mask"])[1]
        total = batched_segment_sum(
            states, batch["node"]["graph_id"], slots, is_sorted=True
        )
        count = ops.cast(ops.maximum(batch["graph"]["n_node"], 1), total.dtype)
        return self.head(total / ops.expand_dims(count, -1))


def make_graph(rng: np.random.Generator) -> kb.Graph:
    """A random graph, labelled with its edges of type 1 per node."""
    num_nodes = int(rng.integers(5, 40))
    num_edges = 3 * num_nodes
    edge_type = rng.choice(NUM_TYPES, num_edges, p=rng.dirichlet(np.ones(NUM_TYPES)))
    return kb.Graph(
        num_nodes,
        senders=rng.integers(0, num_nodes, num_edges),
        receivers=rng.integers(0, num_nodes, num_edges),
        edge_type=edge_type,
        node={"type": rng.integers(0, 10, num_nodes)},
        label=float(np.mean(edge_type == 1) * 3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    reorder = preprocessing.RCMKCompile(block_size=64)
    train, test = (
        list(reorder(make_graph(rng) for _ in range(count)))
        for count in ((300, 100) if options.short else (3000, 500))
    )
    batcher = preprocessing.DynamicBatcher(graphs=32)
    loader, held_out = (
        preprocessing.GraphLoader(
            graphs, batcher, shuffle=shuffle, num_edge_types=NUM_TYPES
        )
        for graphs, shuffle in ((train, True), (test, False))
    )
    print(loader)

    model = EdgeCounter(units=16 if options.short else 32)
    model.compile(
        keras.optimizers.Adam(1e-2),
        # These reductions exclude padding graphs from the mean.
        loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        weighted_metrics=[keras.metrics.MeanAbsoluteError(name="error")],
    )
    # The loader shuffles its batches itself.
    model.fit(
        loader,
        validation_data=held_out,
        epochs=5 if options.short else 15,
        shuffle=False,
        verbose=2,
    )
    labels = np.array([graph.label for graph in test])
    error = model.evaluate(held_out, verbose=0, return_dict=True)["error"]
    print(f"mean error on new graphs: {error:.3f}")
    print(f"error of the mean label: {np.abs(labels - labels.mean()).mean():.3f}")


if __name__ == "__main__":
    main()
