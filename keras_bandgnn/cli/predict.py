"""Lists usages where the model prefers another variable, or predicts numbers.

A node selection model reads files and folders of Python source or program graphs, or
one store. It checks every usage, a few files at a time, so memory use does not grow
with the input. Unreadable files are skipped and listed at the end. A regression model
reads one store, or a data set by its name with --path and --split; one over atoms, or
an ensemble of such, files and folders of structures, too.

Exit code: 0 if no usage was reported (or numbers were predicted), 1 if some were, 2
for a wrong command line, an unreadable file, or nothing to check.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from keras_bandgnn import plugins
from keras_bandgnn.cli import data_sets, report, structures
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.evaluate import check_kind
from keras_bandgnn.cli.training_callbacks import progress_lines


def predict_numbers(task, graphs) -> list[dict]:
    """Return a dict with `index`, `prediction` and `label` for each graph.

    A label is a number or a list, as in the graphs; None where it is missing.
    """
    import numpy as np

    from keras_bandgnn.data.sources import parts_of

    predictions = task.predict(graphs, callbacks=progress_lines())
    if not all(np.isfinite(row).all() for row in predictions if row is not None):
        raise ValueError(
            "Expected finite predictions. Received: NaN or infinity; the model "
            "diverged in training. Train it again with a smaller learning rate."
        )
    labels = [label for part in parts_of(graphs) for label in _labels(part)]
    return [
        {
            "index": index,
            "prediction": None if row is None else row.tolist(),
            "label": label,
        }
        for index, (row, label) in enumerate(zip(predictions, labels, strict=True))
    ]


def _labels(part) -> Iterator:
    import numpy as np

    if part.label is None or part.label_level != "graph":
        yield from [None] * len(part)
        return
    for label in part.label:
        # NaN marks a missing label; JSON has no NaN.
        yield np.where(np.isnan(label), None, label.astype(object)).tolist()


def print_predictions(lines: list[dict], targets: int, count: int) -> None:
    """Print the first predictions, and the labels if there are any."""
    names = [""] if targets == 1 else [f" {k}" for k in range(targets)]
    shown = lines[:count]
    labelled = any(line["label"] is not None for line in shown)
    columns = ["graph", *(f"prediction{name}" for name in names)]
    columns += [f"label{name}" for name in names] if labelled else []
    rows = []
    for line in shown:
        values = line["prediction"] or [None] * targets
        if labelled:
            label = line["label"]
            values = [*values, *(label if isinstance(label, list) else [label])]
        rows.append([line["index"], *map(_shown, values)])
    report.table(f"first {len(shown)} of {len(lines)} graphs", columns, rows)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("model", help="folder or name of a preset")
    parser.add_argument(
        "data",
        nargs="+",
        help="files and folders of source code or of atomic structures, a store, or "
        "the name of a data set",
    )
    data_sets.add_data_options(parser)
    parser.add_argument(
        "--top",
        type=shared.positive,
        default=10,
        help="number of usages or graphs to list",
    )
    parser.add_argument(
        "--threshold",
        type=shared.probability,
        default=0.0,
        metavar="P",
        help="minimum probability of the suggested variable",
    )
    parser.add_argument(
        "--json",
        type=shared.written_file,
        metavar="FILE",
        help="also write all results as JSON lines; - writes them to standard output "
        "instead of the table",
    )
    shared.add_reading(parser)
    shared.set_max_instances(parser, None, "usages sampled per file; all if omitted")
    parser.set_defaults(failed=2)
    shared.delay_defaults(parser, shared.READING)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from keras_bandgnn.models import NodeSelector

    options.paths, options.data = [Path(p) for p in options.data], options.data[0]
    task = structures.load_model(options.model)
    if structures.reads_structures(task, options.paths):
        structures.check_options(options)
        return structures.predict(task, options)
    check_kind(task, options)
    selects_nodes = isinstance(task, NodeSelector)
    stores = [path for path in options.paths if os.path.isfile(path / "store.json")]
    if len(options.paths) > 1 and (stores or not selects_nodes):
        raise ValueError(
            "Expected one store or data set, or any number of files and folders of "
            f"source code. Received: {', '.join(map(str, options.paths))}. Run the "
            "command once for each."
        )
    if selects_nodes:
        return plugins.module_of("cli.usages").predict_usages(task, options)
    graphs = data_sets.read_graphs(options)
    lines = predict_numbers(task, graphs)
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    if options.json == Path("-"):
        sys.stdout.write(text)
        return 0
    print_predictions(lines, task.num_targets, options.top)
    if options.json is not None:
        from keras_bandgnn.data.files import atomic_write

        with atomic_write(options.json) as file:
            file.write(text.encode())
    return 0
