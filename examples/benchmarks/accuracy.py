"""Scores of models under published protocols, beside those in print.

Trains one model on one data set, once per seed or split, as its protocol says: the
official split of ZINC-12k, the public and random splits of Cora and CiteSeer, 20 draws
after Shchur et al. 2018, the ten splits of Platonov et al. 2023, the splits by scaffold
of MoleculeNet. The weights of the best validation score are tested. Prints the mean and
the standard deviation of the test scores beside those of `published.py`; with --results
they are kept in a file, from which `python docs/benchmarks.py` makes the page.
"""

import argparse
import dataclasses
import datetime
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from examples.benchmarks import allocator
from examples.benchmarks.published import PUBLISHED
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

# === Protocols ===


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a data set is split, and what counts.

    Attributes:
        metric: "accuracy", "auc", "mae" or "rmse".
        split: "official", "public", "by class", "shchur", "given" or "scaffold".
        seeds: Seeds, draws or splits to average over.
        name: Name of the data set in `kb.data.load`.
    """

    metric: str
    split: str
    seeds: int
    name: str

    @property
    def level(self) -> str:
        """Whether nodes or graphs are labelled."""
        return "graph" if self.split in ("official", "scaffold") else "node"

    @property
    def higher(self) -> bool:
        """Whether higher scores are better."""
        return self.metric in ("accuracy", "auc")


PROTOCOLS = {
    "zinc": Protocol("mae", "official", 3, "zinc"),
    "cora": Protocol("accuracy", "public", 10, "cora"),
    "citeseer": Protocol("accuracy", "public", 10, "citeseer"),
    "cora_by_class": Protocol("accuracy", "by class", 5, "cora"),
    "citeseer_by_class": Protocol("accuracy", "by class", 5, "citeseer"),
    **{
        name: Protocol("accuracy", "shchur", 20, name)
        for name in ("amazon_computers", "amazon_photo", "coauthor_cs")
    },
    **{
        name: Protocol("accuracy", "given", 10, name)
        for name in ("roman_empire", "amazon_ratings")
    },
    **{
        name: Protocol("auc", "given", 10, name)
        for name in ("minesweeper", "tolokers", "questions")
    },
    **{
        name: Protocol("rmse", "scaffold", 3, name)
        for name in ("esol", "freesolv", "lipo")
    },
    **{
        name: Protocol("auc", "scaffold", 3, name)
        for name in ("bbbp", "bace", "hiv", "tox21")
    },
}


# === Models ===

NODE = {
    "hidden_dim": 64,
    "num_layers": 2,
    "dropout": 0.5,
    "rate": 0.01,
    "decay": 5e-4,
    "epochs": 1000,
    "patience": 100,
}
GRAPH = {
    "hidden_dim": 64,
    "num_layers": 5,
    "dropout": 0.1,
    "rate": 1e-3,
    "decay": 1e-5,
    "epochs": 100,
    "patience": 30,
    "batch": 128,
}
DEEP = {"norm": "batch", "residual": True, "input_dropout": 0.2}
# Deviations from these, by data set and model; "" is every model.
SETTINGS = {
    ("zinc", ""): {
        "hidden_dim": 72,
        "num_layers": 6,
        "dropout": 0.0,
        "epochs": 150,
        "patience": 150,
        "walk": 20,
        "readout": "sum",
        "feed_forward": True,
    },
    # Luo et al. 2024.
    ("cora_by_class", "gcn"): {
        "hidden_dim": 512,
        "num_layers": 3,
        "dropout": 0.7,
        "rate": 1e-3,
        "activation_first": False,
        "first_kernel": True,
    },
    ("citeseer_by_class", "gcn"): {
        "hidden_dim": 512,
        "rate": 1e-3,
        "decay": 1e-2,
        "activation_first": False,
        "first_kernel": True,
    },
}
for _name in ("roman_empire", "amazon_ratings", "minesweeper", "tolokers", "questions"):
    SETTINGS[_name, ""] = {
        **DEEP,
        "num_layers": 8,
        "dropout": 0.2,
        "decay": 0.0,
        "rate": 3e-3,
        "patience": 200,
        "residual": "linear",
    }
# Not options of a backbone.
TRAINING = ("rate", "decay", "epochs", "patience", "batch", "walk", "readout")


def backbones() -> dict[str, tuple[Callable, dict]]:
    """Return model name -> backbone and its own options for nodes."""
    from keras_bandgnn import models

    plain = {"norm": None, "residual": False}
    attention = {"num_heads": 8}
    return {
        "gcn": (models.GCNBackbone, {"last_kernel": False}),
        "gat": (models.GATBackbone, {"attention_dropout": 0.5, **attention}),
        "gatv2": (models.GATv2Backbone, plain),
        "sage": (models.SAGEBackbone, plain),
        "gine": (models.GINEBackbone, {}),
        "gatedgcn": (models.GatedGCNBackbone, {}),
        "pna": (models.PNABackbone, {}),
        "gps": (models.GPSBackbone, {}),
    }


MODELS = ("gcn", "gat", "gatv2", "sage", "gine", "gatedgcn", "pna", "gps")


def settings_of(options: argparse.Namespace) -> dict:
    """Return all settings of a run; those of the command line come last."""
    protocol = PROTOCOLS[options.set]
    found = dict(NODE if protocol.level == "node" else GRAPH)
    if protocol.level == "node":
        found |= backbones()[options.model][1]
    found |= SETTINGS.get((options.set, ""), {})
    found |= SETTINGS.get((options.set, options.model), {})
    if protocol.level == "graph" and options.model in ("gcn", "gat"):
        found |= {"norm": "batch", "residual": True, "activation_first": False}
    for item in options.setting:
        name, _, value = item.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


# === Data ===


def node_graphs(options) -> Iterator:
    """Yield the graph with the masks of one split after the other, and its seed."""
    from keras_bandgnn import data, preprocessing

    protocol = PROTOCOLS[options.set]
    graph = data.load(protocol.name, path=options.path)[0]
    count = options.seeds or protocol.seeds
    if protocol.split == "public":
        for seed in range(count):
            yield graph, seed
        return
    if protocol.split == "by class":
        # One split for all seeds, as in the program of Luo et al.
        split = preprocessing.RandomNodeSplit(train=20, valid=500, test=1000, seed=0)
        graph = split(without_masks(graph))
        for seed in range(count):
            yield next(iter(preprocessing.node_splits(graph))), seed
        return
    if protocol.split == "shchur":
        graph = preprocessing.shchur_splits(without_masks(graph), num_splits=count)
    graphs = preprocessing.node_splits(graph)
    for seed, split in zip(range(count), graphs, strict=False):
        yield split, seed


def without_masks(graph):
    """Return a graph without the splits that its file has."""
    node = {k: v for k, v in graph.node.items() if not k.endswith("_mask")}
    return graph.replace(node=node)


def molecules(options, settings):
    """Return the training, validation and test graphs."""
    from keras_bandgnn import data, preprocessing

    protocol = PROTOCOLS[options.set]
    given = {} if protocol.split == "official" else {"split_by": "scaffold"}
    parts = [
        list(data.load(protocol.name, part, path=options.path, **given))
        for part in ("train", "valid", "test")
    ]
    if protocol.metric == "auc" and parts[0][0].label.size == 1:
        parts = [[g.replace(label=int(g.label.item())) for g in p] for p in parts]
    if settings.get("walk"):
        encode = preprocessing.StructuralEncoding(random_walk=settings["walk"])
        parts = [list(encode(part)) for part in parts]
    return parts


def inputs_of(graphs, level: str, names) -> dict:
    """Return the inputs of an encoder for features: ids in columns, or numbers."""
    found = {}
    for name in names:
        values = [getattr(graph, level)[name] for graph in graphs]
        if values[0].dtype.kind == "f":
            found[name] = {"features": values[0].shape[1]}
        elif values[0].ndim == 1:
            found[name] = {"ids": 1 + max(int(v.max(initial=0)) for v in values)}
        else:
            tops = [v.max(axis=0, initial=0) for v in values]
            found[name] = {
                "columns": [1 + int(t) for t in map(max, zip(*tops, strict=True))]
            }
    return found


# === Training ===


def backbone_of(options, settings, inputs, edge_inputs, num_types):
    """Return the backbone of a run."""
    kind, _ = backbones()[options.model]
    given = {k: v for k, v in settings.items() if k not in TRAINING}
    if edge_inputs and options.model not in ("gcn", "gat"):
        given["edge_inputs"] = edge_inputs
    return kind(inputs, num_edge_types=num_types, **given)


def regularized(backbone, decay: float) -> None:
    """Add the penalty that torch's `weight_decay` is, to the kernels."""
    import keras

    for weight in backbone.trainable_variables if decay else ():
        if weight.path.endswith("kernel"):
            weight.regularizer = keras.regularizers.L2(decay / 2)


def stopping(protocol, settings):
    """Return the callback that keeps the weights of the best validation score."""
    import keras

    return keras.callbacks.EarlyStopping(
        f"val_{protocol.metric}",
        patience=settings["patience"],
        mode="max" if protocol.higher else "min",
        restore_best_weights=True,
    )


def on_nodes(options, settings, graph) -> tuple[float, int]:
    """Train on the nodes of a mask; return the test score and the parameters."""
    import keras

    from keras_bandgnn import models

    protocol = PROTOCOLS[options.set]
    names = [n for n in graph.node if not n.endswith("_mask") and n != "origin"]
    backbone = backbone_of(
        options, settings, inputs_of([graph], "node", names), None, 1
    )
    regularized(backbone, settings["decay"])
    task = models.NodeClassifier(backbone, int(graph.label.max()) + 1)
    metrics = ["accuracy"] if protocol.metric == "accuracy" else ["auc"]
    task.compile(keras.optimizers.Adam(settings["rate"]), metrics=metrics)
    task.fit(
        graph,
        mask="train_mask",
        validation_mask="valid_mask",
        epochs=settings["epochs"],
        callbacks=[stopping(protocol, settings)],
        verbose=0,
    )
    found = task.evaluate(graph, mask="test_mask", verbose=0, return_dict=True)
    return found[protocol.metric], task.count_params()


def on_graphs(options, settings, parts, seed: int) -> tuple[float, int]:
    """Train on graphs; return the test score and the parameters."""
    import keras
    import numpy as np

    from keras_bandgnn import models
    from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor

    protocol = PROTOCOLS[options.set]
    train, valid, test = parts
    every = [*train, *valid, *test]
    node, edge = (
        inputs_of(every, level, getattr(train[0], level)) for level in ("node", "edge")
    )
    num_types = 1 + max(int(g.edge_type.max(initial=0)) for g in every)
    backbone = backbone_of(options, settings, node, edge, num_types)
    regularized(backbone, settings["decay"])
    steps = -(-len(train) // settings["batch"]) * settings["epochs"]
    rate = keras.optimizers.schedules.CosineDecay(
        1e-6,
        steps - steps // 20,
        warmup_target=settings["rate"],
        warmup_steps=steps // 20,
    )
    options_of_task = {
        "readout": settings.get("readout", "mean"),
        "preprocessor": GraphPreprocessor(batcher=DynamicBatcher(settings["batch"])),
    }
    if protocol.metric == "auc":
        several = np.size(train[0].label) > 1
        task = models.GraphClassifier(
            backbone,
            np.size(train[0].label) if several else 2,
            multi_label=several,
            **options_of_task,
        )
    else:
        task = models.GraphRegressor(backbone, **options_of_task)
    task.compile(
        keras.optimizers.Adam(rate, clipnorm=1.0),
        loss="mae" if protocol.metric == "mae" else "auto",
        metrics=[protocol.metric],
    )
    task.fit(
        train,
        validation_data=valid,
        epochs=settings["epochs"],
        callbacks=[stopping(protocol, settings)],
        seed=seed,
        verbose=2 if options.verbose else 0,
    )
    found = task.evaluate(test, verbose=0, return_dict=True)
    return found[protocol.metric], task.count_params()


# === The command ===


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("set", choices=tuple(PROTOCOLS))
    parser.add_argument("model", choices=MODELS)
    parser.add_argument(
        "--path", type=shared.path, help="file or folder with the data set's files"
    )
    parser.add_argument(
        "--seeds",
        type=shared.positive,
        help="seeds, draws or splits; those of the protocol if omitted",
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the backbone or the training, such as hidden_dim=128",
    )
    parser.add_argument("--results", type=Path, help="file that keeps the scores")
    parser.add_argument("--verbose", action="store_true", help="print every epoch")
    allocator.add_option(parser)


def runs(options, settings) -> Iterator[tuple[int, float, int]]:
    """Yield the seed, the test score and the parameters of each run."""
    import keras

    if PROTOCOLS[options.set].level == "node":
        for graph, seed in node_graphs(options):
            keras.utils.set_random_seed(seed)
            yield seed, *on_nodes(options, settings, graph)
        return
    parts = molecules(options, settings)
    for seed in range(options.seeds or PROTOCOLS[options.set].seeds):
        keras.utils.set_random_seed(seed)
        yield seed, *on_graphs(options, settings, parts, seed)


def keep(path: Path, record: dict) -> None:
    """Put a record into a file, in place of one of the same data set and model."""
    from keras_bandgnn.data.files import atomic_write

    kept = json.loads(path.read_text()) if path.exists() else []
    key = ("set", "model")
    kept = [old for old in kept if any(old[name] != record[name] for name in key)]
    kept = sorted([*kept, record], key=lambda each: [each[name] for name in key])
    with atomic_write(path) as stream:
        stream.write((json.dumps(kept, indent=1) + "\n").encode())


def command_of(options, seeds: int) -> str:
    """Return the command of a run, without the paths of a machine."""
    given = [f"--setting {item}" for item in options.setting]
    words = ["python -m examples.benchmarks accuracy", options.set, options.model]
    return " ".join([*words, f"--seeds {seeds}", *given])


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    allocator.apply(options.allocator)
    import keras
    import numpy as np

    from keras_bandgnn.ops.backend import current as backend

    protocol, settings = PROTOCOLS[options.set], settings_of(options)
    report.say(f"{options.set}, {options.model}: {settings}")
    scores, start = [], time.perf_counter()
    for seed, score, count in runs(options, settings):
        parameters = int(count)
        scores.append(float(score))
        minutes = (time.perf_counter() - start) / 60
        report.say(f"{seed}: {protocol.metric} {score:.4f} after {minutes:.1f} min")
    record = {
        "set": options.set,
        "model": options.model,
        "metric": protocol.metric,
        "split": protocol.split,
        "mean": float(np.mean(scores)),
        "deviation": float(np.std(scores)),
        "scores": [round(score, 5) for score in scores],
        "parameters": parameters,
        "minutes": round(minutes, 2),
        "settings": settings,
        "command": command_of(options, len(scores)),
        "backend": f"{keras.backend.backend()} {backend.version()}",
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }
    times = 100 if protocol.higher else 1
    rows = [
        [
            f"keras-bandgnn, {options.model}",
            f"{times * record['mean']:.3f} ± {times * record['deviation']:.3f}",
            f"{len(scores)} runs, {parameters:,} parameters, {minutes:.1f} min",
        ]
    ]
    rows += [list(row) for row in PUBLISHED.get(options.set, ())]
    report.table(f"{options.set}, {protocol.metric}", ["model", "test", "source"], rows)
    if options.results:
        keep(options.results, record)
