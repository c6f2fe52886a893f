"""The same weights under several plans: what changes and what does not.

A plan determines how the sum over edges is computed. Exact plans give the same result
up to rounding. A plan with `rest="drop"` drops edges, so its result differs.

    python examples/plans.py
    python examples/plans.py --short

Choose the backend with KERAS_BACKEND=jax, torch or tensorflow.
"""

import argparse
import time

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models, preprocessing
from keras_bandgnn.plans import Banded, Grouped, Plan, ReceptiveField, Segment

NUM_TYPES = 4
STEPS = 3
PLANS = {
    "segment": Plan(rest=Segment()),
    "grouped": Plan(rest=Grouped()),
    "grouped, scheduled": Plan(rest=Grouped(), schedule=ReceptiveField(STEPS)),
    "banded S=64, exact": Plan(Banded(64), rest=Segment()),
    "banded S=128, exact": Plan(Banded(128), rest=Segment()),
    "banded S=64, lossy": Plan(Banded(64), rest="drop"),
    "banded S=128, lossy": Plan(Banded(128), rest="drop"),
}


def make_graph(rng: np.random.Generator, low: int, high: int) -> kb.Graph:
    """A ring with short chords and a few long ones, its nodes in random order."""
    num_nodes = int(rng.integers(low, high))
    ring = np.arange(num_nodes)
    short = rng.integers(0, num_nodes, 2 * num_nodes)
    long = rng.integers(0, num_nodes, (2, num_nodes // 10))
    senders = np.concatenate([ring, short, long[0]])
    receivers = np.concatenate(
        [ring + 1, short + rng.integers(-8, 9, short.size), long[1]]
    )
    order = rng.permutation(num_nodes)
    return kb.Graph(
        num_nodes,
        senders=order[senders],
        receivers=order[receivers % num_nodes],
        edge_type=rng.integers(0, NUM_TYPES, senders.size),
        node={"type": rng.integers(0, 10, num_nodes)},
        candidates=rng.permutation(num_nodes)[:5],
        label=0,
    )


def coverage(loader: preprocessing.Loader) -> float:
    """Share of the edges that the plan carries."""
    edges = carried = 0
    for index in range(len(loader)):
        x = loader.build(index, epoch=0)[0]
        if loader.plan.schedule is not None:
            return 1.0  # a leaf, as seen by a candidate
        edges += x["edge"]["mask"].sum()
        num_nodes = x["node"]["mask"].shape[1]
        for key, arrays in x["plan"].items():
            if key.startswith("banded"):
                carried += arrays["mask"].sum()
            else:  # Padded edges have receiver N.
                carried += np.count_nonzero(arrays["receiver"] < num_nodes)
    return float(carried / edges)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    count, low, high = (6, 400, 800) if options.short else (40, 400, 2000)
    graphs = [make_graph(rng, low, high) for _ in range(count)]

    compiler = preprocessing.RCMKCompile(block_size=128)
    compiled = list(compiler(graphs))
    stats = compiler.stats()
    print(
        f"{count} graphs; median bandwidth {np.median(stats['bandwidth_before']):.0f} "
        f"before, {np.median(stats['bandwidth_after']):.0f} after reordering"
    )
    backbone = models.GGNNBackbone(
        {"type": 10}, hidden_dim=32, num_steps=STEPS, num_edge_types=NUM_TYPES
    )
    task = models.NodeSelector(backbone)
    exact = None
    print(f"{'plan':22}{'edges carried':>15}{'difference':>12}{'seconds':>9}")
    for name, plan in PLANS.items():
        task.preprocessor = preprocessing.GraphPreprocessor(
            batcher=preprocessing.DynamicBatcher(graphs=4), plan=plan
        )
        loader = task.loader(compiled)
        task.predict(loader)  # The first call compiles.
        start = time.perf_counter()
        logits = np.concatenate(task.predict(loader))
        seconds = time.perf_counter() - start
        exact = logits if exact is None else exact
        difference = np.abs(logits - exact).max()
        share = f"{100 * coverage(loader):.1f} %"
        print(f"{name:22}{share:>15}{difference:12.1e}{seconds:9.2f}")


if __name__ == "__main__":
    main()
