"""Errors that fail a trial, but not the search."""

import contextlib
import math
from collections.abc import Iterator

import keras

from keras_bandgnn.tuning.extra import keras_tuner

FailedTrialError = keras_tuner.errors.FailedTrialError

_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "out of memory",
    "Out of memory",
    "not enough memory",
    "can't allocate memory",
    "Unable to allocate",
)


class DiskError(keras_tuner.errors.FatalError, OSError):
    """A file of a search cannot be written; ends the search, not only the trial."""


def is_memory_error(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or a backend means out of memory."""
    by_name = type(error).__name__ in ("ResourceExhaustedError", "OutOfMemoryError")
    by_message = any(text in str(error) for text in _MEMORY)
    return isinstance(error, MemoryError) or by_name or by_message


@contextlib.contextmanager
def failed_trials() -> Iterator[None]:
    """Turn errors caused by a trial's hyperparameters into a failed trial.

    These are out-of-memory errors, and any ValueError: the graphs do not fit a batcher,
    a plan or a model.

    Raises:
        keras_tuner.errors.FailedTrialError: With the reason in one line.
    """
    try:
        yield
    except (FailedTrialError, keras_tuner.errors.FatalError):
        raise
    except ValueError as error:
        raise FailedTrialError(f"does not fit: {_line(error)}") from error
    except Exception as error:
        if not is_memory_error(error):
            raise
        raise FailedTrialError(f"too large: {_line(error)}") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


class StopDiverged(keras.callbacks.Callback):
    """Fails a trial when the loss of an epoch is not finite."""

    def on_epoch_end(self, epoch, logs=None):
        """Check the loss."""
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise FailedTrialError(f"diverged: the loss of epoch {epoch + 1} is {loss}")
