"""Options that only some tasks, models or data use: the others refuse them.

The parser gives them no defaults, so that a command knows which were given. What it
fills in afterwards is what the help shows.
"""

import argparse
from collections.abc import Iterable, Mapping

from keras_bandgnn.cli.options import OptionError


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
