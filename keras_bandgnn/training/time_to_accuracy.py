"""`TimeToAccuracy`, `TimeLimit`, and the clock of training that they share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import (
    boolean,
    function,
    number,
    one_of,
    optional,
    positive_int,
    positive_number,
    string,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Logs


class TrainingClock(keras_bases.Callback):
    """Measures training time.

    It includes the steps and waiting for their batches. It excludes validation, other
    callbacks at the end of an epoch, and the first step of a `fit`, which compiles.
    (A later step that recompiles for another shape is included.) The time of an epoch
    ends when the results of its last step are there, before the set-up of validation;
    the clock waits for the device, so that no step is still running.

    Args:
        seconds: Function without arguments that reads a clock; `time.perf_counter`
            if omitted.

    Attributes:
        seconds: Seconds of training so far.
        steps: Steps of training so far, including the first one.
        first_step: Seconds of the first step, or None before its end.
    """

    def __init__(self, seconds: Callable[[], float] | None = None):
        super().__init__()
        optional(function, "seconds", seconds)
        self._clock = time.perf_counter if seconds is None else seconds
        self._reset()

    def _reset(self) -> None:
        self.steps, self.first_step = 0, None
        self._counted, self._since, self._first_since = 0.0, None, None
        # The last step of the epoch that began, and those that ended, with their times.
        self._begun: int = 0
        self._ended: list[tuple[int, float]] = []

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        running = 0.0 if self._since is None else self._clock() - self._since
        return self._counted + running

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reset the clock."""
        self._reset()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Start the clock, unless the first step is still to come."""
        self._ended = []
        if self.first_step is not None:
            self._since = self._clock()

    # At the end of a batch Keras fetches the results of the step from the device. For
    # callbacks like this one a thread does, which training need not wait for.
    async_safe = True

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Note when the step was done."""
        # Threads may come in another order.
        self._ended.append((batch, self._clock()))

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Measure the first step separately."""
        self.steps, self._begun = self.steps + 1, batch
        if self.first_step is not None:
            return
        if self._first_since is None:
            self._first_since = self._clock()
            return
        self._since = self._clock()
        self.first_step = self._since - self._first_since

    def on_test_begin(self, logs: Logs = None) -> None:
        """Stop the clock during validation."""
        self._stop()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Stop the clock until the next epoch."""
        self._stop()

    def _stop(self) -> None:
        if self.steps:
            # Waits for the last step.
            keras.ops.convert_to_numpy(self.model.optimizer.iterations)
        batch, end = map(max, zip((-1, 0.0), *self._ended, strict=True))
        if batch < self._begun:
            # The thread has yet to note it.
            end = self._clock()
        if self.first_step is None and self._first_since is not None:
            self.first_step = end - self._first_since
        if self._since is not None:
            self._counted += end - self._since
        self._since = None


class TimeLimit(TrainingClock):
    """Ends training after a time limit, once the current step is finished.

    The last epoch may then be partial; it is validated like any other. `TrainingClock`
    defines what counts as training time.

    Args:
        limit: Seconds.
        seconds: See `TrainingClock`.

    Example:
    >>> TimeLimit(60.0).limit
    60.0
    """

    def __init__(self, limit: float, seconds: Callable[[], float] | None = None):
        super().__init__(seconds)
        self.limit = positive_number("limit", limit)

    # Training waits for the results of every step. Otherwise the host would run ahead
    # of the device and measure too little time.
    async_safe = False

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """End training when the time is up."""
        super().on_train_batch_end(batch, logs)
        if self.seconds >= self.limit:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """End training when the time is up."""
        super().on_epoch_end(epoch, logs)
        if self.seconds >= self.limit:
            self.model.stop_training = True


_FALLING = ("loss", "mae", "mse", "rmse", "error", "crossentropy")


def direction_of(monitor: str) -> str:
    """Return `"max"` if larger values of a metric are better, else `"min"`."""
    name = monitor.lower().removeprefix("val_")
    return "min" if any(part in name for part in _FALLING) else "max"


class TimeToAccuracy(TrainingClock):
    """Measures the steps and seconds of training until a metric reaches a target.

    After every epoch the metric is smoothed by the mean over the last `window` epochs;
    the first epoch whose smoothed value reaches the target is the crossing. (Figure 3
    of Balog et al. 2019: the earliest checkpoint at which the smoothed curve of the
    validation accuracy exceeded 78 %, with unspecified smoothing.) Time is that of
    `TrainingClock`, without validation and the first step, which compiles.

    Args:
        target: The value to reach, which may be negative.
        monitor: Name of the metric in the logs of an epoch.
        window: Maximum number of epochs in the mean.
        mode: `"max"` if more is better, `"min"` if less; `"auto"`: `"min"` for errors
            and losses by name.
        stop: Whether to end training at the crossing.
        seconds: See `TrainingClock`.

    Attributes:
        reached: Whether the target was reached.
        crossing: The row of `curve` that reached it, or None.
        curve: A dictionary per epoch: epoch, steps, seconds, value, smoothed.

    Raises:
        ValueError: For arguments out of range; from `fit`, if an epoch lacks the
            metric.

    Reference:
        Balog et al. 2019, Section 5 and Figure 3, after Shallue et al. 2018.

    Example:
    >>> watch = TimeToAccuracy(0.78)
    >>> watch.mode, watch.reached, watch.summary()
    ('max', False, 'val_accuracy has not reached 0.78')
    """

    def __init__(
        self,
        target: float,
        monitor: str = "val_accuracy",
        window: int = 3,
        mode: str = "auto",
        stop: bool = False,
        seconds: Callable[[], float] | None = None,
    ):
        super().__init__(seconds)
        self.target = number("target", target)
        self.monitor = string("monitor", monitor)
        self.window = positive_int("window", window)
        one_of("mode", mode, ("auto", "max", "min"))
        self.mode = direction_of(monitor) if mode == "auto" else mode
        self.stop = boolean("stop", stop)
        self.crossing: dict | None = None
        self.curve: list[dict] = []

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return self.crossing is not None

    @property
    def best(self) -> float:
        """The best smoothed value so far; NaN before the first."""
        best = max if self.mode == "max" else min
        values = [row["smoothed"] for row in self.curve]
        return best((v for v in values if not math.isnan(v)), default=math.nan)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reset the clock and the curve."""
        super().on_train_begin(logs)
        self.crossing, self.curve = None, []

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add a point to the curve."""
        super().on_epoch_end(epoch, logs)
        if logs is None or self.monitor not in logs:
            raise ValueError(
                "Expected the metric `monitor` in the logs of every epoch. Received: "
                f"monitor={self.monitor!r}, logs with {sorted(logs or {})}. Metrics "
                "whose names begin with val_ need validation_data."
            )
        value = float(logs[self.monitor])
        last = [*(row["value"] for row in self.curve), value][-self.window :]
        row = {
            "epoch": int(epoch),
            "steps": self.steps,
            "seconds": self.seconds,
            "value": value,
            "smoothed": sum(last) / len(last),
        }
        self.curve.append(row)
        if self.crossing is None and self._passes(row["smoothed"]):
            self.crossing = row
            if self.stop:
                self.model.stop_training = True

    def _passes(self, value: float) -> bool:
        if self.mode == "max":
            return value >= self.target
        return value <= self.target

    def summary(self) -> str:
        """Return one line that states when the target was reached."""
        name = f"{self.monitor} has"
        if self.crossing is None:
            best = f", at best {self.best:.4g}" if self.curve else ""
            return f"{name} not reached {self.target:g}{best}"
        return (
            f"{name} reached {self.target:g} after {self.crossing['steps']} steps, "
            f"{self.crossing['seconds']:.3g} s"
        )
