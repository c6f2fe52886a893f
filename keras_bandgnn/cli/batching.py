"""Forecasts which batching algorithm trains fastest on a data set.

DATA is a store, or the name of a public data set such as qm9. Without --model, an
untrained GGNN of --hidden and --layers is used. A few training steps are timed; the
model is not changed.
"""

import argparse

from keras_bandgnn.cli import data_sets, report
from keras_bandgnn.cli import options as shared

ALGORITHMS = ("dynamic", "constant", "64", "power_of_two")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data_sets.add_data(parser)
    group = parser.add_argument_group("training")
    group.add_argument(
        "--batch-size",
        type=shared.positive,
        default=32,
        help="graphs per supergraph, the padding graph included",
    )
    group.add_argument(
        "--steps", type=shared.positive, default=100_000, help="steps to forecast"
    )
    group.add_argument(
        "--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS)
    )
    group.add_argument(
        "--packing", choices=("best_fit", "sequential"), default="best_fit"
    )
    group.add_argument(
        "--criterion",
        choices=("step", "graph"),
        default="step",
        help="rank by time per step, or per graph",
    )
    group.add_argument(
        "--seed", type=shared.natural, default=0, help="seed of the shuffled orders"
    )
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="DIR", help="folder or name of a preset")
    group.add_argument("--hidden", type=shared.positive, default=64, help="state width")
    group.add_argument(
        "--layers", type=shared.positive, default=3, help="T: propagation steps"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import keras

    from keras_bandgnn import models
    from keras_bandgnn.preprocessing.forecast.choose_batcher import choose_batcher

    graphs = data_sets.read_graphs(options)
    if options.model:
        model = models.Task.from_preset(options.model)
    else:
        model = data_sets.make_model(graphs, options.hidden, options.layers)
    choice = choose_batcher(
        graphs,
        model,
        options.batch_size,
        options.steps,
        options.algorithms,
        options.packing,
        criterion=options.criterion,
        seed=options.seed,
    )
    report.say(
        f"{len(graphs):,} graphs, batch size {options.batch_size}, "
        f"{options.steps:,} steps, {keras.backend.backend()}"
    )
    report.say(choice.summary())
