"""Pooling between layers: classes of graphs that few of their nodes decide.

    python examples/pooling.py
    python examples/pooling.py --short

The script makes trees of nodes of random kinds. In each, six nodes are marked, and
joined to a ring or to a path: the class of the graph. It trains one backbone without
pooling, with `TopKPooling` and `SAGPooling` between its layers, and with clusters as
the readout, and says how many of the marked nodes stay. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse

import keras
import numpy as np

import keras_bandgnn as kb

KINDS, MARKED = 4, 6


def graphs_of(count: int, size: int, seed: int = 0) -> list[kb.Graph]:
    """Trees with marked nodes that are a ring, class 1, or a path, class 0."""
    rng = np.random.default_rng(seed)
    graphs = []
    for number in range(count):
        n = int(rng.integers(size, 2 * size))
        child = np.arange(1, n)
        parent = rng.integers(0, child)
        marked = rng.permutation(n)[:MARKED]
        label = number % 2
        ends = np.roll(marked, -1)[: MARKED - 1 + label]
        a = np.concatenate([child, marked[: len(ends)]])
        b = np.concatenate([parent, ends])
        kind = rng.integers(0, KINDS, n)
        kind[marked] = KINDS
        senders, receivers = np.concatenate([[a, b], [b, a]], axis=1)
        graphs.append(kb.Graph(n, senders, receivers, node={"kind": kind}, label=label))
    return graphs


def main() -> None:
    """Train the backbone with each pooling."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--size", type=int, default=30, help="nodes, and up to twice")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--short", action="store_true", help="few graphs and steps")
    arguments = parser.parse_args()
    count = 64 if arguments.short else arguments.graphs
    epochs = 1 if arguments.short else arguments.epochs
    graphs = graphs_of(count, arguments.size)
    test = count // 5
    models: dict[str, dict] = {
        "no pooling": {},
        "TopKPooling": {"pooling": kb.layers.TopKPooling(0.5)},
        "SAGPooling": {"pooling": kb.layers.SAGPooling(0.5)},
        "MinCutPooling": {"readout": kb.layers.MinCutPooling(32, num_clusters=6)},
        "DiffPooling": {"readout": kb.layers.DiffPooling(32, num_clusters=6)},
    }
    for name, options in models.items():
        keras.utils.set_random_seed(0)
        backbone = kb.models.GINEBackbone(
            {"kind": KINDS + 1},
            hidden_dim=32,
            num_layers=3,
            pooling=options.get("pooling"),
        )
        task = kb.models.GraphClassifier(
            backbone, num_classes=2, readout=options.get("readout", "mean")
        )
        task.compile(keras.optimizers.Adam(3e-3), metrics=["accuracy"])
        task.fit(graphs[:-test], epochs=epochs, verbose=0)
        scores = task.evaluate(graphs[-test:], verbose=0, return_dict=True)
        line = f"{name}: accuracy {scores['accuracy']:.2f}"
        if backbone.pools:
            stays = [rows.any(axis=1) for rows in task.embed(graphs[-test:])]
            marked = [graph.node["kind"] == KINDS for graph in graphs[-test:]]
            of_all = np.mean(np.concatenate(stays))
            of_marked = np.mean(np.concatenate(stays)[np.concatenate(marked)])
            line += f"; {of_all:.0%} of the nodes stay, {of_marked:.0%} of the marked"
        print(line)


if __name__ == "__main__":
    main()
