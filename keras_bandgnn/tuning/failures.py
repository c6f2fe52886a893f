"""Errors and crashes that fail a trial, but not the search."""

import contextlib
import json
import math
import signal
from collections.abc import Iterator
from pathlib import Path

import keras

from keras_bandgnn.data.files import write_json
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


# A trial that crashed its process this many times is not restarted.
MAX_CRASHES = 3
# Signals raised by errors in native code.
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")


class DiskError(keras_tuner.errors.FatalError, OSError):
    """A file of a search cannot be written; ends the search, not only the trial."""


class CrashLog:
    """Crashes of the processes that ran a trial, stored in the trial's folder.

    Counts only crashes that the trial itself can have caused: the process crashed, or
    the system killed it because memory ran out, while the chief kept running. If a
    scheduler kills all processes, the trial is not to blame.

    Args:
        folder: The trial's folder.
    """

    def __init__(self, folder):
        self._file = Path(folder) / "deaths.json"

    @property
    def reasons(self) -> list[str]:
        """The cause of each crash."""
        try:
            return list(json.loads(self._file.read_text()))
        except FileNotFoundError:
            return []

    def add(self, reason: str) -> int:
        """Add a crash; return the number of crashes."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        reasons = [*self.reasons, reason]
        write_json(self._file, reasons)
        return len(reasons)

    def check(self) -> None:
        """Raise a FailedTrialError after too many crashes."""
        reasons = self.reasons
        if len(reasons) >= MAX_CRASHES:
            kind = "crashed" if "crashed" in reasons[-1] else "too large"
            raise FailedTrialError(f"{kind}: {reasons[-1]}, {len(reasons)} times")


def crash_cause(number: int, memory_kills: int | None) -> str | None:
    """Return the cause if a signal counts as a crash of the trial, or None.

    Args:
        number: The signal that ended the process.
        memory_kills: Number of processes that the system has killed in the meantime
            because memory ran out; None if unknown. Only Linux counts them.
    """
    name = signal.Signals(number).name
    if name in _CRASHES:
        return f"its process crashed ({name})"
    if name == "SIGKILL" and memory_kills != 0:
        return "its process was killed, as the system does when memory runs out"
    return None


def memory_kills() -> int | None:
    """Return how many processes the system has killed for lack of memory, if known."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


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
