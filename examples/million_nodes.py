"""Training on a graph of millions of nodes, and the memory that the process holds.

    python examples/million_nodes.py --nodes 2000000
    python examples/million_nodes.py --nodes 2000000 --model graphsage
    python examples/million_nodes.py --short

The graph is a ring in which each node is linked with the four before and the four
behind it, and one link in ten leads elsewhere. Classes are stretches of the ring;
features tell of the class, with noise.

With `--model graphormer` the whole graph is one batch: GraphormerSlim (4 layers, width
64, 8 heads) with attention along the edges. With `--model graphsage` a step has the
sampled neighbours of 4,096 nodes, and `--steps` is the number of epochs. Choose the
backend with KERAS_BACKEND=jax or torch.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import keras_bandgnn as kb

NEAR, CLASSES, FEATURES = 4, 8, 16
# Nodes whose links are drawn together.
_BLOCK = 1 << 18


def ring(count: int, seed: int = 0, rewired: float = 0.1) -> kb.Graph:
    """A ring of `count` nodes of degree 8, of whose links some lead elsewhere."""
    rng = np.random.default_rng(seed)
    ends = np.empty((2, NEAR * count), np.int32)
    label = np.arange(count) * CLASSES // count
    feature = np.empty((count, FEATURES), np.float32)
    # For each class the mean of its features.
    center = rng.normal(size=(CLASSES, FEATURES))
    for first in range(0, count, _BLOCK):
        node = np.arange(first, min(first + _BLOCK, count))
        near = (node[:, None] + np.arange(1, NEAR + 1)) % count
        far = rng.integers(0, count, near.shape)
        other = np.where(rng.random(near.shape) < rewired, far, near)
        rows = slice(NEAR * first, NEAR * (node[-1] + 1))
        ends[:, rows] = np.repeat(node, NEAR), other.ravel()
        noise = rng.normal(scale=2.0, size=(len(node), FEATURES))
        feature[node] = center[label[node]] + noise
    # Each link leads both ways.
    senders, receivers = np.concatenate([ends, ends[::-1]], axis=1)
    return kb.Graph(
        count,
        senders,
        receivers,
        node={"feature": feature},
        label=label,
        label_level="node",
    )


class Watch(keras.callbacks.Callback):
    """Prints the time of each part, and the memory that the process holds."""

    def __init__(self):
        super().__init__()
        self._start = time.perf_counter()

    def lap(self, part: str) -> None:
        """Print what was spent since the last call."""
        now = time.perf_counter()
        seconds, self._start = now - self._start, now
        held, peak = memory()
        print(f"{part:24}{seconds:8.1f} s{held:8.2f} GB{peak:8.2f} GB", flush=True)

    def on_train_batch_begin(self, batch, logs=None):
        """Time the step alone."""
        if not batch:
            self.lap("first batch")

    def on_train_batch_end(self, batch, logs=None):
        """Print a step; the first one includes compiling."""
        loss = (logs or {})["loss"]
        self.lap(f"step {batch + 1}, loss {loss:.4f}")


def memory() -> tuple[float, float]:
    """Return the GB (10^9 bytes) that the process holds, and has held at most."""
    try:
        with open("/proc/self/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        now, most = (int(fields[k].split()[0]) for k in ("VmRSS", "VmHWM"))
        return now * 1024e-9, most * 1024e-9
    except OSError:
        import resource

        # Bytes on macOS, elsewhere KiB.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit * 1e-9
        return peak, peak


def graphormer(options, watch: Watch) -> None:
    """Train GraphormerSlim on all nodes at once, with attention along edges."""
    graph = ring(options.nodes, options.seed)
    watch.lap("graph")
    # TensorFlow stores what gradients read.
    remat = not options.no_remat and keras.backend.backend() != "tensorflow"
    inputs = {"feature": {"features": FEATURES}}
    backbone = kb.models.GraphormerBackbone(inputs, remat=remat)
    task = kb.models.NodeClassifier(backbone, CLASSES)
    watch.lap("model")
    # The caller's graph is not needed once it is a batch.
    for layer in backbone.graph_layers():
        graph = layer(graph)
    watch.lap("pairs that attend")
    batcher = kb.preprocessing.StaticBatcher(1, "64")
    loader = kb.preprocessing.GraphLoader([graph], batcher, backbone.auto_plan())
    del graph
    watch.lap("loader")
    task.fit(loader, epochs=options.steps, verbose=0, callbacks=[watch])


def graphsage(options, watch: Watch) -> None:
    """Train a GraphSAGE on sampled neighbours, and predict for all nodes."""
    graph = ring(options.nodes, options.seed)
    watch.lap("graph")
    inputs = {"feature": {"features": FEATURES}}
    backbone = kb.models.SAGEBackbone(inputs, 64, num_layers=2, norm=None)
    task = kb.models.NodeClassifier(backbone, CLASSES)
    watch.lap("model")
    sampler = kb.preprocessing.NeighborSampler([8, 8], min(4096, options.nodes // 8))
    loader = task.loader(graph, shuffle=True, sampler=sampler)
    watch.lap("loader")
    task.fit(loader, epochs=options.steps, verbose=0)
    watch.lap(f"epochs of {len(loader)} steps")
    logits = task.predict_by_layer(graph)[0]
    right = (logits.argmax(-1) == graph.label).mean()
    watch.lap(f"all nodes, {right:.1%} right")


MODELS: dict[str, Callable] = {"graphormer": graphormer, "graphsage": graphsage}


def main() -> None:
    """Train, and print the time and the memory of each part."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="graphormer")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-remat", action="store_true", help="store what gradients read"
    )
    parser.add_argument("--short", action="store_true", help="a few seconds")
    options = parser.parse_args()
    if options.short:
        options.nodes = 2_000
    print(
        f"{options.model}, {options.nodes} nodes, {2 * NEAR * options.nodes} edges, "
        f"{keras.backend.backend()}"
    )
    print(f"{'':24}{'time':>10}{'held':>11}{'peak':>11}")
    keras.utils.set_random_seed(options.seed)
    watch = Watch()
    watch.lap("imports")
    MODELS[options.model](options, watch)
    print(f"peak memory of the process: {memory()[1]:.2f} GB")


if __name__ == "__main__":
    main()
