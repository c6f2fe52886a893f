"""A `NodeSelector` on your own typed graphs, made with NumPy.

Each graph has a slot and four candidates. An edge of type 1 points from the slot to a
middle node, and an edge of type 0 from there to the correct candidate. The other
candidates are connected to nodes that are reached by edges of type 0. So the model must
use the edge types and look two steps away.

    python examples/custom_graphs.py
    python examples/custom_graphs.py --short
    python examples/custom_graphs.py --save my_selector

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models, preprocessing, training

NUM_CANDIDATES = 4


def make_graph(rng: np.random.Generator) -> kb.Graph:
    """One graph: a slot, middle nodes, candidates and a random rest."""
    rest = int(rng.integers(5, 40))
    middle = 1 + np.arange(NUM_CANDIDATES)
    candidates = 1 + NUM_CANDIDATES + np.arange(NUM_CANDIDATES)
    num_nodes = 1 + 2 * NUM_CANDIDATES + rest
    right = int(rng.integers(NUM_CANDIDATES))
    first_rest = num_nodes - rest
    noise = rng.integers(first_rest, num_nodes, (2, 2 * rest))
    senders = np.concatenate([np.zeros(NUM_CANDIDATES, int), middle, noise[0]])
    receivers = np.concatenate([middle, candidates, noise[1]])
    edge_type = np.concatenate(
        [
            np.arange(NUM_CANDIDATES) == right,
            np.zeros(NUM_CANDIDATES, int),
            rng.integers(0, 2, 2 * rest),
        ]
    ).astype(np.int32)
    kind = np.full(num_nodes, 2)
    kind[0], kind[candidates] = 0, 1
    # Shuffled, since node ids of real data carry no information.
    new = rng.permutation(num_nodes)
    features = np.empty(num_nodes, np.int32)
    features[new] = kind
    return kb.Graph(
        num_nodes,
        senders=new[senders],
        receivers=new[receivers],
        edge_type=edge_type,
        node={"kind": features, "position": rng.normal(size=(num_nodes, 2))},
        candidates=new[candidates],
        label=right,
        slot=int(new[0]),
    )


def make_task(hidden_dim: int) -> models.NodeSelector:
    """The model, with the preprocessor that prepares its graphs."""
    preprocessor = preprocessing.GraphPreprocessor(
        [preprocessing.ReachabilityFilter(steps=2), preprocessing.RCMKCompile(64)],
        preprocessing.DynamicBatcher(graphs=32),
    )
    backbone = models.GGNNBackbone(
        {"kind": {"ids": 3}, "position": {"features": 2}},
        hidden_dim=hidden_dim,
        num_steps=2,
        num_edge_types=2,
    )
    return models.NodeSelector(backbone, preprocessor, readout="candidate")


def accuracy(task: models.NodeSelector, graphs: list[kb.Graph]) -> float:
    """Share of the graphs whose right candidate has the largest logit."""
    logits = task.predict(graphs)
    return float(
        np.mean(
            [row.argmax() == g.label for row, g in zip(logits, graphs, strict=True)]
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    parser.add_argument("--save", type=Path, help="folder for the model")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    train = [make_graph(rng) for _ in range(100 if options.short else 2000)]
    test = [make_graph(rng) for _ in range(50 if options.short else 500)]

    task = make_task(hidden_dim=16 if options.short else 32)
    task.compile(training.make_optimizer("adam", learning_rate=1e-2, decay_steps=1000))
    task.fit(train, validation_data=test, epochs=2 if options.short else 15, verbose=2)
    print(f"accuracy on new graphs: {accuracy(task, test):.3f} (chance: 0.250)")

    with tempfile.TemporaryDirectory() as folder:
        path = options.save or Path(folder) / "selector"
        task.save_to_preset(path)
        loaded = models.NodeSelector.from_preset(path)
        pairs = zip(task.predict(test), loaded.predict(test), strict=True)
        largest = max(float(np.abs(a - b).max()) for a, b in pairs)
        print(f"files: {sorted(p.name for p in path.iterdir())}")
        print(f"largest difference after saving and loading: {largest:.1e}")


if __name__ == "__main__":
    main()
