"""Which Keras backend a command uses."""

import contextlib
import os
import sys
from collections.abc import Iterator

from keras_bandgnn.default_backend import configured_backend, installed_backends


def choose_backend(backend: str | None) -> None:
    """Set KERAS_BACKEND before Keras is imported.

    The first that applies: `backend`, KERAS_BACKEND, the one in the user's keras.json
    if it is installed, the first installed of jax, torch and tensorflow.

    Args:
        backend: Backend named on the command line, or None.

    Raises:
        ImportError: If the backend is not installed, or if none is.
    """
    if "keras" in sys.modules:
        import keras

        if backend not in (None, keras.backend.backend()):
            raise ImportError(
                f"Expected to choose the backend before Keras is imported. Received: "
                f"--backend {backend} after Keras started with "
                f"{keras.backend.backend()}. Set KERAS_BACKEND={backend}."
            )
        return
    installed = installed_backends()
    backend = backend or os.environ.get("KERAS_BACKEND") or None
    if backend is None and installed:
        # Keras writes keras.json by default, with a backend that may be missing.
        configured = configured_backend()
        backend = configured if configured in installed else installed[0]
    if backend not in installed:
        raise ImportError(
            f"Expected the backend {backend or 'jax, torch or tensorflow'} to be "
            f"installed. Received: {installed or 'none is'}. Install one with "
            f"pip install 'keras-bandgnn[{backend or 'jax'}]'."
        )
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Block imports of TensorFlow in its context, unless it is the backend.

    Keras imports TensorFlow wherever it is installed, to test the type of an object or
    to set its seed. This takes seconds and fills the log to no purpose.
    """
    if os.environ.get("KERAS_BACKEND") == "tensorflow" or "tensorflow" in sys.modules:
        yield
        return
    sys.modules["tensorflow"] = None  # makes importing it an ImportError
    try:
        yield
    finally:
        del sys.modules["tensorflow"]
        # Keras caches that TensorFlow is missing.
        if "keras" in sys.modules:
            from keras_bandgnn import compat

            compat.forget_missing_tensorflow()
