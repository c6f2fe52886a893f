"""Packages that only some users have, imported when they are needed."""

import importlib
from types import ModuleType


def needed(module: str, package: str) -> ModuleType:
    """Imports a module or says what to install.

    Args:
        module: Name of the module, such as `"ase.neighborlist"`.
        package: What to pass to `pip install`, such as `"keras-bandgnn[chem]"`.

    Raises:
        ImportError: If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected the package {module.partition('.')[0]} to be installed. "
            f'Received: {error}. Install it with: pip install "{package}"'
        ) from error
