"""Steps and seconds to a target accuracy against the batch size.

The question of Figure 3 of Balog et al. 2019 at a size that a small machine allows: do
larger batches need fewer steps, and what do dropped edges or graphs cost?

    python examples/large_batch_study.py --store data/    # what `bandgnn compile` wrote
    python examples/large_batch_study.py                  # synthetic graphs
    python examples/large_batch_study.py --short

Modes: `exact` all edges of all nodes; `reachable` the same after `ReachabilityFilter`,
which changes no output; `lossy` the edges inside a band, the rest dropped; `filtered`
all edges of the graphs whose bandwidth is below the block size. Validation is always on
all graphs with all edges. For each batch size and mode some learning rates are tried,
as in the paper, and the one that gets there in the fewest steps counts. Stored graphs
were filtered by reachability when they were compiled: there `exact` is `reachable`.

Results go to OUT/results.json after each run, and the same command goes on where it
was; then come a table and, with --figure, a figure. A run ends at its target, so that a
lower --target can be looked at afterwards.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import preprocessing
from keras_bandgnn.plans import Banded, Plan, Segment
from keras_bandgnn.training import TimeLimit, TimeToAccuracy

MODES = ("exact", "reachable", "lossy", "filtered")


# === Data ===


def made_graph(rng: np.random.Generator, size: int) -> kb.Graph:
    """A chain, with edges to two candidates: one from a clue, one from a decoy.

    Some of these edges are short enough for a band, and some are not.
    """
    first, second = size // 3, size // 3 + 2
    label = int(rng.integers(2))
    near = rng.random() < 0.7
    clue = first + 4 if near else size - 1 - int(rng.integers(4))
    decoy = clue - 1
    kind = rng.integers(0, 4, size)
    kind[clue], kind[decoy] = 4, 5
    order = rng.permutation(size)
    steps = np.arange(size - 1)
    right, wrong = (first, second)[label], (second, first)[label]
    senders = np.concatenate([steps, steps + 1, [clue, decoy]])
    receivers = np.concatenate([steps + 1, steps, [right, wrong]])
    types = np.repeat([0, 1, 2], [size - 1, size - 1, 2])
    node = {"type": kind[np.argsort(order)]}
    return kb.Graph(
        size,
        order[senders],
        order[receivers],
        edge_type=types,
        node=node,
        candidates=order[[first, second]],
        label=label,
    )


def some_of(options, name: str, rng: np.random.Generator):
    """A store, or as many of its graphs as the options say, drawn at random."""
    store, count = kb.data.open_store(options.store / name), getattr(options, name)
    if not count or count >= len(store):
        return store
    graphs = store.take(np.sort(rng.choice(len(store), count, replace=False)))
    graphs.metadata = store.metadata
    return graphs


def read(options) -> tuple:
    """Training and validation graphs, and whether they are stored ones."""
    rng = np.random.default_rng(0)
    if options.store:
        return *(some_of(options, name, rng) for name in ("train", "valid")), True
    count = 60 if options.short else options.graphs
    sizes = rng.integers(16, 120, count + count // 4)
    graphs = [made_graph(rng, int(size)) for size in sizes]
    return graphs[:count], graphs[count:], False


# === Runs ===


def preprocessor(
    mode: str, batch_size: int, options, stored
) -> preprocessing.GraphPreprocessor:
    """What prepares the training graphs."""
    band = Banded(options.block_size)
    plan = {
        "lossy": Plan(band, rest="drop"),
        "filtered": Plan(Segment(), filter={"bandwidth": options.block_size}),
    }.get(mode, Plan(Segment()))
    if stored:
        layers = stored
    else:
        layers = []
        if mode == "reachable":
            layers.append(preprocessing.ReachabilityFilter(options.steps))
        layers.append(preprocessing.RCMKCompile(options.block_size))
    batcher = preprocessing.DynamicBatcher(batch_size)
    return preprocessing.GraphPreprocessor(layers, batcher, plan)


def run(mode: str, batch_size: int, rate: float, train, valid, options) -> dict:
    """One training: where it crossed the target, and its curve."""
    keras.utils.set_random_seed(options.seed)
    spec = options.spec
    stored = None
    if spec.layers:
        config = {
            "layers": list(spec.layers),
            "batcher": {"class_name": "DynamicBatcher", "config": {}},
            "plan": "auto",
        }
        stored = preprocessing.GraphPreprocessor.from_config(config).graph_layers
    backbone = kb.models.GGNNBackbone(
        spec.inputs,
        options.hidden,
        spec.steps or options.steps,
        num_edge_types=spec.num_edge_types,
    )
    made = preprocessor(mode, batch_size, options, stored)
    task = kb.models.NodeSelector(backbone, made)
    task.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, global_clipnorm=0.1)
    )
    loader = task.loader(train, shuffle=True, seed=options.seed, adapt=True)
    # Weights of every mode are judged on all edges of all graphs.
    made.plan = Plan(Segment())
    watch = TimeToAccuracy(options.target, window=options.window, stop=True)
    task.fit(
        loader,
        validation_data=valid,
        epochs=options.epochs,
        callbacks=[watch, TimeLimit(options.seconds)],
        seed=options.seed,
        verbose=0,
    )
    return {
        "mode": mode,
        "batch_size": batch_size,
        "rate": rate,
        "graphs": int(loader.starts[-1]),
        "curve": [[r["steps"], r["seconds"], r["value"]] for r in watch.curve],
    }


# === Report ===


def crossed(run: dict, options) -> dict:
    """A run with the steps and seconds to the target, and its best value, smoothed."""
    values = [value for *_, value in run["curve"]]
    window = options.window
    smooth = [
        float(np.mean(values[max(0, i - window + 1) : i + 1]))
        for i in range(len(values))
    ]
    at = next((i for i, value in enumerate(smooth) if value >= options.target), None)
    steps, seconds, _ = (None, None, None) if at is None else run["curve"][at]
    found = {"steps": steps, "seconds": seconds, "best": max(smooth, default=None)}
    return {k: v for k, v in run.items() if k != "curve"} | found


def best_of(runs: list[dict]) -> list[dict]:
    """The run of each mode and batch size that reached the target in fewest steps."""
    best: dict = {}
    for row in runs:
        key = (row["mode"], row["batch_size"])
        rank = (row["steps"] or np.inf, -(row["best"] or 0.0))
        if key not in best or rank < best[key][0]:
            best[key] = (rank, row)
    return [row for _, row in best.values()]


def table(rows: list[dict], target: float) -> None:
    """Print steps and seconds to the target."""
    print(f"\nto {100 * target:g} % validation accuracy, smoothed\n")
    print("| mode | graphs | batch size | steps | seconds | rate | best, % |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        steps = "not reached" if row["steps"] is None else row["steps"]
        seconds = "-" if row["seconds"] is None else f"{row['seconds']:.1f}"
        best = "-" if row["best"] is None else f"{100 * row['best']:.1f}"
        print(
            f"| {row['mode']} | {row['graphs']} | {row['batch_size']} | {steps} | "
            f"{seconds} | {row['rate']:g} | {best} |"
        )


def draw(rows: list[dict], path: Path) -> None:
    """Steps and seconds to the target against the batch size, one line per mode."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("steps", "seconds"), strict=True):
        for mode in MODES:
            points = sorted(
                (row["batch_size"], row[name])
                for row in rows
                if row["mode"] == mode and row[name]
            )
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=mode)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlabel("batch size (graphs)")
        axes.set_ylabel(f"{name} to the target")
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--store", type=Path, help="folder with train and valid")
    parser.add_argument("--train", type=int, help="graphs of the store to train on")
    parser.add_argument("--valid", type=int, help="graphs of the store to validate on")
    parser.add_argument("--graphs", type=int, default=1000, help="graphs to make")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128]
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--target", type=float, default=0.78)
    parser.add_argument("--window", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4, help="T")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0, help="per run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("large_batch_study"))
    parser.add_argument("--figure", type=Path, help="such as docs/figures/NAME.png")
    parser.add_argument("--short", action="store_true", help="two runs, to test")
    options = parser.parse_args()
    if options.short:
        options.modes, options.batch_sizes = ["reachable", "lossy"], [16]
        options.rates, options.hidden, options.epochs = [0.3], 8, 1
    return options


def main() -> None:
    from keras_bandgnn.tuning import DatasetSpec

    options = parse()
    train, valid, stored = read(options)
    options.spec = DatasetSpec.of(train, valid)
    if stored and "reachable" in options.modes:
        options.modes = [mode for mode in options.modes if mode != "reachable"]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    runs = json.loads(path.read_text()) if path.is_file() else []
    done = {(row["mode"], row["batch_size"], row["rate"]) for row in runs}
    for batch_size in options.batch_sizes:
        for mode in options.modes:
            for rate in options.rates:
                if (mode, batch_size, rate) in done:
                    continue
                runs.append(run(mode, batch_size, rate, train, valid, options))
                path.write_text(
                    json.dumps(runs, indent=1, default=lambda value: value.tolist())
                )
                print(crossed(runs[-1], options), flush=True)
    rows = best_of([crossed(run, options) for run in runs])
    table(rows, options.target)
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
