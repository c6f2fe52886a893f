"""Edge classification: which links of a graph join two communities.

    python examples/edge_classification.py
    python examples/edge_classification.py --short

The graph is a stochastic block model: nodes of the same community are linked more
often, and features are noisy. Half of the links have known labels, 1 between
communities. Both directions of a link get the same prediction (`symmetric=True`) and
are in the same split. Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models


def block_model(rng: np.random.Generator, count: int, groups: int = 4) -> kb.Graph:
    """A graph of `count` nodes, with labels and splits of its edges."""
    group = rng.integers(0, groups, count)
    same = group[:, None] == group
    # On average, five links within a community and three between two.
    share = np.where(same, 5 * groups, 3 * groups / (groups - 1)) / count
    ends = np.argwhere(np.triu(rng.uniform(size=(count, count)) < share, 1))
    ends = np.concatenate([ends, ends[:, ::-1]])
    train = np.tile(rng.uniform(size=len(ends) // 2) < 0.5, 2)
    return kb.Graph(
        count,
        senders=ends[:, 0],
        receivers=ends[:, 1],
        node={"feature": np.eye(groups)[group] + rng.normal(0, 0.7, (count, groups))},
        edge={"train_mask": train, "test_mask": ~train},
        label=group[ends[:, 0]] != group[ends[:, 1]],
        label_level="edge",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.short:
        options.nodes, options.epochs = 300, 30
    graph = block_model(np.random.default_rng(options.seed), options.nodes)
    test = graph.edge["test_mask"].astype(bool)
    print(f"{graph.num_nodes} nodes, {graph.num_edges} edges, {test.sum()} to test")

    keras.utils.set_random_seed(options.seed)
    backbone = models.GCNBackbone({"feature": {"features": 4}}, hidden_dim=32)
    task = models.EdgeClassifier(
        backbone, 2, symmetric=True, class_names=["within", "between"]
    )
    task.compile(keras.optimizers.Adam(0.01), metrics=["accuracy", "AUC"])
    task.fit(graph, mask="train_mask", epochs=options.epochs, verbose=0)
    scores = task.evaluate(graph, mask="test_mask", verbose=0, return_dict=True)
    share = max(graph.label[test].mean(), 1 - graph.label[test].mean())
    print(f"accuracy {scores['accuracy']:.3f}, of the larger class {share:.3f}")
    print(f"area under the ROC curve {scores['AUC']:.3f}")
    names = task.predict_labels(graph)[0]
    edge = int(np.flatnonzero(test)[0])
    ends = graph.senders[edge], graph.receivers[edge]
    print(f"edge from node {ends[0]} to node {ends[1]}: {names[edge]}")


if __name__ == "__main__":
    main()
