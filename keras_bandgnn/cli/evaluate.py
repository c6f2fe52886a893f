"""Scores a model on held-out graphs, beside trivial guesses.

The data is a store, or whatever `bandgnn compile` reads; for a model of numbers per
graph a store, or the name of a data set with --path and --split.
"""

import argparse
from pathlib import Path

from keras_bandgnn.cli import data_sets, report, train_regression
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.training_callbacks import progress_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("model", help="folder or name of a preset")
    data_sets.add_data(parser, "a store, source code, or name of a data set")
    shared.add_reading(parser)
    shared.defer_defaults(parser, shared.READING)


def check_kind(task, options: argparse.Namespace) -> None:
    """Refuses models of another kind, and options of the other of the two kinds."""
    from keras_bandgnn.models import GraphRegressor, NodeSelector

    if isinstance(task, NodeSelector):
        unused = dict.fromkeys(("path", "split", "option"), "numbers of graphs")
        who, advice = "a model that picks nodes", "It reads a store or program files."
        if (Path(options.data) / "store.json").is_file():
            unused |= dict.fromkeys(shared.READING, "program files")
            who, advice = "a store", "Its graphs are those that were compiled."
    elif isinstance(task, GraphRegressor):
        unused = dict.fromkeys(shared.READING, "a model that picks nodes")
        who = "a model of numbers per graph"
        advice = "It reads a store or a data set."
    else:
        raise ValueError(
            "Expected a model that picks nodes or predicts numbers of graphs. "
            f"Received: a {type(task).__name__}. Call its {options.command}(graphs)."
        )
    shared.refuse(options, unused, who, advice)
    shared.fill_defaults(options)


def load_graphs(task, data: Path, options: argparse.Namespace):
    """The graphs that a path holds, compiled for a task."""
    from keras_bandgnn.data import FlatGraphs, open_store
    from keras_bandgnn.preprocessing.program_store import compiled_files
    from keras_bandgnn.programs.program_files import find_programs

    if (data / "store.json").is_file():
        return open_store(data)
    if (data / "test" / "store.json").is_file():
        raise ValueError(
            f"Expected a store or program files. Received: {data}, which holds "
            f"several stores. Name one, such as {data / 'test'}."
        )
    if task.preprocessor is None or not task.preprocessor.graph_layers:
        raise ValueError(
            "Expected a model whose preprocessor encodes programs. Received: one "
            "without. Evaluate it on a store."
        )
    kind, splits = find_programs(data, options.exclude, "none")
    files = [file for found in splits.values() for file in found]
    encoder, *layers = task.preprocessor.graph_layers
    reading = {
        "max_instances": options.max_instances,
        "seed": options.seed,
        "steps": task.backbone.num_steps,
    }
    graphs, left_out = [], []
    outcomes = compiled_files(kind, files, encoder, layers, reading, options.processes)
    with report.progress("read") as progress:
        for done, (name, found, reasons) in enumerate(outcomes, start=1):
            graphs += found
            left_out += [(name, reason) for reason in reasons]
            progress(done, len(files))
    report.left_out(left_out)
    if not graphs:
        raise ValueError(
            f"Expected at least one variable usage with two candidates in {data}. "
            f"Received: none in {len(files)} files."
        )
    compiled = FlatGraphs.from_graphs(graphs)
    compiled.metadata = {"layers": task.preprocessor.layers_config()}
    return compiled


def score(task, graphs) -> tuple[dict, list]:
    """Predicts and prints accuracies; returns them and the logits."""
    import numpy as np

    from keras_bandgnn.training.selection_report import (
        GUESS_NAMES,
        accuracy_interval,
        trivial_scores,
    )

    logits = task.predict(graphs, callbacks=progress_lines(len(graphs)))
    if not all(np.isfinite(row).all() for row in logits):
        raise ValueError(
            "Expected finite logits. Received: NaN or infinity; the model diverged in "
            "training. Train it again with a smaller learning rate."
        )
    graphs = [graphs[i] for i in range(len(graphs))]
    scores = trivial_scores(graphs)
    scores["model"] = np.array(
        [
            float(np.argmax(row) == int(graph.label))
            for row, graph in zip(logits, graphs, strict=True)
        ]
    )
    names = {**GUESS_NAMES, "model": "model"}
    rows = []
    for name, right in scores.items():
        low, high = accuracy_interval(right)
        rows.append(
            [
                names[name],
                report.percent(right.mean()),
                f"{report.percent(low)} to {report.percent(high)}",
            ]
        )
    columns = ["", "accuracy", "95 % interval"]
    report.table(f"held-out usages: {len(graphs)}", columns, rows)
    return {name: float(right.mean()) for name, right in scores.items()}, logits


def run(options: argparse.Namespace) -> None:
    """Runs the command."""
    from keras_bandgnn.models import NodeSelector, Task

    task = Task.from_preset(options.model)
    check_kind(task, options)
    if isinstance(task, NodeSelector):
        score(task, load_graphs(task, Path(options.data), options))
    else:
        train_regression.evaluate(task, data_sets.read_graphs(options))
