"""What makes a trial fail, not the search."""

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


# A trial that ended its process so often is not begun again.
MOST_DEATHS = 3
# Signals that a process gives itself, by an error in compiled code.
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")


class DiskError(keras_tuner.errors.FatalError, OSError):
    """A file of a search cannot be written: no fault of a trial, so it ends all."""


class Deaths:
    """How often a trial ended the process that ran it, kept in the trial's folder.

    Only evidence counts: a process that crashed, or that the system killed because
    memory ran out, while the chief that started it lived on. Where all is killed, as
    by a scheduler, nothing says that it was the trial.

    Args:
        folder: The trial's folder.
    """

    def __init__(self, folder):
        self._file = Path(folder) / "deaths.json"

    @property
    def reasons(self) -> list[str]:
        """What ended each process."""
        try:
            return list(json.loads(self._file.read_text()))
        except FileNotFoundError:
            return []

    def add(self, reason: str) -> int:
        """Counts one; returns how many there are."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        reasons = [*self.reasons, reason]
        write_json(self._file, reasons)
        return len(reasons)

    def check(self) -> None:
        """Raises a FailedTrialError if there were too many."""
        reasons = self.reasons
        if len(reasons) >= MOST_DEATHS:
            kind = "crashed" if "crashed" in reasons[-1] else "too large"
            raise FailedTrialError(f"{kind}: {reasons[-1]}, {len(reasons)} times")


def cause_of_death(number: int, memory_kills: int | None) -> str | None:
    """What a signal that ended a process says of its trial; None if nothing.

    Args:
        number: The signal.
        memory_kills: How many processes the system has killed meanwhile because memory
            ran out; None if that is not known, as it is on Linux alone.
    """
    name = signal.Signals(number).name
    if name in _CRASHES:
        return f"its process crashed ({name})"
    if name == "SIGKILL" and memory_kills != 0:
        return "its process was killed, as the system does when memory runs out"
    return None


def memory_kills() -> int | None:
    """Processes that the system has killed because memory ran out, if it says so."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def is_memory_error(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or a backend says that memory is used up."""
    named = type(error).__name__ in ("ResourceExhaustedError", "OutOfMemoryError")
    said = any(text in str(error) for text in _MEMORY)
    return isinstance(error, MemoryError) or named or said


@contextlib.contextmanager
def failed_trials() -> Iterator[None]:
    """Turns what is wrong with one draw of values into a failed trial.

    That is memory used up, and a ValueError: graphs that do not fit a batcher, a plan
    or a model.

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
    """Makes a trial fail when the loss of an epoch is not finite."""

    def on_epoch_end(self, epoch, logs=None):
        """Looks at the loss."""
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise FailedTrialError(f"diverged: the loss of epoch {epoch + 1} is {loss}")
