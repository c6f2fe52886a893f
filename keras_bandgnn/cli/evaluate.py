"""Scores a model on held-out graphs, compared with simple baselines.

The data is a store, or any input of `bandgnn compile`. A regression model reads a
store, or a data set by its name with --path and --split; one over atoms, or an ensemble
of such, a file or folder of structures, too.
"""

import argparse
import os
from pathlib import Path

from keras_bandgnn import plugins
from keras_bandgnn.cli import data_sets, recipes, structures, train_regression
from keras_bandgnn.cli import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("model", help="folder or name of a preset")
    data_sets.add_data(parser, "a store, source code, or the name of a data set")
    shared.add_reading(parser)
    recipes.add_keys(parser.add_argument_group("structures"))
    shared.delay_defaults(parser, (*shared.READING, *recipes.KEYS))


def check_kind(task, options: argparse.Namespace) -> None:
    """Reject unsupported models, and options that the model does not read."""
    from keras_bandgnn.models import BugLocalizer, GraphRegressor, NodeSelector

    keys = [name for name in recipes.KEYS if hasattr(options, name)]
    if isinstance(task, NodeSelector):
        names = ("path", "split", "option", *keys)
        unused = dict.fromkeys(names, "regression models")
        reader = "a node selection model"
        advice = "Pass a store or program files."
        if os.path.isfile(os.path.join(options.data, "store.json")):
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
        usages = plugins.module_of("cli.usages")
        usages.score(task, usages.load_graphs(task, Path(options.data), options))
    else:
        train_regression.evaluate(task, data_sets.read_graphs(options))
