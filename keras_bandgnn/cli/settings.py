"""Options that a run began with, to tell whether it goes on with the same."""

import argparse
import json
from collections.abc import Collection
from pathlib import Path

from keras_bandgnn.cli.option_use import flag

# Options that may name files: the same ones wherever the command is started.
_PATHS = ("data", "path", "source")


def settings_of(options: argparse.Namespace, free: Collection[str]) -> dict:
    """The options as plain values, but for those that may change."""
    kept = {k: v for k, v in vars(options).items() if k not in free}
    return json.loads(json.dumps(resolved(kept), default=str))


def resolved(settings: dict) -> dict:
    """Settings with whole paths, where they name something that is there."""
    found = {
        name: str(Path(value).resolve())
        for name, value in settings.items()
        if name in _PATHS and value is not None and Path(value).exists()
    }
    return settings | found


def differences(old: dict, new: dict, free: Collection[str] = ()) -> list[str]:
    """What differs, with the new and the old value."""
    old = resolved(old)
    return [
        f"{flag(name)} is {_shown(new.get(name))}, was {_shown(old.get(name))}"
        for name in sorted({*old, *new} - set(free))
        if old.get(name) != new.get(name)
    ]


def _shown(value) -> str:
    if value is None or value is False or value == []:
        return "not given"
    if value is True:
        return "given"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
