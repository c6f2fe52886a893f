"""Scores of models under published protocols, beside those in print.

Trains one model on one data set, once per seed or split, as its protocol says: the
official split of ZINC-12k, the public and random splits of Cora and CiteSeer, 20 draws
after Shchur et al. 2018, the ten splits of Platonov et al. 2023, the splits by scaffold
of MoleculeNet. The weights of the best validation score are tested. Prints the mean and
the standard deviation of the test scores beside those of `published.py`. With --results
they are kept in a file, from which `python docs/benchmarks.py` makes the page and which
an interrupted run goes on from, trainings on graphs after their last epoch. With
--preset the run of the best validation score is saved with its card and its recipe.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from examples.benchmarks import allocator
from examples.benchmarks.protocols import (
    MODELS,
    PROTOCOLS,
    TRAINING,
    backbones,
    inputs_of,
    is_encoded,
    load_options,
    molecules,
    node_graphs,
    settings_of,
)
from examples.benchmarks.published import PUBLISHED
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report, training_callbacks


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

    monitor = settings.get("monitor", protocol.metric)
    higher = protocol.higher and monitor != "loss"
    return keras.callbacks.EarlyStopping(
        f"val_{monitor}",
        patience=settings["patience"],
        mode="max" if higher else "min",
        restore_best_weights=True,
    )


class Trained(NamedTuple):
    """A trained task and its scores."""

    task: Any
    valid: float
    test: float


def on_nodes(options, settings, graph) -> Trained:
    """Train on the nodes of a mask."""
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
    stop = stopping(protocol, settings)
    history = task.fit(
        graph,
        mask="train_mask",
        validation_mask="valid_mask",
        epochs=settings["epochs"],
        callbacks=[stop],
        verbose=2 if options.verbose else 0,
    )
    found = task.evaluate(graph, mask="test_mask", verbose=0, return_dict=True)
    valid = history.history[f"val_{protocol.metric}"][stop.best_epoch]
    return Trained(task, valid, found[protocol.metric])


@contextlib.contextmanager
def training_folder(options, settings: dict, seed: int) -> Iterator[Path]:
    """Yield the folder of a training, beside --results, and remove it at its end."""
    if not options.results:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    text = json.dumps([options.set, options.model, settings, seed])
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = options.results.with_name(f"{options.results.name}.partial") / name
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    shutil.rmtree(folder)


def on_graphs(options, settings, parts, seed: int) -> Trained:
    """Train on graphs; go on after the last epoch of an interrupted training."""
    import keras
    import numpy as np

    from keras_bandgnn import models
    from keras_bandgnn.preprocessing import (
        DynamicBatcher,
        GraphPreprocessor,
        SmilesEncoder,
        StructuralEncoding,
    )

    protocol = PROTOCOLS[options.set]
    train, valid, test = parts
    every = [*train, *valid, *test]
    layers = []
    if is_encoded(protocol, train):
        # Its vocabularies: a preset takes atoms that the data set lacks.
        layers = [SmilesEncoder()]
        node, edge = layers[0].inputs(), layers[0].edge_inputs()
    else:
        node, edge = (
            inputs_of(every, level, getattr(train[0], level))
            for level in ("node", "edge")
        )
    walk = settings.get("walk")
    if walk:
        node["random_walk"] = {"features": walk}
        layers += [StructuralEncoding(random_walk=walk)]
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
        "preprocessor": GraphPreprocessor(layers, DynamicBatcher(settings["batch"])),
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
    monitor = f"val_{settings.get('monitor', protocol.metric)}"
    higher = protocol.higher and monitor != "val_loss"
    with training_folder(options, settings, seed) as folder:
        rows = training_callbacks.fit(
            task,
            task.loader(train, shuffle=True, seed=seed, adapt=True),
            valid,
            argparse.Namespace(epochs=settings["epochs"], minutes=None),
            folder,
            monitor,
            "max" if higher else "min",
            settings["patience"],
            verbose=2 if options.verbose else 0,
        )
    scores = [row[monitor] for row in rows]
    best = np.nanargmax(scores) if higher else np.nanargmin(scores)
    found = task.evaluate(test, verbose=0, return_dict=True)
    valid = rows[best][f"val_{protocol.metric}"]
    return Trained(task, valid, found[protocol.metric])


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
    parser.add_argument(
        "--name", help="name of the line in the tables; that of the model if omitted"
    )
    parser.add_argument(
        "--results", type=shared.written_file, help="file that keeps the scores"
    )
    parser.add_argument(
        "--preset",
        type=shared.path,
        help="folder for the run of the best validation score",
    )
    parser.add_argument("--verbose", action="store_true", help="print every epoch")
    allocator.add_option(parser)


def runs(options, settings, first: int) -> Iterator[Trained]:
    """Yield the trained task of each seed from the first one on."""
    import keras

    if PROTOCOLS[options.set].level == "node":
        for graph, seed in node_graphs(options):
            if seed >= first:
                keras.utils.set_random_seed(seed)
                yield on_nodes(options, settings, graph)
        return
    parts = molecules(options, settings)
    for seed in range(first, options.seeds or PROTOCOLS[options.set].seeds):
        keras.utils.set_random_seed(seed)
        yield on_graphs(options, settings, parts, seed)


def kept(path: Path | None) -> list[dict]:
    """Return the records of a file."""
    if not path or not path.exists():
        return []
    try:
        records = json.loads(path.read_text())
        if all({"set", "name", "scores"} <= set(record) for record in records):
            return records
    except (ValueError, TypeError):
        pass
    raise ValueError(
        f"Expected {path} to hold the scores of this command. Received: other content. "
        "Choose another file for --results."
    )


def keep(path: Path, record: dict) -> None:
    """Put a record into a file, in place of one of the same data set and name."""
    from keras_bandgnn.data.files import atomic_write

    def key(each):
        return each["set"], each["name"]

    others = [each for each in kept(path) if key(each) != key(record)]
    with atomic_write(path) as stream:
        records = sorted([*others, record], key=key)
        stream.write((json.dumps(records, indent=1) + "\n").encode())


def interrupted(options, record: dict) -> dict:
    """Return the record of an interrupted run with these settings, or an empty one."""
    given = ("set", "name", "model", "settings", "command", "backend")
    for old in kept(options.results):
        same = all(old[name] == record[name] for name in given)
        if same and len(old["scores"]) < old["runs"]:
            return old
    return {**record, "scores": [], "valid": [], "minutes": 0.0}


def command_of(options, seeds: int) -> str:
    """Return the command of a run, without the paths of a machine."""
    words = ["python -m examples.benchmarks accuracy", options.set, options.model]
    words += [f"--seeds {seeds}"]
    words += [f"--name '{options.name}'"] if options.name else []
    return " ".join([*words, *(f"--setting {item}" for item in options.setting)])


def best_of(record: dict) -> int:
    """Return the seed of the best validation score."""
    best = max if PROTOCOLS[record["set"]].higher else min
    return record["valid"].index(best(record["valid"]))


def card_of(record: dict) -> dict:
    """Return the texts of a preset's card."""
    protocol, seed = PROTOCOLS[record["set"]], best_of(record)
    given = ", ".join(f"{k}={v}" for k, v in record["settings"].items())
    loading = [f'"{protocol.name}"']
    options = load_options(protocol, record["settings"])
    loading += [f'{name}="{value}"' for name, value in options.items()]
    rows = [
        f"- {model}: {value} ({source})"
        for model, value, source in PUBLISHED.get(record["set"], ())
    ]
    mean, runs = score_text(record), len(record["scores"])
    test, valid = (
        score_text({**record, "mean": record[name][seed]}, False)
        for name in ("scores", "valid")
    )
    print_ = ["", "In print:", "", *rows] if rows else []
    return {
        "title": f"{record['name'].upper()}: {protocol.what}.",
        "repository_licence": "apache-2.0",
        "data": f"`kb.data.load({', '.join(loading)})`. Split: {protocol.split}. "
        f"Label: {protocol.what}.",
        "licence": f"Data: {protocol.licence}; the weights are Apache-2.0.",
        "recipe": f"Adam with the weights of the best validation score; {given}.",
        "score": "\n".join(
            [
                f"Test {protocol.metric} {mean}, mean and standard deviation of {runs} "
                f"runs in {record['minutes']:.0f} minutes on {os.cpu_count()} cores. "
                f"These weights: test {test}, validation {valid}.",
                *print_,
            ]
        ),
        "seed": f"{seed}, {record['backend']}",
        "command": f"    {record['command']}",
    }


def recipe_of(record: dict) -> str:
    """Return the text of a recipe, from which train_preset makes the preset again."""
    protocol = PROTOCOLS[record["set"]]
    settings = {k: v for k, v in record["settings"].items() if v is not None}
    lines = [
        f'# Data: as `kb.data.load("{protocol.name}")` reads it.',
        'command = "accuracy"',
        f'arguments = ["{record["set"]}", "{record["model"]}"]',
        f'backend = "{record["backend"].partition(" ")[0]}"',
        "",
        "[options]",
        f"seeds = {record['runs']}",
        "",
        "[options.setting]",
        # Strings, numbers and truth values are written alike in JSON and TOML.
        *(f"{name} = {json.dumps(value)}" for name, value in settings.items()),
    ]
    return "\n".join([*lines, ""])


def score_text(record: dict, deviation: bool = True) -> str:
    """Return the mean of a record, and its deviation, as text."""
    times = 100 if PROTOCOLS[record["set"]].higher else 1
    text = f"{times * record['mean']:.{1 if times > 1 else 3}f}"
    if deviation:
        text += f" ± {times * record['deviation']:.{1 if times > 1 else 3}f}"
    return text


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    allocator.apply(options.allocator)
    import keras
    import numpy as np

    from keras_bandgnn import models
    from keras_bandgnn.ops.backend import current as backend
    from keras_bandgnn.saving.preset_files import check_target

    protocol, settings = PROTOCOLS[options.set], settings_of(options)
    if options.preset:
        check_target(options.preset)
    report.say(f"{options.set}, {options.model}: {settings}")
    total = options.seeds or protocol.seeds
    record = interrupted(
        options,
        {
            "set": options.set,
            "name": options.name or options.model,
            "model": options.model,
            "metric": protocol.metric,
            "split": protocol.split,
            "settings": settings,
            "command": command_of(options, total),
            "backend": f"{keras.backend.backend()} {backend.version()}",
            "python": platform.python_version(),
            "runs": total,
        },
    )
    first, start = len(record["scores"]), time.perf_counter()
    before = record["minutes"]
    for seed, trained in enumerate(runs(options, settings, first), first):
        scores = [*record["scores"], round(float(trained.test), 5)]
        valid = [*record["valid"], round(float(trained.valid), 5)]
        minutes = before + (time.perf_counter() - start) / 60
        record |= {
            "scores": scores,
            "valid": valid,
            "mean": float(np.mean(scores)),
            "deviation": float(np.std(scores)),
            "parameters": int(trained.task.count_params()),
            "minutes": round(minutes, 2),
            "date": datetime.date.today().isoformat(),
        }
        if options.preset and best_of(record) == seed:
            trained.task.save_to_preset(options.preset, "float16")
        if options.results:
            keep(options.results, record)
        report.say(f"{seed}: {protocol.metric} {scores[-1]:.4f}, {minutes:.1f} min")
    if options.preset:
        task = models.Task.from_preset(options.preset)
        task.save_to_preset(options.preset, "float16", card_of(record))
        (Path(options.preset) / "recipe.toml").write_text(recipe_of(record))
    runs_text = f"{len(record['scores'])} runs, {record['parameters']:,} parameters"
    name = f"keras-bandgnn, {record['name']}"
    rows = [[name, score_text(record), f"{runs_text}, {record['minutes']:.1f} min"]]
    rows += [list(row) for row in PUBLISHED.get(options.set, ())]
    report.table(f"{options.set}, {protocol.metric}", ["model", "test", "source"], rows)
