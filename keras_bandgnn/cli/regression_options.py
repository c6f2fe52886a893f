"""Options of `bandgnn train --task regression`, and which models read them."""

import argparse

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
    """Adds the options of regression."""
    group = parser.add_argument_group("regression (--task regression)")
    group.add_argument("--model", choices=(*ATOMISTIC, *TRANSFORMERS), default="schnet")
    data_sets.add_files(group)
    group.add_argument(
        "--graph",
        default="full",
        help="full, radius:5 (angstrom) or knn:24 (neighbours, also in crystals)",
    )
    group.add_argument(
        "--reduce",
        choices=("mean", "sum"),
        default="mean",
        help="of the atoms' outputs: sum for labels that grow with the molecule",
    )
    group.add_argument(
        "--references",
        action="store_true",
        help="learn what a value per element, fitted by least squares, leaves",
    )
    group.add_argument(
        "--cutoff",
        type=shared.above_zero,
        help="angstrom: SchNet as Schuett et al. 2017 and PaiNN with this cutoff",
    )
    group.add_argument("--layers", type=shared.positive, help="T of the model")
    group.add_argument(
        "--attention",
        choices=("sparse", "augment", "periodic", "full"),
        default="sparse",
        help="of graph transformers",
    )
    group.add_argument("--loss", choices=("squared", "huber"), default="squared")
    group.add_argument(
        "--decay",
        choices=("staircase", "cosine", "warmup"),
        default="staircase",
        help="of the rate: in steps of 100,000 as profiled, to 0, or up and down",
    )
    group.add_argument(
        "--batch-size", type=shared.positive, default=32, help="graphs per batch"
    )
    group.add_argument(
        "--patience", type=shared.positive, help="stop after so many epochs of no gain"
    )


def check_options(options: argparse.Namespace) -> None:
    """Refuses options that regression, or its model, does not read."""
    model = options.model or options.deferred["model"]
    unused = {
        name: "--task selection" for name in shared.SELECTION if name not in _MODELS
    }
    for name, models in _MODELS.items():
        if model not in models:
            *most, last = models
            listed = f"{', '.join(most)} or {last}" if most else last
            unused[name] = f"--model {listed}"
    advice = ""
    if options.cutoff is not None and model == "mpeu":
        advice = "Limit the edges with --graph radius:R."
    shared.refuse(options, unused, f"--task regression --model {model}", advice)
