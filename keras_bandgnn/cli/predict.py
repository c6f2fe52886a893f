"""Lists the usages for which the model prefers another variable, or predicts numbers.

A model that picks variables reads Python source (every usage in it, up to
--max-instances per file), program graphs or a store. A model of numbers per graph reads
a store, or the name of a data set with --path and --split.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

from keras_bandgnn.cli import data_sets, option_use, predict_numbers, report
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.evaluate import check_kind, load_graphs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("model", help="folder or name of a preset")
    data_sets.add_data(parser, "a store, source code, or name of a data set")
    parser.add_argument(
        "--top", type=shared.positive, default=10, help="usages, or graphs, to list"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write them, or the numbers of all graphs, as JSON lines",
    )
    shared.add_reading(parser)
    parser.set_defaults(max_instances=1000)
    option_use.defer_defaults(parser, shared.READING)


def show_suspicious(graphs, logits, count: int) -> list:
    """Prints and returns the most suspicious usages."""
    from keras_bandgnn.training.selection_report import suspicious

    graphs = [graphs[i] for i in range(len(graphs))]
    found = suspicious(graphs, logits, count)
    rows = [
        [
            s.filename,
            "?" if s.line is None else s.line,
            s.used,
            report.percent(s.share_used),
            s.suggested,
            report.percent(s.share_suggested),
        ]
        for s in found
    ]
    columns = ["file", "line", "used", "probability", "suggested", "probability"]
    report.table(f"most suspicious of {len(graphs)} usages", columns, rows)
    return found


def check_file(path: Path) -> None:
    """Refuses what cannot be written as the file of `--json`, before any work."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(
            f"Expected a folder for --json {path}. Received: there is none."
        )
    if path.is_dir() or not os.access(folder, os.W_OK):
        found = "a folder" if path.is_dir() else f"no right to write in {folder}"
        raise ValueError(
            f"Expected --json {path} to be a file that can be written. Received: "
            f"{found}."
        )


def run(options: argparse.Namespace) -> None:
    """Runs the command."""
    from keras_bandgnn.data.files import atomic_write
    from keras_bandgnn.models import NodeSelector, Task

    if options.json is not None:
        check_file(options.json)
    task = Task.from_preset(options.model)
    check_kind(task, options)
    if isinstance(task, NodeSelector):
        graphs = load_graphs(task, Path(options.data), options)
        found = show_suspicious(graphs, task.predict(graphs), options.top)
        lines = [dataclasses.asdict(item) for item in found]
    else:
        graphs = data_sets.read_graphs(options)
        lines = predict_numbers.predict_numbers(task, graphs)
        predict_numbers.show_numbers(lines, task.num_targets, options.top)
    if options.json is not None:
        with atomic_write(options.json) as file:
            for line in lines:
                file.write((json.dumps(line, allow_nan=False) + "\n").encode())
