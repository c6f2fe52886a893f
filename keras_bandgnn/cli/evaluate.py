"""Scores a model on held-out graphs, compared with simple baselines.

The data is a store, or any input of `bandgnn compile`. A regression model reads a
store, or a data set by its name with --path and --split; one over atoms, or an ensemble
of such, a file or folder of structures, too.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from keras_bandgnn.cli import (
    data_sets,
    potential_options,
    report,
    structures,
    train_regression,
)
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.training_callbacks import progress_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("model", help="folder or name of a preset")
    data_sets.add_data(parser, "a store, source code, or the name of a data set")
    shared.add_reading(parser)
    potential_options.add_keys(parser.add_argument_group("structures"))
    shared.delay_defaults(parser, (*shared.READING, *potential_options.KEYS))


def check_kind(task, options: argparse.Namespace) -> None:
    """Reject unsupported models, and options that the model does not read."""
    from keras_bandgnn.models import BugLocalizer, GraphRegressor, NodeSelector

    keys = [name for name in potential_options.KEYS if hasattr(options, name)]
    if isinstance(task, NodeSelector):
        names = ("path", "split", "option", *keys)
        unused = dict.fromkeys(names, "regression models")
        reader = "a node selection model"
        advice = "Pass a store or program files."
        if (Path(options.data) / "store.json").is_file():
            unused |= dict.fromkeys(shared.READING, "program files")
            reader = "a store"
            advice = "Leave them out: the graphs of a store are compiled already."
    elif isinstance(task, GraphRegressor):
        unused = dict.fromkeys(shared.READING, "node selection models")
        unused |= dict.fromkeys(keys, "files of structures")
        reader = "a regression model"
        advice = "Pass a store or a data set."
    else:
        advice = f"Call its {options.command}(graphs) in Python."
        if isinstance(task, BugLocalizer):
            advice = (
                f"Run bandgnn check PATH --model {options.model} to find wrong "
                f"variables, or call its {options.command}(functions) in Python."
            )
        raise ValueError(
            "Expected a node selection or regression model. Received: a "
            f"{type(task).__name__}. {advice}"
        )
    shared.reject_unused_options(options, unused, reader, advice)
    shared.fill_defaults(options)


def check_sources(task, paths: Sequence[Path]) -> None:
    """Reject folders of several stores, and models that cannot encode source code."""
    for path in paths:
        if (path / "test" / "store.json").is_file():
            raise ValueError(
                f"Expected a store or program files. Received: {path}, which holds "
                f"several stores. Name one, such as {path / 'test'}."
            )
    if task.preprocessor is None or not task.preprocessor.graph_layers:
        raise ValueError(
            "Expected a model whose preprocessor encodes programs. Received: one "
            "without. Pass a store."
        )


def reading_options(task, options: argparse.Namespace) -> dict:
    """Return the options of `program_graphs` for a task and a command line."""
    return {
        "max_instances": options.max_instances,
        "seed": options.seed,
        "steps": task.backbone.num_steps,
    }


def load_graphs(task, data: Path, options: argparse.Namespace):
    """Return the graphs at a path, compiled for a task."""
    from keras_bandgnn.data import FlatGraphs, open_store
    from keras_bandgnn.preprocessing.program_store import compiled_files
    from keras_bandgnn.programs.program_files import find_programs

    if (data / "store.json").is_file():
        return open_store(data)
    check_sources(task, [data])
    kind, splits = find_programs(data, options.exclude, "none")
    files = [file for split_files in splits.values() for file in split_files]
    encoder, *layers = task.preprocessor.graph_layers
    reading = reading_options(task, options)
    graphs, left_out = [], []
    outcomes = compiled_files(kind, files, encoder, layers, reading, options.processes)
    with report.progress("read") as progress:
        for count, (name, file_graphs, reasons) in enumerate(outcomes, start=1):
            graphs += file_graphs
            left_out += [(name, reason) for reason in reasons]
            progress(count, len(files))
    report.left_out(left_out)
    if not graphs:
        raise ValueError(
            f"Expected at least one variable usage with two candidates in {data}. "
            f"Received: none in {len(files)} files. Choose other files."
        )
    compiled = FlatGraphs.from_graphs(graphs)
    compiled.metadata = {"layers": task.preprocessor.layers_config()}
    return compiled


def score(task, graphs) -> tuple[dict, list]:
    """Predict and print accuracies; return them and the logits."""
    import numpy as np

    from keras_bandgnn.training.selection_report import (
        GUESS_NAMES,
        accuracy_interval,
        trivial_scores,
    )

    logits = task.predict(graphs, callbacks=progress_lines())
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
    for name, correct in scores.items():
        low, high = accuracy_interval(correct)
        rows.append(
            [
                names[name],
                report.percent(correct.mean()),
                f"{report.percent(low)} to {report.percent(high)}",
            ]
        )
    columns = ["", "accuracy", "95 % interval"]
    report.table(f"held-out usages: {len(graphs)}", columns, rows)
    return {name: float(correct.mean()) for name, correct in scores.items()}, logits


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from keras_bandgnn.models import NodeSelector

    task = structures.load_model(options.model)
    if structures.reads_structures(task, [Path(options.data)]):
        structures.check_options(options)
        structures.evaluate(task, options)
        return
    check_kind(task, options)
    if isinstance(task, NodeSelector):
        score(task, load_graphs(task, Path(options.data), options))
    else:
        train_regression.evaluate(task, data_sets.read_graphs(options))
