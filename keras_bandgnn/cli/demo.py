"""Trains on the standard library of this Python and shows what the model finds.

Compiles the library's source (or --source), trains for a few minutes, prints the
accuracy on held-out modules compared with simple baselines, saves the model, and lists
the most suspicious usages in the held-out modules. Needs no download.
"""

import argparse
import sysconfig
from pathlib import Path

from keras_bandgnn.cli import compile as compile_command
from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import report
from keras_bandgnn.cli import train as train_command
from keras_bandgnn.cli.evaluate import score
from keras_bandgnn.cli.predict import print_suspicious_usages

EXCLUDED = ["test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--source",
        type=shared.path,
        help="source code; the standard library if omitted",
    )
    parser.add_argument(
        "--out",
        type=shared.path,
        default=Path("bandgnn-demo"),
        help="folder for the stores and the model",
    )
    parser.add_argument(
        "--top", type=shared.positive, default=10, help="usages to list"
    )
    shared.add_reading(parser)
    shared.add_compiling(parser)
    shared.add_training(parser)
    parser.set_defaults(exclude=EXCLUDED, steps=6, hidden=64, epochs=2, minutes=6.0)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    options.input = options.source or Path(sysconfig.get_path("stdlib"))
    data, model = options.out / "data", options.out / "model"
    options.out, options.split = data, "file"
    options.overwrite = options.restart = True
    report.say(f"source: {options.input}")
    stores = compile_command.compile_splits(options)
    missing = {"train", "valid", "test"} - stores.keys()
    if missing or not all(map(len, stores.values())):
        raise ValueError(
            "Expected enough source files for train, valid and test. Received: "
            f"{ {k: len(v) for k, v in stores.items()} } graphs from {options.input}."
        )
    options.data, options.out = options.input, model
    task = train_command.train(options, stores)
    test = stores["test"]
    if options.shuffle_labels:
        test = train_command.with_random_labels(test, options.seed + 1)
    _, logits = score(task, test)
    if not options.shuffle_labels:
        print_suspicious_usages(test, logits, options.top)
    report.say(f"model saved to {model}; try: bandgnn predict {model} YOUR_FILE.py")
