"""The table through which `programs`, the code-analysis tool, plugs in.

No other room imports `programs`. The names that it adds to other rooms, its commands
and its classes in saved files are loaded through this table.
"""

import importlib
from types import ModuleType

PLUGINS = {
    "cli.check": "programs.commands.check",
    "cli.compile": "programs.commands.compile",
    "cli.demo": "programs.commands.demo",
    "cli.inspect": "programs.commands.inspect",
    "cli.lsp": "programs.commands.lsp",
    "cli.usages": "programs.commands.usages",
    "models.BugLocalizer": "programs.tasks.bug_localizer",
    "models.JointSelection": "programs.tasks.joint_selection",
    "preprocessing.FunctionEncoder": "programs.encoders.function_encoder",
    "preprocessing.ProgramEncoder": "programs.encoders.program_encoder",
    "preprocessing.compile_programs": "programs.encoders.program_store",
    "training.accuracy_interval": "programs.tasks.selection_report",
    "training.localization_report": "programs.tasks.localization_report",
    "training.suspicious": "programs.tasks.selection_report",
    "training.trivial_scores": "programs.tasks.selection_report",
}
"""Module of each command and public name, relative to `keras_bandgnn`."""

REGISTERED = (
    "models.BugLocalizer",
    "preprocessing.FunctionEncoder",
    "preprocessing.ProgramEncoder",
)
"""Classes that saved files name; they are imported with their room."""


def names_in(room: str) -> dict[str, str]:
    """Return the module of each name that is added to a room."""
    names = [place.rpartition(".") for place in PLUGINS]
    return {name: PLUGINS[f"{room}.{name}"] for home, _, name in names if home == room}


def load(place: str) -> ModuleType:
    """Import the module of a command or a public name, such as `"cli.check"`."""
    return importlib.import_module(f"keras_bandgnn.{PLUGINS[place]}")


def register(room: str) -> None:
    """Import the classes of a room that saved files name."""
    for place in REGISTERED:
        if place.startswith(f"{room}."):
            load(place)
