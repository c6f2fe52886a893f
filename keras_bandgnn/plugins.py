"""Names that load on first use, and the table through which `programs` plugs in.

No other room imports `programs`, the code-analysis tool. The names that it adds to
other rooms, its commands and its classes in saved files are loaded through this table.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from keras_bandgnn.default_backend import backend_required

PLUGINS = {
    "cli.check": "programs.commands.check",
    "cli.compile": "programs.commands.compile",
    "cli.demo": "programs.commands.demo",
    "cli.inspect": "programs.commands.inspect",
    "cli.lsp": "programs.commands.lsp",
    "cli.usages": "programs.commands.usages",
    "models.BugLocalizer": "programs.models.bug_localizer",
    "models.JointSelection": "programs.models.joint_selection",
    "preprocessing.FunctionEncoder": "programs.models.function_encoder",
    "preprocessing.ProgramEncoder": "programs.models.program_encoder",
    "preprocessing.compile_programs": "programs.models.program_store",
    "training.accuracy_interval": "programs.models.selection_report",
    "training.localization_calibration": "programs.models.localization_calibration",
    "training.localization_report": "programs.models.localization_report",
    "training.suspicious": "programs.models.selection_report",
    "training.trivial_scores": "programs.models.selection_report",
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


def module_of(place: str) -> ModuleType:
    """Import the module of a command or a public name, such as `"cli.check"`."""
    return importlib.import_module(f"keras_bandgnn.{PLUGINS[place]}")


def register(room: str) -> None:
    """Import the classes of a room that saved files name."""
    for place in REGISTERED:
        if place.startswith(f"{room}."):
            module_of(place)


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable, Callable]:
    """Return `__getattr__` and `__dir__` of a package, also for names of plug-ins.

    Args:
        package: Its `__name__`.
        homes: Module of each name, relative to `keras_bandgnn`.
    """
    homes = {**homes, **names_in(package.partition(".")[2])}

    def get(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with backend_required():
            module = importlib.import_module(f"keras_bandgnn.{homes[name]}")
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
