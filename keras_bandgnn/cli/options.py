"""Shared options of the commands."""

import argparse
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from keras_bandgnn.checks import INT32_MAX

# Some options apply only to some tasks, models or data, and are rejected elsewhere. The
# parser sets no defaults for them, so that a command knows which ones were passed. It
# fills in the defaults that the help shows afterwards.


def delay_defaults(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Remove the defaults of options until `fill_defaults`; the help keeps them."""
    names, defaults = set(names), {}
    for action in parser._actions:
        if action.dest in names:
            defaults[action.dest] = action.default
            if action.default not in (None, False, []):
                action.help = f"{action.help or ''} (default: {action.default})".strip()
    parser.set_defaults(**dict.fromkeys(defaults), deferred=defaults)


def fill_defaults(options: argparse.Namespace) -> None:
    """Set the delayed defaults of options that were not passed."""
    for name, value in vars(options).pop("deferred", {}).items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def flag(name: str) -> str:
    """Return an option as it is typed."""
    return "--" + name.replace("_", "-")


def passed_options(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Return the names of the options that were passed."""
    values = {name: getattr(options, name) for name in names}
    return [k for k, v in values.items() if not (v is None or v is False or v == [])]


def reject_unused_options(
    options: argparse.Namespace,
    used_with: Mapping[str, str],
    reader: str,
    advice: str = "",
) -> None:
    """Reject options that the chosen task, model or data does not read.

    Args:
        options: The parsed command line.
        used_with: The unused options, and what each one is for.
        reader: The choice that does not read them, such as `"--task selection"`.
        advice: What to do instead, as a sentence.

    Raises:
        OptionError: If one of the unused options was passed.
    """
    passed = passed_options(options, used_with)
    if passed:
        names = ", ".join(f"{flag(k)} (for {used_with[k]})" for k in passed)
        raise OptionError(
            f"Expected options that {reader} reads. Received: {names}. {advice}".strip()
        )


READING = ("exclude", "max_instances", "processes", "seed")
"""Options of `add_reading`."""


# Options that may name files. Their paths are stored resolved, independent of the
# working directory.
_PATHS = ("data", "path", "source", "valid")


def settings_of(options: argparse.Namespace, free: Collection[str]) -> dict:
    """Return the options as JSON values, except the `free` ones."""
    settings = {k: v for k, v in vars(options).items() if k not in free}
    return json.loads(json.dumps(resolved(settings), default=str))


def resolved(settings: Mapping) -> dict:
    """Return settings with the paths of existing files resolved."""
    paths = {
        name: str(Path(value).resolve())
        for name, value in settings.items()
        if name in _PATHS and isinstance(value, str | Path) and Path(value).exists()
    }
    return {**settings, **paths}


def differences(old: Mapping, new: Mapping, free: Collection[str] = ()) -> list[str]:
    """Describe each changed setting with its new and old value."""
    old = resolved(old)
    return [
        f"{flag(name)} is {_shown(new.get(name))}, was {_shown(old.get(name))}"
        for name in sorted({*old, *new} - set(free))
        if old.get(name) != new.get(name)
    ]


def _shown(value) -> str:
    if value is None or value is False or value == []:
        return "not set"
    if value is True:
        return "set"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


class OptionError(ValueError):
    """Invalid options or combinations of options, detected after parsing."""


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    return _whole(text, 1, INT32_MAX)


def natural(text: str) -> int:
    """Parse an integer of at least 0, for argparse."""
    return _whole(text, 0, 2**62)


def _whole(text: str, minimum: int, maximum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, is {text!r}") from None
    if not minimum <= value <= maximum:
        bound = f"at least {minimum}" if value < minimum else f"at most {maximum}"
        raise argparse.ArgumentTypeError(f"must be {bound}, is {value}")
    return value


def above_zero(text: str) -> float:
    """Parse a number above 0, for argparse."""
    value = finite(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, is {text}")
    return value


def finite(text: str) -> float:
    """Parse a finite number, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, is {text!r}") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, is {text}")
    return value


def fraction(text: str) -> float:
    """Parse a number in [0, 1), for argparse."""
    value = finite(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, is {text}")
    return value


def probability(text: str) -> float:
    """Parse a number in [0, 1], for argparse."""
    value = finite(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be a probability, 0 to 1, is {text}")
    return value


def path(text: str) -> Path:
    """Parse a path, for argparse; an empty string is not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, is empty; write . for here")
    return Path(text)


def written_file(text: str) -> Path:
    """Parse the path of a file to write in an existing folder, for argparse."""
    file = Path(text)
    if not text or os.path.isdir(file):
        raise argparse.ArgumentTypeError(f"must be a file, is {text!r}")
    if (size := len(os.fsencode(file.name))) > 255:
        raise argparse.ArgumentTypeError(
            f"must have a name of at most 255 bytes, is one of {size}"
        )
    if not os.path.isdir(file.parent):
        raise argparse.ArgumentTypeError(
            f"must be in a folder that exists, is {text!r}"
        )
    # "-" is standard output for commands that support it.
    if text != "-" and not os.access(file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be in a writable folder, is {text!r}")
    return file


def add_common(parser: argparse.ArgumentParser, again: bool = False) -> None:
    """Add the options of every command.

    Args:
        parser: The parser of a command or of a subcommand.
        again: Whether the parent command has them, too.
    """
    missing = {"default": argparse.SUPPRESS} if again else {}
    parser.add_argument(
        "--backend",
        choices=("jax", "torch", "tensorflow"),
        help="Keras backend; if omitted, KERAS_BACKEND or an installed one",
        **missing,
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="show the traceback of an error",
        **missing,
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options of reading source code."""
    group = parser.add_argument_group("reading source code")
    group.add_argument(
        "--exclude",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="files and folders to skip, such as tests",
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
        help="number of worker processes; one per core if omitted",
    )
    group.add_argument("--seed", type=natural, default=0, help="seed of the sampling")


def set_max_instances(
    parser: argparse.ArgumentParser, default: int | None, help_text: str
) -> None:
    """Set another default and help for --max-instances."""
    for action in parser._actions:
        if action.dest == "max_instances":
            action.default, action.help = default, help_text


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Add the options of encoding and reordering."""
    group = parser.add_argument_group("compiling")
    group.add_argument(
        "--labels",
        choices=("subtoken", "character", "none"),
        default="subtoken",
        help="node feature computed from the node's text",
    )
    group.add_argument(
        "--no-subtoken-nodes",
        action="store_true",
        help="leave out subtoken nodes: 20 edge types instead of 22",
    )
    group.add_argument(
        "--steps", type=positive, default=8, help="T: propagation steps of the model"
    )
    add_ordering(group, "rcmk")


def add_ordering(group, default: str | None) -> None:
    """Add the options of the node ordering.

    Args:
        group: The parser or an argument group.
        default: The ordering; None if the command must know that none was passed.
    """
    group.add_argument(
        "--block-size", type=positive, default=128, help="S of the banded plan"
    )
    group.add_argument(
        "--ordering",
        choices=("rcmk", "natural", "breadth_first", "bisection", "metis"),
        default=default,
        help="node ordering, rcmk if omitted; bisection puts most edges into the band",
    )
