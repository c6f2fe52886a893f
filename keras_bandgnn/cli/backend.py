"""Which Keras backend a command uses."""

import contextlib
import os
import sys
from collections.abc import Iterator

from keras_bandgnn.default_backend import configured_backend, installed_backends


def choose_backend(wanted: str | None) -> None:
    """Sets KERAS_BACKEND before Keras is imported.

    The first that applies: `wanted`, KERAS_BACKEND, the one in the user's keras.json if
    it is installed, the first installed of jax, torch and tensorflow.

    Args:
        wanted: Backend asked for on the command line, or None.

    Raises:
        ImportError: If the backend, or any, is not installed.
    """
    if "keras" in sys.modules:
        import keras

        if wanted not in (None, keras.backend.backend()):
            raise ImportError(
                f"Expected to choose the backend before Keras is imported. Received: "
                f"--backend {wanted} after Keras started with "
                f"{keras.backend.backend()}. Set KERAS_BACKEND={wanted}."
            )
        return
    installed = installed_backends()
    wanted = wanted or os.environ.get("KERAS_BACKEND") or None
    if wanted is None and installed:
        # Keras writes its file unasked, with a backend that may not be installed.
        configured = configured_backend()
        wanted = configured if configured in installed else installed[0]
    if wanted not in installed:
        raise ImportError(
            f"Expected the backend {wanted or 'jax, torch or tensorflow'} to be "
            f"installed. Received: {installed or 'none is'}. Install one with "
            f"pip install 'keras-bandgnn[{wanted or 'jax'}]'."
        )
    os.environ["KERAS_BACKEND"] = wanted
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Within it TensorFlow is not imported, unless it is the backend.

    Keras imports TensorFlow wherever it is installed, to ask whether an object is one
    of it, or to set its seed: seconds, and lines of its log, for nothing.
    """
    if os.environ.get("KERAS_BACKEND") == "tensorflow" or "tensorflow" in sys.modules:
        yield
        return
    sys.modules["tensorflow"] = None  # an import of it is an ImportError
    try:
        yield
    finally:
        del sys.modules["tensorflow"]
        # What Keras remembers is of no use where Keras was not imported.
        if "keras" in sys.modules:
            from keras_bandgnn import compat

            compat.forget_missing_tensorflow()
