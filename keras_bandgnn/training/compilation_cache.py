"""Compiled programs that the next process finds."""

import os
from pathlib import Path

import keras

from keras_bandgnn.checks import as_path, non_negative_number


def enable_compilation_cache(folder, least_seconds: float = 0.1) -> Path:
    """Keep compiled programs in a folder, for other processes too.

    A service or a command that starts anew then reads its programs instead of
    compiling them. A program is found again for the same shapes, code, versions, and
    kind of device. Call it before the first `fit` or `predict`.

    | backend | what is kept |
    | --- | --- |
    | JAX | every program, by JAX' persistent compilation cache |
    | torch | what `torch.compile` makes (`jit_compile=True`), by Inductor |
    | TensorFlow | nothing: it has no cache on disk |

    Args:
        folder: The folder; made if it is not there. Others must not be able to write
            to it: what it holds is run.
        least_seconds: On JAX, programs that compile faster are not kept.

    Returns:
        The folder.

    Raises:
        ValueError: On TensorFlow, and for a negative time.

    Example:
    >>> import tempfile
    >>> if keras.backend.backend() != "tensorflow":
    ...     _ = enable_compilation_cache(tempfile.mkdtemp())
    """
    folder = as_path("folder", folder)
    least_seconds = non_negative_number("least_seconds", least_seconds)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        raise ValueError(
            "Expected JAX or torch for a cache of compiled programs. Received: "
            "tensorflow, which has none on disk. Save the traced program instead, with "
            "keras.Model.export."
        )
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if backend == "jax":
        from keras_bandgnn.ops.backend.jax import keep_programs

        keep_programs(str(folder), least_seconds)
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder
