"""Watches training and draws its figures: curves, confusions, errors, embeddings, fill.

Classifies random graphs by their family and predicts two of their properties, with
graphs per second, fill and compilations in the logs.

    python examples/monitoring.py --out docs/figures
    python examples/monitoring.py --short

Needs matplotlib: pip install "keras-bandgnn[plot]". Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

import keras_bandgnn as kb
from keras_bandgnn import models, plotting, preprocessing, training

FAMILIES = ("ring", "ladder", "grid", "random tree", "hubs")
TARGETS = ("mean distance", "spectral radius")
MAX_DEGREE = 12


def edges_of(family: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """Edges [E, 2] of a graph of a family, each in one direction."""
    nodes = np.arange(size)
    if family == "ring":
        return np.stack([nodes, (nodes + 1) % size], 1)
    if family in ("ladder", "grid"):
        width = 2 if family == "ladder" else int(np.sqrt(size))
        right = nodes[(nodes % width < width - 1) & (nodes + 1 < size)]
        down = nodes[nodes + width < size]
        ends = np.concatenate([right + 1, down + width])
        return np.stack([np.concatenate([right, down]), ends], 1)
    if family == "random tree":
        return np.array([(rng.integers(n), n) for n in range(1, size)])
    # Each new node chooses the end of an edge: large hubs grow.
    ends = [0]
    for node in range(1, size):
        ends += [int(rng.choice(ends)), node]
    return np.array(ends[1:]).reshape(-1, 2)


def random_graph(label: int, rng: np.random.Generator) -> kb.Graph:
    """A graph of a family, some edges of which are moved, with shuffled nodes."""
    size = int(rng.integers(12, 48))
    ends = edges_of(FAMILIES[label], size, rng)
    moved = rng.uniform(size=len(ends)) < rng.uniform(0, 0.5)
    ends[moved, 1] = rng.integers(0, size, moved.sum())
    ends = rng.permutation(size)[ends[ends[:, 0] != ends[:, 1]]]
    senders, receivers = np.concatenate([ends, ends[:, ::-1]]).T
    degree = np.bincount(receivers, minlength=size)
    kind = np.minimum(degree, MAX_DEGREE)
    return kb.Graph(size, senders, receivers, node={"degree": kind}, label=label)


def properties(graph: kb.Graph) -> np.ndarray:
    """The mean distance of connected nodes, and the largest eigenvalue."""
    shape = graph.num_nodes, graph.num_nodes
    ones = np.ones(len(graph.senders))
    adjacency = coo_array((ones, (graph.receivers, graph.senders)), shape).tocsr()
    distance = shortest_path(adjacency, unweighted=True)
    near = distance[np.isfinite(distance) & (distance > 0)]
    return np.array([near.mean(), np.linalg.eigvalsh(adjacency.toarray())[-1]])


def backbone(name: str, width: int) -> models.Backbone:
    inputs = {"degree": MAX_DEGREE + 1}
    if name == "GCN":
        return models.GCNBackbone(inputs, width, num_layers=3)
    return models.GATBackbone(inputs, width, num_layers=3, num_heads=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--graphs", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder")
    options = parser.parse_args()
    width = 48
    if options.short:
        options.epochs, options.graphs, width = 2, 150, 16
    options.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    graphs = [random_graph(i % len(FAMILIES), rng) for i in range(options.graphs)]
    fifth = len(graphs) // 5
    train, test = graphs[fifth:], graphs[:fifth]

    def save(name: str, figure) -> None:
        path = options.out / f"{name}.png"
        figure.savefig(path, dpi=110)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")

    histories = {}
    for name in ("GCN", "GAT"):
        task = models.GraphClassifier(backbone(name, width), len(FAMILIES))
        task.compile(keras.optimizers.Adam(2e-3))
        # The log has what the monitor adds: graphs per second, fill, compilations.
        log = options.out / f"{name}.csv"
        callbacks = [
            training.ThroughputMonitor(),
            training.GraphProgressBar(),
            keras.callbacks.CSVLogger(log),
        ]
        task.fit(
            train,
            validation_data=test,
            epochs=options.epochs,
            callbacks=callbacks,
            verbose=2,
        )
        histories[name] = log
    labels = [graph.label for graph in test]
    save("history", plotting.plot_history(histories))
    figure = plotting.plot_confusion_matrix(labels, task.predict(test), FAMILIES)
    save("confusion_matrix", figure)
    states = task.embed(test, level="graph")
    save("embeddings", plotting.plot_embeddings(states, labels, class_names=FAMILIES))

    numbers = [graph.replace(label=properties(graph)) for graph in graphs]
    task = models.GraphRegressor(
        backbone("GCN", width),
        num_targets=len(TARGETS),
        normalizer=preprocessing.TargetNormalizer("graph"),
    )
    task.compile(keras.optimizers.Adam(2e-3))
    task.fit(numbers[fifth:], epochs=options.epochs, verbose=0)
    true = [graph.label for graph in numbers[:fifth]]
    predicted = task.predict(numbers[:fifth])
    save("parity", plotting.plot_parity(true, predicted, TARGETS, ["edges", None]))

    batchers = {
        "DynamicBatcher(32)": preprocessing.DynamicBatcher(32),
        "StaticBatcher(32)": preprocessing.StaticBatcher(32, "constant"),
    }
    loaders = {
        name: preprocessing.GraphLoader(train, each) for name, each in batchers.items()
    }
    save("batch_fill", plotting.plot_batch_fill(loaders))

    ordered = [preprocessing.RCMKCompile(16)(graph) for graph in train]
    sizes = {
        "nodes": np.array([graph.num_nodes for graph in train]),
        "before": np.array([graph.bandwidth for graph in train]),
        "after": np.array([graph.bandwidth for graph in ordered]),
    }
    save("bandwidths", plotting.plot_bandwidths(sizes))


if __name__ == "__main__":
    main()
