"""Node classification: GCNs and a GAT on one graph with a few labelled nodes.

    python examples/node_classification.py
    python examples/node_classification.py --data cora --path PATH
    python examples/node_classification.py --short

Without --data the graph is a stochastic block model: nodes of the same class are linked
more often, and features are noisy. PATH is a file or folder of the data set; if
omitted, `kb.data.load` uses its cache or downloads it. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import NormalizeFeatures, RandomNodeSplit


def block_model(rng: np.random.Generator, count: int, classes: int = 4) -> kb.Graph:
    """A graph of `count` nodes whose links and features tell of their class."""
    label = rng.integers(0, classes, count)
    # On average, five links to the same class and two to others.
    near = label[:, None] == label
    share = np.where(near, 5 * classes, 2 * classes / (classes - 1)) / count
    ends = np.argwhere(np.triu(rng.uniform(size=(count, count)) < share, 1))
    return kb.Graph(
        count,
        senders=np.concatenate([ends[:, 0], ends[:, 1]]),
        receivers=np.concatenate([ends[:, 1], ends[:, 0]]),
        node={"feature": np.eye(classes)[label] + rng.normal(size=(count, classes))},
        label=label,
        label_level="node",
    )


def train(graph: kb.Graph, backbone: models.Backbone, epochs: int, rate: float):
    """Train on the nodes of the mask, and return the accuracy on the test nodes."""
    # Weight decay of both papers: 5e-4 times half the square.
    for weight in backbone.trainable_variables:
        if weight.path.endswith("kernel"):
            weight.regularizer = keras.regularizers.L2(2.5e-4)
    task = models.NodeClassifier(backbone, int(graph.label.max()) + 1)
    task.compile(keras.optimizers.Adam(rate))
    task.fit(
        graph,
        mask="train_mask",
        validation_mask="valid_mask",
        epochs=epochs,
        verbose=0,
        callbacks=[
            keras.callbacks.EarlyStopping(
                "val_accuracy", patience=50, mode="max", restore_best_weights=True
            )
        ],
    )
    scores = task.evaluate(graph, mask="test_mask", verbose=0, return_dict=True)
    return scores["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", help="such as cora or amazon_photo")
    parser.add_argument("--path", help="file or folder of the data set")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    if options.short:
        options.epochs = 10
    if options.data:
        (graph,) = kb.data.load(options.data, path=options.path)
        if options.data in ("cora", "citeseer", "pubmed"):
            # Few words of a document, as in the papers: shares instead of counts.
            # With hundreds of features per node, as in Amazon Photo, they would be
            # so small that little is learnt.
            graph = NormalizeFeatures()(graph)
    else:
        graph = block_model(rng, 300 if options.short else 1000)
    if "train_mask" not in graph.node:
        # 20 nodes of each class to train, 30 to validate, the rest to test.
        split = RandomNodeSplit(
            20, 30, None, per_class=("train", "valid"), seed=options.seed
        )
        graph = split(graph)
    count = {k: int(v.sum()) for k, v in graph.node.items() if k.endswith("_mask")}
    print(f"{graph.num_nodes} nodes, {graph.num_edges} edges, {count}")

    inputs = {"feature": {"features": graph.node["feature"].shape[1]}}
    keras.utils.set_random_seed(options.seed)
    gcn = models.GCNBackbone(
        inputs, hidden_dim=64, num_layers=2, dropout=0.5, last_kernel=False
    )
    print(f"GCN: accuracy {train(graph, gcn, options.epochs, 0.01):.3f} on test nodes")
    # Every layer ends with norm, activation and dropout, and adds a map of the states.
    deep = models.GCNBackbone(
        inputs,
        hidden_dim=64,
        num_layers=4,
        dropout=0.5,
        norm="layer",
        residual="linear",
        activation_first=False,
    )
    accuracy = train(graph, deep, options.epochs, 0.005)
    print(f"GCN, four layers: accuracy {accuracy:.3f} on test nodes")
    gat = models.GATBackbone(
        inputs,
        hidden_dim=64,
        num_heads=8,
        num_layers=2,
        dropout=0.6,
        attention_dropout=0.6,
    )
    print(f"GAT: accuracy {train(graph, gat, options.epochs, 0.005):.3f} on test nodes")


if __name__ == "__main__":
    main()
