"""Optional packages, imported on use."""

import importlib
from types import ModuleType


def optional_import(
    module: str, package: str, purpose: str = "", instead: str = ""
) -> ModuleType:
    """Import a module, or raise an error that names the package to install.

    Args:
        module: Name of the module, such as `"ase.neighborlist"`.
        package: Argument of `pip install`, such as `"keras-bandgnn[chem]"`.
        purpose: The purpose of the package, for the error.
        instead: An alternative without the package, for the error.

    Raises:
        ImportError: If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        purpose = purpose and f" for {purpose}"
        # The package may be there, and import another that it does not require.
        missing = (error.name or "").partition(".")[0]
        if missing not in ("", module.partition(".")[0]):
            package = f'{package}" "{missing}'
        instead = instead and f", or {instead}"
        raise ImportError(
            f"Expected the package {module.partition('.')[0]} to be installed{purpose}."
            f' Received: {error}. Install it with: pip install "{package}"{instead}.'
        ) from error
