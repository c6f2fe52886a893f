"""Accuracy of classes of graphs with and without pooling, over ten folds.

FOLDER holds the folders of sets of TU Dortmund: FOLDER/PROTEINS is what
`kb.data.load("tu:PROTEINS", path=...)` reads. Only kinds of nodes are features. Each
fold is tested once, after a fixed number of epochs on the nine others: no epoch and no
option is chosen by a test score. Folds have equal shares of the classes, are drawn
once, and are the same for all models, which differ in pooling alone: layers of
`GINEBackbone` with the mean of the nodes that stay, or a readout of clusters.
"""

import argparse
import statistics
import time

from examples.benchmarks import figures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report

MODELS = ("none", "topk", "sag", "mincut", "diff")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", type=shared.path, metavar="FOLDER")
    parser.add_argument("--sets", nargs="+", default=["PROTEINS", "ENZYMES"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--folds", type=shared.positive, default=10)
    parser.add_argument("--epochs", type=shared.positive, default=50)
    parser.add_argument("--hidden", type=shared.positive, default=64)
    parser.add_argument("--layers", type=shared.positive, default=3)
    parser.add_argument("--clusters", type=shared.positive, default=8)
    parser.add_argument("--ratio", type=shared.above_zero, default=0.8)
    parser.add_argument("--rate", type=shared.above_zero, default=1e-3)
    parser.add_argument("--batch", type=shared.positive, default=64)
    parser.add_argument("--seed", type=int, default=0)
    figures.add_option(parser)


def folds_of(labels, count: int, seed: int):
    """Return the fold of each graph, int [n], with equal shares of the classes."""
    import numpy as np

    rng = np.random.default_rng(seed)
    # Graphs of a class follow one another, in random order.
    order = np.lexsort((rng.random(len(labels)), labels))
    fold = np.empty(len(labels), int)
    fold[order] = np.arange(len(labels)) % count
    return fold


def task_of(model: str, num_kinds: int, num_classes: int, options):
    """Return a new task."""
    import keras

    from keras_bandgnn import layers, models

    pooling, readout = None, "mean"
    if model == "topk":
        pooling = layers.TopKPooling(options.ratio)
    elif model == "sag":
        pooling = layers.SAGPooling(options.ratio)
    elif model == "mincut":
        readout = layers.MinCutPooling(options.hidden, options.clusters)
    elif model == "diff":
        readout = layers.DiffPooling(options.hidden, options.clusters)
    backbone = models.GINEBackbone(
        {"type": num_kinds}, options.hidden, options.layers, pooling=pooling
    )
    task = models.GraphClassifier(backbone, num_classes, readout=readout)
    task.compile(keras.optimizers.Adam(options.rate), metrics=["accuracy"])
    return task


def accuracies(graphs, model: str, options) -> tuple[list[float], float]:
    """Return the accuracy of each fold, and the seconds of an epoch.

    Args:
        graphs: `FlatGraphs`.
        model: One of `MODELS`.
        options: The command's options.
    """
    import keras
    import numpy as np

    from keras_bandgnn.preprocessing import DynamicBatcher, GraphPreprocessor

    labels = np.asarray(graphs.label)
    folds = folds_of(labels, options.folds, options.seed)
    num_kinds = int(graphs.node["type"].max()) + 1
    scores, seconds = [], []
    for fold in range(options.folds):
        keras.utils.set_random_seed(options.seed + fold)
        task = task_of(model, num_kinds, int(labels.max()) + 1, options)
        task.preprocessor = GraphPreprocessor([], DynamicBatcher(options.batch))
        begin = time.perf_counter()
        task.fit(
            graphs.take(np.flatnonzero(folds != fold)),
            epochs=options.epochs,
            verbose=0,
            seed=options.seed + fold,
        )
        seconds.append((time.perf_counter() - begin) / options.epochs)
        test = graphs.take(np.flatnonzero(folds == fold))
        result = task.evaluate(test, verbose=0, return_dict=True)
        scores.append(float(result["accuracy"]))
    return scores, statistics.median(seconds)


def run(options) -> None:
    """Train all models on all sets; print and write figures."""
    import numpy as np

    from keras_bandgnn import data

    entries, runs, rows = [], [], []
    for name in options.sets:
        graphs = data.load(f"tu:{name}", path=options.folder / name)
        largest = np.bincount(graphs.label).max() / len(graphs)
        rows.append([name, "largest class", f"{100 * largest:.1f}", "", ""])
        for model in options.models:
            scores, seconds = accuracies(graphs, model, options)
            mean, deviation = statistics.mean(scores), statistics.pstdev(scores)
            report.say(f"{name}, {model}: {100 * mean:.1f} % +- {100 * deviation:.1f}")
            cells = [f"{100 * mean:.1f}", f"{100 * deviation:.1f}", f"{seconds:.2f}"]
            rows.append([name, model, *cells])
            entries.append(figures.row(f"{name}, {model}", mean, None, "", rate=True))
            runs.append({"set": name, "pooling": model, "scores": scores})
    head = ["set", "pooling", "accuracy, %", "deviation of folds", "epoch, s"]
    report.table(f"{options.folds} folds, {options.epochs} epochs", head, rows)
    figures.write(options, entries, runs)
