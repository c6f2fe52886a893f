"""Options of `bandgnn train --task potential`."""

import argparse
from pathlib import Path

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli import regression_options

# They share some options with regression, which has other defaults.
_DEFAULTS = {"model": "painn", "cutoff": 5.0, "batch_size": 8, "learning_rate": 1e-3}
MODELS = ("painn", "schnet")
STRESS_WEIGHT = 1000.0
WEIGHTS = ("energy", "force", "stress")
KEYS = ("energy_key", "forces_key", "stress_key")
OPTIONS = (
    "valid",
    *KEYS,
    "force_weight",
    "stress_weight",
    "atom_energies",
    "zbl",
    "element_cutoffs",
    "ema",
    "plateau",
    "members",
    "schedule",
)
_READ = ("model", "cutoff", "layers", "batch_size", "patience")


def share_or_path(text: str) -> float | Path:
    """Parse a share of the frames, above 0 and below 1, or a path, for argparse."""
    try:
        value = float(text)
    except ValueError:
        return shared.path(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"must be a share between 0 and 1 or a path, is {text}"
        )
    return value


def atom_energy(text: str) -> tuple[str, float]:
    """Parse `H=-13.6`, for argparse."""
    element, sign, value = text.partition("=")
    if not sign or not element:
        raise argparse.ArgumentTypeError(f"must be ELEMENT=EV, is {text!r}")
    return element, shared.finite(value)


def element_cutoff(text: str) -> tuple[str, float]:
    """Parse `H=3.5`, for argparse."""
    element, sign, value = text.partition("=")
    if not sign or not element:
        raise argparse.ArgumentTypeError(f"must be ELEMENT=ANGSTROM, is {text!r}")
    return element, shared.above_zero(value)


def stage(text: str) -> tuple[int, dict[str, float]]:
    """Parse `150:energy=100,force=10`, for argparse."""
    epoch, _, entries = text.partition(":")
    weights: dict[str, float] = {}
    for entry in entries.split(","):
        name, sign, value = entry.partition("=")
        if not sign or name not in WEIGHTS or name in weights:
            raise argparse.ArgumentTypeError(
                "must be EPOCH:NAME=WEIGHT[,NAME=WEIGHT...] with the names "
                f"{', '.join(WEIGHTS)}, is {text!r}"
            )
        weights[name] = shared.finite(value)
        if weights[name] < 0:
            raise argparse.ArgumentTypeError(f"must be at least 0, is {value}")
    return shared.positive(epoch), weights


def add_keys(group) -> None:
    """Add the options that name the labels of structures."""
    group.add_argument("--energy-key", default="energy", help="key of the energies, eV")
    group.add_argument(
        "--forces-key", default="forces", help="column of the forces, eV/Angstrom"
    )
    group.add_argument(
        "--stress-key",
        help="key of stresses, eV/Angstrom^3, or of virials, eV; if omitted stress, "
        "virial or virials",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of potentials."""
    group = parser.add_argument_group(
        "potential (--task potential)",
        "By default with --model painn, --cutoff 5 and --batch-size 8.",
    )
    group.add_argument(
        "--valid",
        type=share_or_path,
        default=0.1,
        metavar="FILE|SHARE",
        help="validation frames: a file, or a share of the frames of DATA",
    )
    add_keys(group)
    group.add_argument(
        "--force-weight",
        type=shared.above_zero,
        default=10.0,
        help="weight of the forces in the loss; that of energies per atom is 1",
    )
    group.add_argument(
        "--stress-weight",
        type=shared.above_zero,
        default=STRESS_WEIGHT,
        help="weight of the stresses in the loss",
    )
    group.add_argument(
        "--schedule",
        type=stage,
        nargs="+",
        default=[],
        metavar="EPOCH:NAME=WEIGHT",
        help="other weights after so many epochs, such as 150:energy=100,force=10; the "
        "weights with the best validation loss are those since the last change",
    )
    group.add_argument(
        "--atom-energies",
        type=atom_energy,
        nargs="+",
        default=[],
        metavar="ELEMENT=EV",
        help="reference energies of atoms; fitted by least squares if omitted",
    )
    group.add_argument(
        "--element-cutoffs",
        type=element_cutoff,
        nargs="+",
        default=[],
        metavar="ELEMENT=ANGSTROM",
        help="cutoffs of elements below --cutoff: messages between two atoms end at "
        "the mean of theirs",
    )
    group.add_argument(
        "--zbl",
        action="store_true",
        help="add the screened repulsion of nuclei at short distances (Ziegler, "
        "Biersack, Littmark 1985)",
    )
    group.add_argument(
        "--ema",
        type=shared.fraction,
        help="momentum of the averages of weights that are validated and saved; 0 for "
        "the weights themselves; if omitted 0.99, or less for runs below 2,000 steps",
    )
    group.add_argument(
        "--plateau",
        type=shared.positive,
        default=10,
        metavar="N",
        help="halve the learning rate after N epochs without improvement",
    )
    group.add_argument(
        "--members",
        type=shared.positive,
        default=1,
        metavar="N",
        help="train an ensemble of N potentials one after another, with the seeds "
        "SEED, SEED + 1 and so on; --minutes is for all of them",
    )


def check_options(options: argparse.Namespace) -> None:
    """Set the defaults of potentials; reject options that they do not read."""
    if options.model is not None and options.model not in MODELS:
        raise shared.OptionError(
            "Expected --model painn or schnet, whose energies are smooth, for --task "
            f"potential. Received: --model {options.model}."
        )
    unused = dict.fromkeys(shared.SELECTION, "--task selection")
    others = set(regression_options.OPTIONS) - set(_READ)
    names = [name for name in regression_options.OPTIONS if name in others]
    unused |= dict.fromkeys(names, "--task regression")
    shared.reject_unused_options(options, unused, "--task potential")
    epochs = [epoch for epoch, _ in options.schedule or ()]
    if epochs != sorted(set(epochs)) or (epochs and epochs[-1] >= options.epochs):
        raise shared.OptionError(
            "Expected --schedule with ascending epochs below --epochs "
            f"{options.epochs}. Received: {' '.join(map(str, epochs))}."
        )
    for name, value in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
