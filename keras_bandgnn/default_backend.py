"""Default choice of the Keras backend."""

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path

BACKENDS = ("jax", "torch", "tensorflow")
# Environment variable of worker processes, which import what their jobs use.
WORKER = "KERAS_BANDGNN_WORKER"
_host_only = False


def stay_on_host() -> None:
    """Let host code of this process do without Keras, whose import takes seconds.

    For workers, before they import anything else of the library.
    """
    global _host_only
    _host_only = True


def imports_keras() -> bool:
    """Return whether host code imports Keras, with one of the installed backends."""
    return bool(installed_backends()) and not _host_only


def installed_backends() -> list[str]:
    """Return the backends that can be imported."""
    return [name for name in BACKENDS if importlib.util.find_spec(name)]


def configured_backend() -> str | None:
    """Return the backend in the user's keras.json."""
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    try:
        return json.loads((home / "keras.json").read_text()).get("backend")
    except (OSError, ValueError, AttributeError):
        return None


@contextlib.contextmanager
def backend_required() -> Iterator[None]:
    """Name the packages to install, if an import fails for want of a backend.

    Raises:
        ImportError: If no backend of Keras is installed.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if installed_backends() or package not in ("keras", *BACKENDS):
            raise
        raise missing_backend() from error


def missing_backend() -> ImportError:
    """Return the error of a process without a backend of Keras."""
    return ImportError(
        "Expected a backend of Keras: jax, torch or tensorflow, any of them. "
        "Received: none is installed. Install one, such as with: pip install jax."
    )


def replace_missing_backend() -> None:
    """Set KERAS_BACKEND if Keras would start with a backend that is not installed.

    Without KERAS_BACKEND and keras.json, Keras uses TensorFlow and writes it into a new
    keras.json.
    """
    if os.environ.get("KERAS_BACKEND"):
        return
    installed = installed_backends()
    if installed and (configured_backend() or "tensorflow") not in installed:
        os.environ["KERAS_BACKEND"] = installed[0]
