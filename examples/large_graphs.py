"""Node classification on a graph that does not fit a step, with samplers.

    python examples/large_graphs.py
    python examples/large_graphs.py --nodes 1000000 --features 128 --store FOLDER
    python examples/large_graphs.py --short

The graph is made in blocks: ten edges lead into each node, six of them from nodes of
the same class, and features tell of the class, with noise. A GraphSAGE is trained with
each sampler, and predicts by layer, without sampling, for all nodes. With `--store` the
graph is written to FOLDER and read from there, memory-mapped. Choose the backend with
KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import os
import time

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import (
    ClusterSampler,
    NeighborSampler,
    SubgraphSampler,
)

DEGREE, CLASSES = 10, 16
# Nodes that are made together.
_BLOCK = 1 << 17


def block_model(count: int, features: int, seed: int = 0) -> kb.data.FlatGraphs:
    """A graph of `count` nodes whose edges and features tell of their class."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, count)
    by_class = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[by_class], np.arange(CLASSES + 1))
    center = rng.normal(size=(CLASSES, features), scale=features**-0.5)
    senders = np.empty(count * DEGREE, np.int32)
    feature = np.empty((count, features), np.float32)
    for first in range(0, count, _BLOCK):
        node = np.arange(first, min(first + _BLOCK, count))
        kind = label[node].repeat(DEGREE)
        chance = rng.random((2, len(kind)))
        low, high = starts[kind], starts[kind + 1]
        near = by_class[(low + chance[0] * (high - low)).astype(np.int64)]
        far = rng.integers(0, count, len(kind))
        rows = slice(DEGREE * first, DEGREE * (node[-1] + 1))
        senders[rows] = np.where(chance[1] < 0.6, near, far)
        noise = rng.normal(size=(len(node), features))
        feature[node] = center[label[node]] + noise
    split = rng.random(count)
    return kb.data.FlatGraphs(
        num_nodes=[count],
        num_edges=[len(senders)],
        senders=senders,
        receivers=np.arange(count, dtype=np.int32).repeat(DEGREE),
        node={
            "feature": feature,
            "train_mask": (split < 0.1).astype(np.int32),
            "valid_mask": (split > 0.98).astype(np.int32),
        },
        label=label,
        label_level="node",
    )


def main() -> None:
    """Train with each sampler."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fan-outs", type=int, nargs="+", default=[15, 10])
    parser.add_argument(
        "--samplers",
        nargs="+",
        default=["neighbours", "walks"],
        choices=["neighbours", "walks", "clusters"],
    )
    parser.add_argument("--store", help="folder for the graph")
    parser.add_argument("--short", action="store_true", help="a few seconds")
    options = parser.parse_args()
    if options.short:
        options.nodes, options.epochs, options.batch_size = 2000, 2, 64
    keras.utils.set_random_seed(0)
    if options.store is None:
        graph = block_model(options.nodes, options.features)
    else:
        if not os.path.exists(options.store):
            made = block_model(options.nodes, options.features)
            kb.data.write_store(options.store, [made[0]])
        graph = kb.data.open_store(options.store)
    nodes = int(graph[0].num_nodes)
    samplers = {
        "neighbours": NeighborSampler(options.fan_outs, options.batch_size),
        "walks": SubgraphSampler(2 * options.batch_size, walk_length=2, coverage=5),
        # About a thousand nodes each; METIS needs the extra `metis`.
        "clusters": ClusterSampler(max(2, nodes // 1000), batch_size=4),
    }
    width = graph[0].node["feature"].shape[1]
    truth = np.asarray(graph[0].label)
    tested = np.asarray(graph[0].node["valid_mask"]) > 0
    for name in options.samplers:
        backbone = models.SAGEBackbone(
            {"feature": {"features": width}},
            options.hidden,
            len(options.fan_outs),
            norm=None,
        )
        task = models.NodeClassifier(backbone, CLASSES)
        task.compile(keras.optimizers.Adam(3e-3))
        monitor = kb.training.ThroughputMonitor()
        start = time.perf_counter()
        history = task.fit(
            graph,
            mask="train_mask",
            sampler=samplers[name],
            epochs=options.epochs,
            verbose=0,
            callbacks=[monitor],
        ).history
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        logits = task.predict_by_layer(graph)[0]
        spent = time.perf_counter() - start
        right = logits[tested].argmax(-1) == truth[tested]
        print(
            f"{name:12}{seconds:8.1f} s, waiting {history['waiting'][-1]:.1%}, "
            f"accuracy {right.mean():.3f}; all {nodes} nodes in {spent:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
