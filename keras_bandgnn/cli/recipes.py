"""The options of `bandgnn train`, in one table.

An option of training is one entry of `OPTIONS`, under the tasks that read it. The rest
follows from the table: the parser, the defaults of each task, errors for options that
the task does not read, and the recipe of a run (`recipe_files.py`).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_bandgnn.cli import options as shared
from keras_bandgnn.cli.options import above_zero, fraction, path, positive

TASKS = ("selection", "regression", "potential")
ATOMISTIC = ("schnet", "mpeu", "painn")
TRANSFORMERS = ("graphormer", "gt")
STRESS_WEIGHT = 1000.0

# === Values ===


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
    names = ("energy", "force", "stress")
    epoch, _, entries = text.partition(":")
    weights: dict[str, float] = {}
    for entry in entries.split(","):
        name, sign, value = entry.partition("=")
        if not sign or name not in names or name in weights:
            raise argparse.ArgumentTypeError(
                "must be EPOCH:NAME=WEIGHT[,NAME=WEIGHT...] with the names "
                f"{', '.join(names)}, is {text!r}"
            )
        weights[name] = shared.finite(value)
        if weights[name] < 0:
            raise argparse.ArgumentTypeError(f"must be at least 0, is {value}")
    return shared.positive(epoch), weights


# === The table ===


class Option(NamedTuple):
    """An option of training.

    Attributes:
        name: Its name in Python.
        default: The default, or one for each task.
        kind: Choices, or a function that parses a text; `bool` for a flag.
        help: A line of help, without the default.
        models: The models that read it, for `--task regression`; all if empty.
        metavar: Name of the value in the help.
        nargs: "+" for several values, "append" if the option is repeated for them.
    """

    name: str
    default: Any
    kind: Any
    help: str
    models: Sequence[str] = ()
    metavar: str | None = None
    nargs: str | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that read it."""
        return next(tasks for tasks, group in OPTIONS.items() if self in group)

    def default_of(self, task: str) -> Any:
        """Return the default of a task."""
        return self.default[task] if isinstance(self.default, dict) else self.default

    def reader(self) -> str:
        """Return the choice that reads the option, as in `--task regression`."""
        return f"--task {' or '.join(self.tasks)}"

    def add_to(self, group, default: Any) -> None:
        """Add the option to a group of a parser."""
        arguments: dict[str, Any] = {"default": default}
        if self.kind is bool:
            arguments["action"] = "store_true"
        elif self.nargs == "append":
            arguments |= {"action": "append", "metavar": self.metavar}
        elif isinstance(self.kind, tuple):
            arguments["choices"] = self.kind
        else:
            arguments["type"] = None if self.kind is str else self.kind
            arguments |= {"nargs": self.nargs, "metavar": self.metavar}
        text, values = self.help, self.default
        if default is None and "(default" not in text and values not in (None, 0, []):
            if isinstance(values, dict):
                texts = [f"{v} for {k}" for k, v in values.items() if v is not None]
                values = ", ".join(texts)
            text += f" (default: {values})"
        group.add_argument(shared.flag(self.name), help=text, **arguments)


# Options by the tasks that read them.
OPTIONS: dict[tuple[str, ...], tuple[Option, ...]] = {
    TASKS: (
        Option("hidden", 128, positive, "H: state width"),
        Option("epochs", 10, positive, "passes over the training graphs"),
        Option("minutes", None, above_zero, "stop after this many minutes of training"),
        Option(
            "learning_rate",
            {"selection": None, "regression": None, "potential": 1e-3},
            above_zero,
            "(default: 0.002 for adam, 0.3 for sgd, 0.0001 for regression, 0.001 for "
            "potentials)",
        ),
        Option(
            "weights", "float32", ("float32", "float16"), "dtype of the saved weights"
        ),
        Option("title", None, str, "title of the model card"),
    ),
    ("selection",): (
        Option(
            "batch_nodes",
            None,
            positive,
            "nodes per supergraph (default: 49152, 32768, 16384 or 8192, the first of "
            "which an epoch has at least 550 and that fits the memory)",
        ),
        Option("optimizer", "adam", ("adam", "sgd"), "optimizer"),
        Option(
            "label_smoothing",
            0.0,
            fraction,
            "probability spread evenly over the candidates",
        ),
        Option(
            "readout",
            "slot",
            ("slot", "candidate"),
            "score candidates with the slot's state, or without it (as in the paper)",
        ),
        Option(
            "plan",
            "auto",
            str,
            "auto, segment, grouped or banded:S; append ',drop' to drop other edges",
        ),
        Option(
            "precision",
            "float32",
            ("float32", "mixed_bfloat16"),
            "of the states; bfloat16 is faster where processors multiply it",
        ),
        Option(
            "shuffle_labels",
            False,
            bool,
            "train and test on random labels, to detect label leaks",
        ),
    ),
    ("selection", "regression"): (
        Option("dropout", 0.1, fraction, "dropout rate of the states", TRANSFORMERS),
    ),
    ("regression", "potential"): (
        Option(
            "model",
            {"regression": "schnet", "potential": "painn"},
            (*ATOMISTIC, *TRANSFORMERS),
            "backbone",
        ),
        Option(
            "cutoff",
            {"regression": None, "potential": 5.0},
            above_zero,
            "cutoff in angstrom, for PaiNN and for SchNet as in Schuett et al. 2017",
            ("schnet", "painn"),
        ),
        Option("layers", None, positive, "number of layers or steps T"),
        Option(
            "batch_size",
            {"regression": 32, "potential": 8},
            positive,
            "graphs per batch",
        ),
        Option(
            "patience",
            None,
            positive,
            "stop after this many epochs without improvement",
        ),
    ),
    ("regression",): (
        Option("path", None, path, "file or folder with the data set's files"),
        Option(
            "option",
            [],
            str,
            "option of its reader, such as target=u0_atom",
            metavar="NAME=VALUE",
            nargs="append",
        ),
        Option(
            "graph",
            "full",
            str,
            "edges: full, radius:5 (angstrom) or knn:24 (neighbours, also periodic)",
            ATOMISTIC,
        ),
        Option(
            "reduce",
            "mean",
            ("mean", "sum"),
            "readout over the atoms; sum for extensive labels",
        ),
        Option(
            "references",
            False,
            bool,
            "learn the residual of a value per element, fitted by least squares",
        ),
        Option(
            "attention",
            "sparse",
            ("sparse", "augment", "periodic", "full"),
            "attention of graph transformers",
            TRANSFORMERS,
        ),
        Option("loss", "squared", ("squared", "huber"), "loss of the labels' errors"),
        Option(
            "decay",
            "staircase",
            ("staircase", "cosine", "warmup"),
            "learning rate schedule: drops every 100,000 steps, cosine decay to 0, or "
            "linear warmup and decay",
        ),
    ),
    ("potential",): (
        Option(
            "valid",
            0.1,
            share_or_path,
            "validation frames: a file, or a share of the frames of DATA",
            metavar="FILE|SHARE",
        ),
        Option("energy_key", "energy", str, "key of the energies, eV"),
        Option("forces_key", "forces", str, "column of the forces, eV/Angstrom"),
        Option(
            "stress_key",
            None,
            str,
            "key of stresses, eV/Angstrom^3, or of virials, eV; if omitted stress, "
            "virial or virials",
        ),
        Option(
            "force_weight",
            10.0,
            above_zero,
            "weight of the forces in the loss; that of energies per atom is 1",
        ),
        Option(
            "stress_weight",
            STRESS_WEIGHT,
            above_zero,
            "weight of the stresses in the loss",
        ),
        Option(
            "schedule",
            [],
            stage,
            "other weights after so many epochs, such as 150:energy=100,force=10; the "
            "weights with the best validation loss are those since the last change",
            metavar="EPOCH:NAME=WEIGHT",
            nargs="+",
        ),
        Option(
            "atom_energies",
            [],
            atom_energy,
            "reference energies of atoms; fitted by least squares if omitted",
            metavar="ELEMENT=EV",
            nargs="+",
        ),
        Option(
            "element_cutoffs",
            [],
            element_cutoff,
            "cutoffs of elements below --cutoff: messages between two atoms end at "
            "the mean of theirs",
            metavar="ELEMENT=ANGSTROM",
            nargs="+",
        ),
        Option(
            "zbl",
            False,
            bool,
            "add the screened repulsion of nuclei at short distances (Ziegler, "
            "Biersack, Littmark 1985)",
        ),
        Option(
            "ema",
            None,
            fraction,
            "momentum of the averages of weights that are validated and saved; 0 for "
            "the weights themselves; if omitted 0.99, or less for runs below 2,000 "
            "steps",
        ),
        Option(
            "plateau",
            10,
            positive,
            "halve the learning rate after N epochs without improvement",
            metavar="N",
        ),
        Option(
            "members",
            1,
            positive,
            "train an ensemble of N potentials one after another, with the seeds "
            "SEED, SEED + 1 and so on; --minutes is for all of them",
            metavar="N",
        ),
    ),
}
BY_NAME = {option.name: option for group in OPTIONS.values() for option in group}
KEYS = ("energy_key", "forces_key", "stress_key")
"""Options that name the labels of structures."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of the table, without defaults: None is not passed."""
    for tasks, options in OPTIONS.items():
        title = "model and training"
        if tasks != TASKS:
            title = f"--task {' or '.join(tasks)}"
        group = parser.add_argument_group(title)
        for option in options:
            option.add_to(group, None)


def add_task_options(parser: argparse.ArgumentParser, task: str) -> None:
    """Add the options of one task with its defaults, for another command."""
    group = parser.add_argument_group("model and training")
    for option in BY_NAME.values():
        if task in option.tasks:
            option.add_to(group, option.default_of(task))
    parser.set_defaults(task=task)


def add_keys(group) -> None:
    """Add the options that name the labels of structures, with their defaults."""
    for name in KEYS:
        BY_NAME[name].add_to(group, BY_NAME[name].default)
