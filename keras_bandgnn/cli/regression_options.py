"""Options of `bandgnn train --task regression`, and the models that read them."""

import argparse
from collections.abc import Mapping

from keras_bandgnn.cli import data_sets
from keras_bandgnn.cli import options as shared

ATOMISTIC = ("schnet", "mpeu", "painn")
TRANSFORMERS = ("graphormer", "gt")
OPTIONS = (
    "model",
    "path",
    "option",
    "graph",
    "reduce",
    "references",
    "cutoff",
    "layers",
    "attention",
    "loss",
    "decay",
    "batch_size",
    "patience",
)
# Options that only some models read.
_MODELS = {
    "graph": ATOMISTIC,
    "cutoff": ("schnet", "painn"),
    "attention": TRANSFORMERS,
    "dropout": TRANSFORMERS,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of regression."""
    group = parser.add_argument_group("regression (--task regression)")
    group.add_argument(
        "--model",
        choices=(*ATOMISTIC, *TRANSFORMERS),
        default="schnet",
        help="backbone",
    )
    data_sets.add_files(group)
    group.add_argument(
        "--graph",
        default="full",
        help="edges: full, radius:5 (angstrom) or knn:24 (neighbours, also periodic)",
    )
    group.add_argument(
        "--reduce",
        choices=("mean", "sum"),
        default="mean",
        help="readout over the atoms; sum for extensive labels",
    )
    group.add_argument(
        "--references",
        action="store_true",
        help="learn the residual of a value per element, fitted by least squares",
    )
    group.add_argument(
        "--cutoff",
        type=shared.above_zero,
        help="cutoff in angstrom, for PaiNN and for SchNet as in Schuett et al. 2017",
    )
    group.add_argument(
        "--layers", type=shared.positive, help="number of layers or steps T"
    )
    group.add_argument(
        "--attention",
        choices=("sparse", "augment", "periodic", "full"),
        default="sparse",
        help="attention of graph transformers",
    )
    group.add_argument(
        "--loss",
        choices=("squared", "huber"),
        default="squared",
        help="loss of the labels' errors",
    )
    group.add_argument(
        "--decay",
        choices=("staircase", "cosine", "warmup"),
        default="staircase",
        help="learning rate schedule: drops every 100,000 steps, cosine decay to 0, or "
        "linear warmup and decay",
    )
    group.add_argument(
        "--batch-size", type=shared.positive, default=32, help="graphs per batch"
    )
    group.add_argument(
        "--patience",
        type=shared.positive,
        help="stop after this many epochs without improvement",
    )


def check_options(options: argparse.Namespace, unused: Mapping[str, str]) -> None:
    """Reject options that regression, or its model, does not read.

    Args:
        options: The command line.
        unused: Options of other tasks, and what each one is for.
    """
    model = options.model or options.deferred["model"]
    unused = {
        name: "--task selection" for name in shared.SELECTION if name not in _MODELS
    } | dict(unused)
    for name, models in _MODELS.items():
        if model not in models:
            *others, last = models
            names = f"{', '.join(others)} or {last}" if others else last
            unused[name] = f"--model {names}"
    advice = ""
    if options.cutoff is not None and model == "mpeu":
        advice = "Limit the edges with --graph radius:R."
    reader = f"--task regression --model {model}"
    shared.reject_unused_options(options, unused, reader, advice)
