"""Node classification over several splits: the mean score and how far splits differ.

    python examples/several_splits.py
    python examples/several_splits.py --data amazon_photo --splits 20
    python examples/several_splits.py --data minesweeper --path PATH
    python examples/several_splits.py --short

Data sets that are published with several splits keep them; others are split by the
protocol of Shchur et al. 2018. Without --data the graph is one of communities, whose
links are listed in one direction. Graphs with two classes are scored by the area under
the ROC curve, others by accuracy. PATH is a file or folder of the data set. Choose the
backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import itertools

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.preprocessing import node_splits, shchur_splits


def communities(count: int, classes: int = 3) -> kb.Graph:
    """A graph whose links are mostly between nodes of one class."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, classes, count)
    senders, receivers = rng.integers(0, count, (2, 16 * count))
    near = label[senders] == label[receivers]
    keep = near | (rng.random(near.size) < 0.1)
    return kb.Graph(
        count,
        senders[keep],
        receivers[keep],
        node={
            "feature": np.eye(classes)[label] + 2 * rng.normal(size=(count, classes))
        },
        label=label,
        label_level="node",
    )


def score(split: kb.Graph, epochs: int, seed: int) -> float:
    """Train on the split's training nodes, and return the score of its test nodes."""
    keras.utils.set_random_seed(seed)
    classes = int(split.label.max()) + 1
    binary = classes == 2
    backbone = kb.models.SAGEBackbone(
        {"feature": {"features": split.node["feature"].shape[1]}},
        hidden_dim=64,
        num_layers=2,
        dropout=0.2,
    )
    task = kb.models.NodeClassifier(backbone, classes)
    task.compile(keras.optimizers.Adam(0.003))
    stop = keras.callbacks.EarlyStopping(
        "val_accuracy", mode="max", patience=50, restore_best_weights=True
    )
    task.fit(
        split,
        mask="train_mask",
        validation_mask="valid_mask",
        epochs=epochs,
        callbacks=[stop],
        verbose=0,
    )
    if not binary:
        results = task.evaluate(split, mask="test_mask", verbose=0, return_dict=True)
        return results["accuracy"]
    logits = task.predict(split, verbose=0)[0]
    nodes = np.flatnonzero(split.node["test_mask"])
    metric = kb.training.ROCAUC()
    metric.update_state(split.label[nodes], logits[nodes, 1] - logits[nodes, 0])
    return float(metric.result())


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--data", help="such as amazon_photo or roman_empire")
    parser.add_argument("--path", help="file or folder of the data set")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.short:
        options.splits, options.epochs = 2, 20
    if options.data:
        (graph,) = kb.data.load(options.data, path=options.path)
    else:
        graph = communities(300 if options.short else 2000)
    if "train_mask" not in graph.node or graph.node["train_mask"].ndim == 1:
        graph = shchur_splits(graph, options.splits)
    print(graph)
    scores = []
    for split in itertools.islice(node_splits(graph), options.splits):
        scores.append(score(split, options.epochs, seed=len(scores)))
        print(f"split {len(scores) - 1}: {100 * scores[-1]:.2f}")
    print(f"mean {100 * np.mean(scores):.2f}, deviation {100 * np.std(scores):.2f}")


if __name__ == "__main__":
    main()
