"""Lists the usages for which the model prefers another variable.

Reads Python source (every usage in it, up to --max-instances per file), program
graphs or a store.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report
from keras_bandgnn.cli.evaluate import load_graphs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("model", type=Path, help="folder of the preset")
    parser.add_argument("data", type=Path, help="source code, program graphs or store")
    parser.add_argument(
        "--top", type=shared.positive, default=10, help="usages to list"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write them as JSON lines"
    )
    shared.add_reading(parser)
    parser.set_defaults(max_instances=1000)


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
    from keras_bandgnn.models import NodeSelector

    if options.json is not None:
        check_file(options.json)
    task = NodeSelector.from_preset(options.model)
    graphs = load_graphs(task, options.data, options)
    found = show_suspicious(graphs, task.predict(graphs), options.top)
    if options.json is not None:
        with atomic_write(options.json) as file:
            for item in found:
                line = json.dumps(dataclasses.asdict(item)) + "\n"
                file.write(line.encode())
