"""Sequence parallelism: the nodes of a large graph on several devices.

    python examples/sequence_parallel.py --cpu-devices 8 --sequence 4 --batch 2
    python examples/sequence_parallel.py --model graphormer --cpu-devices 4
    torchrun --nproc-per-node 2 examples/sequence_parallel.py             # torch

A model classifies nodes of a graph with communities from noisy features and edges.
Clusters of nodes are adjacent, so that few edges cross devices. `--cpu-devices` splits
the CPU into several devices of JAX, to run without accelerators; the printed losses do
not depend on their number. Sequence parallelism is not available on TensorFlow, where
the script trains on one device.
"""

import argparse
import contextlib
import os
import sys
import time

if "--cpu-devices" in sys.argv:
    count = sys.argv[sys.argv.index("--cpu-devices") + 1]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn.plans import Banded, Plan
from keras_bandgnn.preprocessing import (
    AttentionPlan,
    GraphPreprocessor,
    RCMKCompile,
    StaticBatcher,
)


def communities(seed: int, count: int, classes: int = 4) -> kb.Graph:
    """A ring of communities, each of one class; most edges stay inside."""
    rng = np.random.default_rng(seed)
    size = 50
    label = rng.permutation(-(-count // size) * classes)[: -(-count // size)] % classes
    label = label.repeat(size)[:count]
    sender = rng.integers(0, count, 4 * count)
    receiver = sender // size * size + rng.integers(0, size, 4 * count)
    far = rng.random(4 * count) < 0.02
    receiver[far] = rng.integers(0, count, far.sum())
    receiver = np.minimum(receiver, count - 1)
    return kb.Graph(
        count,
        np.append(sender, receiver),
        np.append(receiver, sender),
        node={"feature": np.eye(classes)[label] + rng.normal(size=(count, classes))},
        label=label,
        label_level="node",
    )


def main(arguments=None) -> dict:
    """Train and print; return the last metrics."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--model", choices=("ggnn", "graphormer"), default="ggnn")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--graphs", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--sequence", type=int, help="devices per graph; all")
    parser.add_argument("--batch", type=int, default=1, help="groups of devices")
    parser.add_argument("--cpu-devices", type=int, help="virtual, of JAX")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args(arguments)
    if options.short:
        options.nodes, options.epochs = 500, 2

    scope, is_main = contextlib.nullcontext(), True
    if keras.backend.backend() == "tensorflow":
        print("no sequence parallelism on TensorFlow: training on one device")
    else:
        devices = int(os.environ.get("WORLD_SIZE", 1))
        if keras.backend.backend() == "jax":
            devices = len(keras.distribution.list_devices())
        sequence = options.sequence or max(1, devices // options.batch)
        distribution = kb.distribution.sequence_parallel(sequence, options.batch)
        scope, is_main = distribution.scope(), distribution.is_main
        if is_main:
            print(f"{options.batch} x {sequence} devices")

    graphs = [communities(seed, options.nodes) for seed in range(options.graphs)]
    inputs = {"feature": {"features": 4}}
    keras.utils.set_random_seed(0)
    with scope:
        if options.model == "ggnn":
            backbone = kb.models.GGNNBackbone(inputs, 32, num_steps=4, num_edge_types=1)
            layers, plan = [RCMKCompile(64)], Plan(Banded(64))
        else:
            backbone = kb.models.GraphormerBackbone(inputs, 32, 2, num_heads=8)
            layers, plan = backbone.graph_layers(), AttentionPlan()
        preprocessor = GraphPreprocessor(layers, StaticBatcher(1, "64"), plan)
        task = kb.models.NodeClassifier(backbone, 4, preprocessor)
        task.compile(keras.optimizers.Adam(1e-2))
        start = time.perf_counter()
        history = task.fit(graphs, epochs=options.epochs, verbose=0)
        seconds = time.perf_counter() - start
        result = {name: values[-1] for name, values in history.history.items()}
    if is_main:
        print(
            f"loss {result['loss']:.4f}, accuracy {result['accuracy']:.3f}, "
            f"{seconds:.1f} s for {options.epochs} epochs"
        )
    return result


if __name__ == "__main__":
    main()
