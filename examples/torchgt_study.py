"""Graph transformers with full, sparse and interleaved attention, against GCN and GAT.

The experiments of TorchGT (Zhang et al. 2024) at sizes that fit a small machine:

    python examples/torchgt_study.py nodes --data amazon_photo --path FOLDER
    python examples/torchgt_study.py graphs --data zinc --path FOLDER
    python examples/torchgt_study.py tiles --data amazon_photo --path FOLDER
    python examples/torchgt_study.py speed
    python examples/torchgt_study.py --short

`nodes`: classes of nodes (GraphormerSlim and GT; "sparse" and "augment" on the whole
graph, "full" and "periodic" on random sequences of nodes), test accuracy at the best
validation accuracy and seconds per epoch. `graphs`: a number per graph, with curves.
`tiles`: sparse attention whose clusters become dense tiles below a threshold, with the
edges outside dropped as in the paper, and under `ElasticTuner`. `speed`: a training
step of one layer against the length of the sequence. Without --data, the graphs are
synthetic. Results are written to OUT/results.json after each run, and the same command
resumes.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np

import keras_bandgnn as kb
from keras_bandgnn import models
from keras_bandgnn.preprocessing import (
    AttentionPlan,
    ClusterCompile,
    GraphPreprocessor,
    SequenceLoader,
)
from keras_bandgnn.training import ElasticTuner, WarmupDecay

MODES = ("sparse", "augment", "periodic", "full")


# === Data ===


def block_model(seed: int, count: int, classes: int = 4) -> kb.Graph:
    """Nodes of a class are linked more often; their features are noisy."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, count)
    near = label[:, None] == label
    share = np.where(near, 5 * classes, 2 * classes / (classes - 1)) / count
    ends = np.argwhere(np.triu(rng.uniform(size=(count, count)) < share, 1))
    return kb.Graph(
        count,
        senders=np.concatenate([ends[:, 0], ends[:, 1]]),
        receivers=np.concatenate([ends[:, 1], ends[:, 0]]),
        node={"feature": np.eye(classes)[label] + rng.normal(size=(count, classes))},
        label=label,
        label_level="node",
    )


def with_masks(graph: kb.Graph, seed: int) -> kb.Graph:
    """20 nodes of each class to train on and 30 to validate, drawn anew per seed."""
    rng = np.random.default_rng(seed)
    masks = {f"{n}_mask": np.zeros(graph.num_nodes, int) for n in ("train", "valid")}
    for kind in np.unique(graph.label[graph.label >= 0]):
        nodes = rng.permutation(np.flatnonzero(graph.label == kind))
        masks["train_mask"][nodes[:20]] = 1
        masks["valid_mask"][nodes[20:50]] = 1
    masks["test_mask"] = 1 - masks["train_mask"] - masks["valid_mask"]
    return graph.replace(node={**graph.node, **masks})


def made_molecules(count: int, seed: int) -> list:
    """Trees with some rings, whose number tells of types at a distance."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        size = int(rng.integers(8, 24))
        first = np.arange(1, size)
        second = (first * rng.random(size - 1)).astype(int)
        kind = rng.integers(0, 4, size)
        bond = rng.integers(0, 3, size - 1)
        label = float((kind[first] == kind[second]).sum() + 0.2 * (kind == 3).sum())
        graphs.append(
            kb.Graph(
                size,
                np.append(first, second),
                np.append(second, first),
                edge_type=np.append(bond, bond),
                node={"atom": kind},
                label=label,
            )
        )
    return graphs


# === Nodes ===


def backbone_of(name: str, mode: str, features: int, options):
    """The backbone of a run."""
    inputs = {"feature": {"features": features}}
    if name == "gcn":
        return models.GCNBackbone(inputs, 64, 2, dropout=0.5, last_kernel=False)
    if name == "gat":
        return models.GATBackbone(inputs, 64, 8, 2, dropout=0.6, attention_dropout=0.6)
    kind = models.GraphormerBackbone if name == "graphormer" else models.GTBackbone
    return kind(
        inputs,
        num_layers=options.layers,
        attention=mode,
        dropout=options.dropout,
        attention_dropout=options.attention_dropout,
    )


class Keeper(keras.callbacks.Callback):
    """Test accuracy at the best validation accuracy, and seconds of epochs."""

    def __init__(self, task, valid, test, every: int):
        super().__init__()
        self.task, self.valid, self.test, self.every = task, valid, test, every
        self.best, self.score, self.seconds = -1.0, 0.0, []

    def on_epoch_begin(self, epoch, logs=None):
        """Start the clock."""
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        """Stop the clock, and evaluate every few epochs."""
        self.seconds.append(time.perf_counter() - self.start)
        if (epoch + 1) % self.every:
            return
        valid = self.task.evaluate(self.valid, verbose=0, return_dict=True)
        if valid["accuracy"] > self.best:
            self.best = valid["accuracy"]
            test = self.task.evaluate(self.test, verbose=0, return_dict=True)
            self.score = test["accuracy"]


def run_nodes(
    graph: kb.Graph, name: str, mode: str, seed: int, options, rate, threshold=None
) -> dict:
    """One training at a learning rate: test accuracy and seconds per epoch."""
    keras.utils.set_random_seed(seed)
    graph = with_masks(graph, seed)
    features = graph.node["feature"].shape[1]
    backbone = backbone_of(name, mode, features, options)
    task = models.NodeClassifier(backbone, int(graph.label.max()) + 1)
    plan = backbone.auto_plan() or "auto"
    layers = backbone.graph_layers()
    if threshold is not None:
        start = 1.0 if threshold == "elastic" else float(threshold)
        plan = AttentionPlan(options.block_size, start, rest="drop")
        layers.insert(0, ClusterCompile(options.clusters, options.block_size))
    for layer in layers:
        graph = layer(graph)
    long = mode in ("full", "periodic")
    length = min(options.length, graph.num_nodes) if long else graph.num_nodes

    def loader(mask, shuffle=False):
        return SequenceLoader(
            graph,
            length,
            mask=mask,
            plan=plan,
            num_edge_types=1,
            seed=seed,
            shuffle=shuffle,
        )

    train = loader("train_mask", shuffle=True)
    epochs = options.sequence_epochs if long else options.epochs
    if name in ("gcn", "gat"):
        for weight in backbone.trainable_variables:
            if weight.path.endswith("kernel"):
                weight.regularizer = keras.regularizers.L2(5e-4)
        optimizer = keras.optimizers.Adam(rate)
    else:
        steps = epochs * len(train)
        rate = WarmupDecay(rate, steps // 10, steps - steps // 10)
        optimizer = keras.optimizers.AdamW(rate, weight_decay=options.weight_decay)
    task.compile(optimizer)
    every = max(1, options.every * epochs // options.epochs)
    keeper = Keeper(task, loader("valid_mask"), loader("test_mask"), every)
    callbacks: list[keras.callbacks.Callback | ElasticTuner] = [keeper]
    if threshold == "elastic":
        callbacks.append(ElasticTuner(train.set_threshold, delta=options.delta))
    task.fit(train, epochs=epochs, verbose=0, callbacks=callbacks, shuffle=False)
    if threshold == "elastic":
        print(
            "thresholds:", [d["after"] for d in callbacks[1].decisions if "after" in d]
        )
    return {
        "accuracy": keeper.score,
        "valid": keeper.best,
        "seconds": float(np.median(keeper.seconds[2:] or keeper.seconds)),
    }


def tune(graph: kb.Graph, name: str, mode: str, options, results: dict, save) -> None:
    """Validation accuracy at each learning rate, with masks that no run has."""
    tried = results.setdefault("rates", {}).setdefault(f"{name} {mode}", {})
    for rate in options.rates:
        if str(rate) not in tried:
            run = run_nodes(graph, name, mode, 1000, options, rate)
            tried[str(rate)] = run["valid"]
            save()
            print(f"{name} {mode}, rate {rate}: {run['valid']:.3f}", flush=True)


def best_rate(results: dict, key: str, options) -> float:
    """The rate that `tune` found best, or --rate."""
    tried = results.get("rates", {}).get(key, {})
    return float(max(tried, key=tried.get)) if tried else options.rate


def nodes(options, results: dict, save) -> None:
    """Run what is missing, and print the table."""
    if options.data:
        (graph,) = kb.data.load(options.data, path=options.path)
        graph = graph.replace(node={"feature": graph.node["feature"]})
    else:
        graph = block_model(0, 200 if options.short else 1000)
    table = results.setdefault(f"nodes {options.data or 'made'}", {})
    kinds = [
        (name, mode)
        for name in options.models
        for mode in (("edges",) if name in ("gcn", "gat") else options.modes)
    ]
    for name, mode in kinds if options.tune else ():
        tune(graph, name, mode, options, results, save)
    for seed in range(options.seeds):
        for name, mode in kinds:
            key = f"{name} {mode}"
            done = table.setdefault(key, {})
            if str(seed) in done:
                continue
            rate = best_rate(results, key, options)
            done[str(seed)] = run_nodes(graph, name, mode, seed, options, rate)
            save()
            print(key, seed, done[str(seed)], flush=True)
    print(f"\n{options.data or 'synthetic graph'}: {graph.num_nodes} nodes\n")
    print("| model | attention | test accuracy, % | runs | s per epoch |")
    print("| --- | --- | --- | --- | --- |")
    for key, runs in table.items():
        scores = [100 * run["accuracy"] for run in runs.values()]
        seconds = np.median([run["seconds"] for run in runs.values()])
        name, mode = key.split()
        print(
            f"| {name} | {mode} | {np.mean(scores):.1f} ± {np.std(scores):.1f} | "
            f"{len(scores)} | {seconds:.2f} |"
        )


def tiles(options, results: dict, save) -> None:
    """Accuracy and time by the threshold below which clusters become tiles."""
    if options.data:
        (graph,) = kb.data.load(options.data, path=options.path)
        graph = graph.replace(node={"feature": graph.node["feature"]})
    else:
        graph = block_model(0, 200 if options.short else 1000)
    table = results.setdefault(f"tiles {options.data or 'made'}", {})
    for seed in range(options.seeds):
        for threshold in options.thresholds:
            done = table.setdefault(threshold, {})
            if str(seed) in done:
                continue
            chosen = None if threshold == "edges" else threshold
            rate = best_rate(results, "graphormer sparse", options)
            done[str(seed)] = run_nodes(
                graph, "graphormer", "sparse", seed, options, rate, chosen
            )
            save()
            print(threshold, seed, done[str(seed)], flush=True)
    print("\n| threshold | test accuracy, % | runs | s per epoch |")
    print("| --- | --- | --- | --- |")
    for threshold, runs in table.items():
        scores = [100 * run["accuracy"] for run in runs.values()]
        seconds = np.median([run["seconds"] for run in runs.values()])
        mean = f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"
        print(f"| {threshold} | {mean} | {len(scores)} | {seconds:.2f} |")


# === Graphs ===


def graphs(options, results: dict, save) -> None:
    """Train on a number per graph under each kind of attention."""
    if options.data:
        splits = {
            s: kb.data.load(options.data, s, options.path)
            for s in ("train", "valid", "test")
        }
        if options.limit:
            splits["train"] = splits["train"].take(np.arange(options.limit))
    else:
        count = 60 if options.short else 1000
        splits = {
            s: kb.data.FlatGraphs.from_graphs(made_molecules(count, i))
            for i, s in enumerate(("train", "valid", "test"))
        }
    parts = list(splits.values())
    first = parts[0]
    inputs = {
        name: {"ids": max(int(p.node[name].max()) for p in parts) + 1}
        for name, values in first.node.items()
        if values.dtype.kind == "i" and values.ndim <= 2
    }
    types = max(int(p.edge_type.max()) for p in parts) + 2
    largest = max(int(p.num_nodes.max()) for p in parts)
    table = results.setdefault(f"graphs {options.data or 'made'}", {})
    for name in options.models:
        if name in ("gcn", "gat"):
            continue
        for mode in options.modes:
            key = f"{name} {mode}"
            if key in table:
                continue
            keras.utils.set_random_seed(0)
            paths = name == "graphormer"
            kind = models.GraphormerBackbone if paths else models.GTBackbone
            backbone = kind(
                inputs,
                num_layers=options.layers,
                attention=mode,
                num_edge_types=types,
                max_length=largest,
                max_distance=5 if paths else 1,
            )
            preprocessor = GraphPreprocessor(
                backbone.graph_layers(), kb.preprocessing.DynamicBatcher(31)
            )
            task = models.GraphRegressor(backbone, preprocessor=preprocessor)
            loader = task.loader(splits["train"], shuffle=True, adapt=True)
            steps = options.epochs * len(loader)
            rate = WarmupDecay(options.rate, steps // 10, steps - steps // 10)
            task.compile(keras.optimizers.AdamW(rate, weight_decay=1e-5))
            start = time.perf_counter()
            history = task.fit(
                loader,
                validation_data=splits["valid"],
                epochs=options.epochs,
                verbose=0,
            )
            seconds = (time.perf_counter() - start) / options.epochs
            test = task.evaluate(splits["test"], verbose=0, return_dict=True)
            table[key] = {
                "curve": history.history["val_mae"],
                "mae": test["mae"],
                "seconds": seconds,
                "parameters": task.count_params(),
            }
            save()
            print(key, table[key]["mae"], f"{seconds:.1f} s", flush=True)
    print("\n| model | attention | test MAE | best validation MAE | s per epoch |")
    print("| --- | --- | --- | --- | --- |")
    for key, run in table.items():
        name, mode = key.split()
        print(
            f"| {name} | {mode} | {run['mae']:.3f} | {min(run['curve']):.3f} | "
            f"{run['seconds']:.1f} |"
        )
    if options.figures:
        path = options.out / f"curves_{options.data or 'made'}.png"
        draw(table, path, UNITS.get(options.data))


# Units of the labels of data sets.
UNITS = {"zinc": "penalised logP", "esol": "log10 of mol/l"}


def draw(table: dict, path: Path, unit: str | None) -> None:
    """Validation error by epoch, one line per kind of attention."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for key, run in table.items():
        axes.plot(range(1, len(run["curve"]) + 1), run["curve"], label=key)
    label = "validation MAE" + (f" ({unit})" if unit else "")
    axes.set(xlabel="epoch", ylabel=label)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"figure: {path}")


# === Speed ===


def speed(options, results: dict, save) -> None:
    """Milliseconds of a training step of one attention layer, by length."""
    from keras_bandgnn import ops as graph_ops
    from keras_bandgnn.ops import edge_attention, full_attention

    rng = np.random.default_rng(0)
    heads, width, degree = 8, 64, 8
    table = results.setdefault(f"speed {keras.backend.backend()}", {})
    for length in options.lengths:
        if str(length) in table:
            continue
        states = rng.normal(size=(1, length, width)).astype("float32")
        count = length * degree
        sender = rng.integers(0, length, (1, count)).astype("int32")
        receiver = np.sort(rng.integers(0, length, (1, count))).astype("int32")
        bias = np.zeros((1, count, heads), "float32")
        mask = np.ones((1, length), "int32")
        functions = {
            "sparse": lambda x, b, s, r, m: edge_attention(
                x, x, x, b, None, s, r, heads
            )[0],
            "full": lambda x, b, s, r, m: full_attention(x, x, x, m, None, None, heads)[
                0
            ],
        }
        row = {}
        given = [keras.ops.convert_to_tensor(a) for a in (bias, sender, receiver, mask)]
        for name, function in functions.items():
            if name == "full" and length > options.longest:
                continue
            step = graph_ops.compiled_timer_step(
                function, [keras.ops.convert_to_tensor(states)], given
            )
            step()
            times = []
            for _ in range(5):
                start = time.perf_counter()
                step()
                times.append(1e3 * (time.perf_counter() - start))
            row[name] = float(np.median(times))
        table[str(length)] = row
        save()
        print(length, row, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument(
        "part", nargs="?", choices=("nodes", "graphs", "tiles", "speed"), default=None
    )
    parser.add_argument("--data")
    parser.add_argument("--path")
    parser.add_argument("--out", type=Path, default=Path("torchgt_study"))
    parser.add_argument(
        "--models", nargs="+", default=["gcn", "gat", "graphormer", "gt"]
    )
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument(
        "--sequence-epochs", type=int, default=20, help="epochs over sequences"
    )
    parser.add_argument("--every", type=int, default=3, help="epochs per validation")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024, help="nodes of a sequence")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument(
        "--tune", action="store_true", help="choose among --rates by validation"
    )
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[5e-4, 2e-3, 5e-3, 1e-2]
    )
    parser.add_argument("--weight-decay", type=float, default=1e-2)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--attention-dropout", type=float, default=0.0)
    parser.add_argument(
        "--thresholds",
        nargs="+",
        default=["edges", "1", "1.5", "5", "7", "10", "elastic"],
        help="multiples of the density; edges: no tiles; elastic: by ElasticTuner",
    )
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--clusters", type=int, default=8)
    parser.add_argument("--delta", type=int, default=10, help="of ElasticTuner")
    parser.add_argument("--figures", action="store_true", help="needs matplotlib")
    parser.add_argument("--limit", type=int, help="graphs to train on")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--longest", type=int, default=16384, help="of full attention")
    parser.add_argument("--short", action="store_true", help="a run of seconds")
    options = parser.parse_args()
    if options.short:
        options.seeds, options.epochs, options.layers = 1, 2, 1
        options.sequence_epochs = 2
        options.length, options.lengths, options.every = 64, [256], 1
        options.models, options.modes = ["gcn", "graphormer"], ["sparse", "full"]
        options.thresholds = ["5"]
    return options


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}

    def save():
        file.write_text(
            json.dumps(results, indent=1, default=lambda value: value.tolist())
        )

    parts = {"nodes": nodes, "graphs": graphs, "tiles": tiles, "speed": speed}
    chosen = [options.part] if options.part else list(parts)
    for part in chosen:
        parts[part](options, results, save)


if __name__ == "__main__":
    main()
