"""Accuracy and time of an epoch on DBLP's four node sets, against a peer.

FOLDER holds the tables of `kb.data.load("dblp", path=FOLDER)`. The areas of authors are
predicted; authors and papers have no features, conferences and terms are embedded
by their numbers. One process trains a model of this library and torch_geometric's, seed
by seed, from the same tables and split (400 authors to train on, 400 to validate on,
drawn once), with one width, depth, rate and number of epochs, and Adam. The weights of
the best validation accuracy are tested. An epoch is a step over the graph and its
validation; times are medians, without those of the first epoch, which compiles.
"""

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

from examples.benchmarks import allocator, figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

MODELS = ("rgcn", "hgt")
_HEADS = 4
_PART = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", type=shared.path, metavar="FOLDER")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=shared.positive, default=5)
    parser.add_argument("--epochs", type=shared.positive, default=150)
    parser.add_argument(
        "--patience", type=shared.positive, help="epochs without a better score"
    )
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=2)
    parser.add_argument("--rate", type=shared.above_zero, default=5e-3)
    parser.add_argument("--no-peer", action="store_true", help="ours alone")
    figures.add_option(parser)
    allocator.add_option(parser, "default")


def with_split(graph):
    """Return the graph with masks of authors, drawn with seed 0."""
    import numpy as np

    authors = np.flatnonzero(graph.node["set"] == list(graph.sets).index("author"))
    order = np.random.default_rng(0).permutation(authors)
    node = dict(graph.node)
    parts = np.split(order, [_PART, 2 * _PART])
    for name, rows in zip(("train", "valid", "test"), parts, strict=True):
        node[f"{name}_mask"] = np.isin(np.arange(graph.num_nodes), rows)
    return graph.replace(node=node)


def inputs_of(graph) -> dict:
    """Return the inputs of a backbone: an embedding of each column of ids."""
    return {
        "sets": {
            name: {key: int(ids.max()) + 1 for key, ids in table.items()}
            for name, table in graph.sets.items()
        }
    }


# === Ours ===


def train_ours(graph, model: str, options) -> dict:
    """Train a model of this library; return its accuracy and times."""
    import keras

    from examples.benchmarks.kgcnn import clock
    from keras_bandgnn import models

    sets = graph.info["edge_sets"]
    shape = {"hidden_dim": options.hidden, "num_layers": options.layers}
    if model == "hgt":
        backbone = models.HGTBackbone(
            inputs_of(graph), **shape, num_heads=_HEADS, edge_sets=sets
        )
    else:
        backbone = models.RGCNBackbone(
            inputs_of(graph), **shape, num_edge_types=len(sets), norm=None
        )
    classes = int(max(graph.label)) + 1
    task = models.NodeClassifier(backbone, classes, node_set="author")
    task.compile(keras.optimizers.Adam(options.rate), metrics=["accuracy"])
    timer = clock()
    best = keras.callbacks.EarlyStopping(
        "val_accuracy",
        patience=options.patience or options.epochs,
        mode="max",
        restore_best_weights=True,
    )
    task.fit(
        graph,
        mask="train_mask",
        validation_mask="valid_mask",
        epochs=options.epochs,
        callbacks=[timer, best],
        verbose=0,
    )
    scores = task.evaluate(graph, mask="test_mask", verbose=0, return_dict=True)
    times = [wall for wall, _ in timer.times]
    return {"score": scores["accuracy"], "times": times, "best": best.best_epoch + 1}


# === The peer's ===


def peer_model(graph, model: str, options) -> tuple[Any, Callable]:
    """Return torch_geometric's model of the graph, and the function of its step.

    The function returns the logits of the authors.
    """
    import numpy as np
    import torch
    import torch_geometric.nn as pyg

    from keras_bandgnn.data.converters.node_sets import to_sets

    parts, sets = to_sets(graph), list(graph.sets)
    counts = {name: int((graph.node["set"] == k).sum()) for k, name in enumerate(sets)}
    ids, nets, width = {}, {}, options.hidden
    for name, table in graph.sets.items():
        (column,) = table.values()
        ids[name] = torch.tensor(column).long()
        nets[f"embed_{name}"] = torch.nn.Embedding(
            int(column.max()) + 1, options.hidden
        )
    classes, width = int(max(graph.label)) + 1, options.hidden
    nets["out"] = torch.nn.Linear(width, classes)
    if model == "hgt":
        ends = {
            key: torch.tensor(part["edge_index"]).long()
            for key, part in parts["edges"].items()
        }
        for k in range(options.layers):
            nets[f"layer_{k}"] = pyg.HGTConv(
                width, width, (sets, list(ends)), heads=_HEADS
            )
    else:
        ends = torch.tensor(np.stack([graph.senders, graph.receivers])).long()
        types = torch.tensor(graph.edge_type).long()
        for k in range(options.layers):
            nets[f"layer_{k}"] = pyg.RGCNConv(width, width, int(types.max()) + 1)
    nets = torch.nn.ModuleDict(nets)
    first = sum(counts[name] for name in sets[: sets.index("author")])

    def logits():
        states = {name: nets[f"embed_{name}"](rows) for name, rows in ids.items()}
        if model == "hgt":
            for k in range(options.layers):
                states = nets[f"layer_{k}"](states, ends)
            return nets["out"](states["author"])
        states = torch.cat(list(states.values()))
        for k in range(options.layers):
            states = nets[f"layer_{k}"](states, ends, types)
            states = states.relu() if k < options.layers - 1 else states
        return nets["out"](states[first : first + counts["author"]])

    return nets, logits


def train_peer(graph, model: str, options) -> dict:
    """Train torch_geometric's model; return its accuracy and times."""
    import torch

    nets, logits = peer_model(graph, model, options)
    authors = graph.node["set"] == list(graph.sets).index("author")
    labels = torch.tensor(graph.label[authors]).long()
    train, valid, test = (
        torch.tensor(graph.node[f"{part}_mask"][authors]).bool()
        for part in ("train", "valid", "test")
    )
    optimizer = torch.optim.Adam(nets.parameters(), options.rate)
    best, epoch, weights, times = -1.0, 0, None, []
    for number in range(1, options.epochs + 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits()[train], labels[train])
        loss.backward()
        optimizer.step()
        score = _accuracy(logits, labels, valid)
        times.append(time.perf_counter() - start)
        if score > best:
            best, epoch, weights = score, number, copy.deepcopy(nets.state_dict())
        if number - epoch >= (options.patience or options.epochs):
            break
    nets.load_state_dict(weights)
    score = _accuracy(logits, labels, test)
    return {"score": score, "times": times, "best": epoch}


def _accuracy(logits: Callable, labels, mask) -> float:
    """Return the share of the authors of a mask whose area is predicted."""
    import torch

    with torch.no_grad():
        return float((logits().argmax(-1) == labels)[mask].float().mean())


# === The command ===


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    allocator.apply(options.allocator)
    import keras_bandgnn as kb

    (graph,) = kb.data.load("dblp", path=options.folder)
    compare(with_split(graph), options)


def compare(graph, options) -> None:
    """Train both libraries' models on a graph with masks; print and write figures."""
    import keras
    import numpy as np

    from keras_bandgnn.optional import optional_import

    trainers = {"keras-bandgnn": train_ours}
    if not options.no_peer:
        optional_import("torch_geometric", "torch_geometric", "the comparison")
        trainers["torch_geometric"] = train_peer
    rows, entries, runs = [], [], {}
    for model in options.models:
        epochs, results = {}, {name: [] for name in trainers}
        for seed in range(options.seeds):
            for name, train in trainers.items():
                keras.utils.set_random_seed(seed)
                result = train(graph, model, options)
                results[name].append(result)
                report.say(f"{model}, seed {seed}, {name}: {result['score']:.4f}")
        for name, runs_of_one in results.items():
            scores = 100 * np.array([result["score"] for result in runs_of_one])
            later = [result["times"][1:] or result["times"] for result in runs_of_one]
            epochs[name] = 1e3 * float(np.median(np.concatenate(later)))
            best = [result["best"] for result in runs_of_one]
            rows.append(
                [
                    f"{model}, {name}",
                    f"{scores.mean():.2f} ± {scores.std():.2f}",
                    f"{epochs[name]:.0f} ms",
                    f"{min(best)} to {max(best)}",
                ]
            )
        peer = epochs.get("torch_geometric")
        entries.append(
            figures.row(f"epoch of {model}", epochs["keras-bandgnn"], peer, "ms")
        )
        runs[model] = results
    head = ["model", "accuracy in %", "epoch", "best epoch"]
    title = f"DBLP, {options.epochs} epochs at most, {keras.backend.backend()}"
    report.table(title, head, rows)
    figures.write(options, entries, runs)
