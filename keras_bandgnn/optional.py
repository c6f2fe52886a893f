"""Packages that only some users have, imported when they are needed."""

import importlib
from types import ModuleType


def optional_import(
    module: str, package: str, purpose: str = "", instead: str = ""
) -> ModuleType:
    """Import a module, or say what to install.

    Args:
        module: Name of the module, such as `"ase.neighborlist"`.
        package: What to pass to `pip install`, such as `"keras-bandgnn[chem]"`.
        purpose: What it is needed for.
        instead: What works without it.

    Raises:
        ImportError: If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        purpose = purpose and f" for {purpose}"
        instead = instead and f", or {instead}"
        raise ImportError(
            f"Expected the package {module.partition('.')[0]} to be installed{purpose}."
            f' Received: {error}. Install it with: pip install "{package}"{instead}.'
        ) from error
