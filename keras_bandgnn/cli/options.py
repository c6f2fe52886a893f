"""Options that several commands share."""

import argparse
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from keras_bandgnn.checks import INT32_MAX

# Options that only some tasks, models or data use: the others refuse them.
#
# The parser gives them no defaults, so that a command knows which were given. What it
# fills in afterwards is what the help shows.


def defer_defaults(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Takes the defaults of options away, until `fill_defaults`; help keeps them."""
    names, defaults = set(names), {}
    for action in parser._actions:
        if action.dest in names:
            defaults[action.dest] = action.default
            if action.default not in (None, False, []):
                action.help = f"{action.help or ''} (default: {action.default})".strip()
    parser.set_defaults(**dict.fromkeys(defaults), deferred=defaults)


def fill_defaults(options: argparse.Namespace) -> None:
    """Gives options that were not given their defaults."""
    for name, value in vars(options).pop("deferred", {}).items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def flag(name: str) -> str:
    """An option as it is typed."""
    return "--" + name.replace("_", "-")


def given(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Which of these options were given: no default is left, or it says nothing."""
    values = {name: getattr(options, name) for name in names}
    return [k for k, v in values.items() if not (v is None or v is False or v == [])]


def refuse(
    options: argparse.Namespace,
    used_with: Mapping[str, str],
    who: str,
    advice: str = "",
) -> None:
    """Refuses options that what was asked for would not read.

    Args:
        options: Of the command.
        used_with: Options that are not used here, and with what they are.
        who: What was asked for, such as `"--task selection"`.
        advice: What to do, if more is known.

    Raises:
        OptionError: If one of them was given.
    """
    found = given(options, used_with)
    if found:
        named = ", ".join(f"{flag(k)} (for {used_with[k]})" for k in found)
        raise OptionError(
            f"Expected options that {who} reads. Received: {named}. {advice}".strip()
        )


SELECTION = (
    "batch_nodes",
    "dropout",
    "label_smoothing",
    "optimizer",
    "plan",
    "readout",
    "shuffle_labels",
)
"""Options of `add_training` that not every model reads, or only one that picks."""

READING = ("exclude", "max_instances", "processes", "seed")
"""Options of `add_reading`."""


class OptionError(ValueError):
    """Options that are wrong for what they are used with, seen after parsing."""


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    return _whole(text, 1, INT32_MAX)


def natural(text: str) -> int:
    """An integer of at least 0, for argparse."""
    return _whole(text, 0, 2**62)


def _whole(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, is {text!r}") from None
    if not least <= value <= most:
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise argparse.ArgumentTypeError(f"must be {bound}, is {value}")
    return value


def above_zero(text: str) -> float:
    """A number above 0, for argparse."""
    value = finite(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, is {text}")
    return value


def finite(text: str) -> float:
    """A number, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, is {text!r}") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, is {text}")
    return value


def fraction(text: str) -> float:
    """A number in [0, 1), for argparse."""
    value = finite(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, is {text}")
    return value


def probability(text: str) -> float:
    """A number in [0, 1], for argparse."""
    value = finite(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a probability, 0 to 1, is {text}")
    return value


def path(text: str) -> Path:
    """A path, for argparse; nothing is not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, is empty; write . for here")
    return Path(text)


def written_file(text: str) -> Path:
    """A file to write, for argparse: its folder is there, and it is no folder."""
    file = Path(text)
    if not text or file.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, is {text!r}")
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"must be in a folder that exists, is {text!r}"
        )
    # "-" stands for standard output where a command can write to it.
    if text != "-" and not os.access(file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"must be in a folder that can be written to, is {text!r}"
        )
    return file


def add_common(parser: argparse.ArgumentParser, again: bool = False) -> None:
    """Adds the options of every command.

    Args:
        parser: The command, or the subject of one.
        again: Whether the command that it belongs to has them, too.
    """
    missing = {"default": argparse.SUPPRESS} if again else {}
    parser.add_argument(
        "--backend",
        choices=("jax", "torch", "tensorflow"),
        help="Keras backend; KERAS_BACKEND or an installed one if omitted",
        **missing,
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="show the traceback of an error",
        **missing,
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Adds the options of reading source code."""
    group = parser.add_argument_group("reading source code")
    group.add_argument(
        "--exclude",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="files and folders to leave out, such as tests",
    )
    group.add_argument(
        "--max-instances",
        type=positive,
        default=20,
        metavar="N",
        help="usages sampled per file",
    )
    group.add_argument(
        "--processes",
        "--workers",
        type=positive,
        metavar="N",
        help="one per core if omitted",
    )
    group.add_argument("--seed", type=natural, default=0, help="seed of every choice")


def set_max_instances(
    parser: argparse.ArgumentParser, default: int | None, what: str
) -> None:
    """Gives --max-instances another default, and the help that goes with it."""
    for action in parser._actions:
        if action.dest == "max_instances":
            action.default, action.help = default, what


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Adds the options of encoding and reordering."""
    group = parser.add_argument_group("compiling")
    group.add_argument(
        "--labels",
        choices=("subtoken", "character", "none"),
        default="subtoken",
        help="feature made of the text of a node",
    )
    group.add_argument(
        "--no-subtoken-nodes", action="store_true", help="20 edge types instead of 22"
    )
    group.add_argument(
        "--steps", type=positive, default=8, help="T: propagation steps of the model"
    )
    add_ordering(group, "rcmk")


def add_ordering(group, default: str | None) -> None:
    """Adds the options of the order of nodes.

    Args:
        group: The parser, or a group of its options.
        default: The ordering; None if the command must know that none was given.
    """
    group.add_argument(
        "--block-size", type=positive, default=128, help="S of the banded plan"
    )
    group.add_argument(
        "--ordering",
        choices=("rcmk", "natural", "breadth_first", "bisection", "metis"),
        default=default,
        help="order of the nodes: rcmk if omitted; bisection puts the most edges "
        "into the band",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the model and its training."""
    group = parser.add_argument_group("model and training")
    group.add_argument("--hidden", type=positive, default=128, help="H: state width")
    group.add_argument("--epochs", type=positive, default=10)
    group.add_argument(
        "--minutes", type=above_zero, help="stop after so many minutes of training"
    )
    group.add_argument(
        "--batch-nodes", type=positive, default=8192, help="nodes per supergraph"
    )
    group.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    group.add_argument(
        "--learning-rate",
        type=above_zero,
        help="default 0.002 (adam), 0.3 (sgd), 0.0001 (regression)",
    )
    group.add_argument("--dropout", type=fraction, default=0.1, help="of the states")
    group.add_argument("--label-smoothing", type=fraction, default=0.0)
    group.add_argument(
        "--readout",
        choices=("slot", "candidate"),
        default="slot",
        help="look at the slot too, or at the candidates alone (the paper)",
    )
    group.add_argument(
        "--plan",
        default="auto",
        help="auto, segment, grouped or banded:S, with ',drop' to drop the rest",
    )
    group.add_argument(
        "--shuffle-labels",
        action="store_true",
        help="train and test on random labels: shows what a leak would give",
    )
    group.add_argument(
        "--weights",
        choices=("float32", "float16"),
        default="float32",
        help="type on disk",
    )
    group.add_argument("--title", help="first line of the model's card")
