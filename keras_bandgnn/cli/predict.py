"""Lists the usages for which the model prefers another variable, or predicts numbers.

A model that picks variables reads files and folders of Python source or program
graphs, or one store. It looks at every usage, a few files at a time: memory does not
grow with the input. Files that cannot be read are left out and listed at the end.
A model of numbers per graph reads one store, or the name of a data set with --path
and --split.

Exit code: 0 if no usage was reported (or numbers were predicted), 1 if some were, 2
if the command line or a file was wrong, or there was nothing to check.
"""

import argparse
import json
import sys
from pathlib import Path

from keras_bandgnn.cli import data_sets, option_use, predict_numbers
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.evaluate import check_kind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("model", help="folder or name of a preset")
    parser.add_argument(
        "data",
        nargs="+",
        help="files and folders of source code, a store, or the name of a data set",
    )
    data_sets.add_data_options(parser)
    parser.add_argument(
        "--top", type=shared.positive, default=10, help="usages, or graphs, to list"
    )
    parser.add_argument(
        "--threshold",
        type=shared.probability,
        default=0.0,
        metavar="P",
        help="report usages only if the suggested variable has this probability",
    )
    parser.add_argument(
        "--json",
        type=shared.written_file,
        metavar="FILE",
        help="also write all of them, or the numbers of all graphs, as JSON lines; "
        "- for standard output, and no table",
    )
    shared.add_reading(parser)
    shared.set_max_instances(parser, None, "usages per file, sampled; all if omitted")
    parser.set_defaults(failed=2)
    option_use.defer_defaults(parser, shared.READING)


def show_suspicious(graphs, logits, count: int) -> list:
    """Prints and returns the most suspicious usages."""
    from keras_bandgnn.cli.predict_usages import show
    from keras_bandgnn.training.selection_report import suspicious

    graphs = [graphs[i] for i in range(len(graphs))]
    found = suspicious(graphs, logits, count)
    show(found, len(graphs))
    return found


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    from keras_bandgnn.models import NodeSelector, Task

    options.paths, options.data = [Path(p) for p in options.data], options.data[0]
    task = Task.from_preset(options.model)
    check_kind(task, options)
    picks = isinstance(task, NodeSelector)
    stores = [path for path in options.paths if (path / "store.json").is_file()]
    if len(options.paths) > 1 and (stores or not picks):
        raise ValueError(
            "Expected one store or data set, or any number of files and folders of "
            f"source code. Received: {', '.join(map(str, options.paths))}."
        )
    if picks:
        from keras_bandgnn.cli.predict_usages import predict_usages

        return predict_usages(task, options)
    graphs = data_sets.read_graphs(options)
    lines = predict_numbers.predict_numbers(task, graphs)
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    if options.json == Path("-"):
        sys.stdout.write(text)
        return 0
    predict_numbers.show_numbers(lines, task.num_targets, options.top)
    if options.json is not None:
        from keras_bandgnn.data.files import atomic_write

        with atomic_write(options.json) as file:
            file.write(text.encode())
    return 0
