"""Persistent compilation cache."""

import os
from pathlib import Path

import keras

from keras_bandgnn.checks import as_path, non_negative_number


def enable_compilation_cache(
    folder: str | os.PathLike | None, least_seconds: float = 0.1
) -> Path:
    """Cache compiled programs in a folder, across processes.

    Services and commands then load their programs at startup instead of compiling
    them. A cache hit requires the same shapes, code, versions and kind of device. Call
    this before the first `fit` or `predict`.

    | backend | cached programs |
    | --- | --- |
    | JAX | all, by JAX's persistent compilation cache |
    | torch | those of `torch.compile` (`jit_compile=True`), by Inductor |
    | TensorFlow | none: it has no cache on disk |

    Args:
        folder: The folder, created if missing. Its contents are executed, so nobody
            else must be able to write to it.
        least_seconds: Minimum compile time of the programs to cache, at least 0, on
            JAX.

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
            "tensorflow, which has no cache on disk. Save the traced program instead, "
            "with keras.Model.export."
        )
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if backend == "jax":
        from keras_bandgnn.ops.backend.jax import keep_programs

        keep_programs(str(folder), least_seconds)
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return folder
