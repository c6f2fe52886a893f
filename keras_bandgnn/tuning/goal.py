"""`Goal`: what a search is for, and how a trial is scored."""

import dataclasses
import math

from keras_bandgnn.checks import number, one_of, optional, positive_int, positive_number
from keras_bandgnn.training.time_to_accuracy import TimeToAccuracy, direction_of
from keras_bandgnn.tuning.extra import keras_tuner

OBJECTIVES = ("accuracy", "time-to-accuracy", "accuracy-in-time")


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a search is for.

    - `"accuracy"`: the best value of the metric in `epochs` epochs.
    - `"time-to-accuracy"`: seconds of training until the smoothed metric reaches
      `target`, see `TimeToAccuracy`; a trial trains for `seconds` at most. One that
      does not get there is no failure: it scores twice to three times `seconds`, the
      more the further its best smoothed value is from the target. So it comes after
      all that do, and after those that get nearer, and the score is finite.
    - `"accuracy-in-time"`: the value of the metric after `seconds` of training.

    Seconds are those of `TrainingClock`: without validation, and without the first
    step, which compiles. A trial takes longer by the wall clock.

    Args:
        objective: One of these.
        metric: Name of the metric in the logs of `fit`.
        target: Value of the metric to reach.
        seconds: Seconds of training.
        epochs: Epochs at most; with `seconds` unlimited if omitted, else 10.
        window: Epochs that the smoothed value is the mean of.
    """

    objective: str
    metric: str
    target: float | None = None
    seconds: float | None = None
    epochs: int | None = None
    window: int = 3

    def __post_init__(self):
        one_of("objective", self.objective, OBJECTIVES)
        positive_int("window", self.window)
        if self.epochs is not None:
            positive_int("epochs", self.epochs)
        optional(number, "target", self.target)
        if self.seconds is not None:
            positive_number("seconds", self.seconds)
        elif self.timed:
            raise ValueError(
                f"Expected `seconds`, the most that a trial trains, with objective="
                f"{self.objective!r}. Received: seconds=None."
            )
        if self.objective == "time-to-accuracy" and self.target is None:
            raise ValueError(
                f"Expected `target`, a value of {self.metric}, with "
                "objective='time-to-accuracy'. Received: target=None."
            )

    @property
    def timed(self) -> bool:
        """Whether the score depends on the time of steps."""
        return self.objective != "accuracy"

    @property
    def direction(self) -> str:
        """`"max"` or `"min"`, of the metric."""
        return direction_of(self.metric)

    @property
    def max_epochs(self) -> int:
        """Epochs at most."""
        # As many as the time allows.
        return self.epochs or (10 if self.seconds is None else 100_000)

    def to_keras_tuner(self) -> "keras_tuner.Objective":
        """The objective as keras-tuner takes it."""
        if self.objective == "time-to-accuracy":
            return keras_tuner.Objective("time_to_accuracy", "min")
        return keras_tuner.Objective(self.metric, self.direction)

    def watch(self) -> TimeToAccuracy:
        """The callback that measures a trial."""
        stops = self.objective == "time-to-accuracy"
        # Without a target there is nothing to cross.
        never = math.copysign(1e300, 1 if self.direction == "max" else -1)
        target = never if self.target is None else self.target
        return TimeToAccuracy(
            target, self.metric, self.window, self.direction, stop=stops
        )

    def results(self, watch: TimeToAccuracy) -> dict[str, float]:
        """What a trial reports, the objective among it."""
        values = [row["value"] for row in watch.curve]
        best = max if self.direction == "max" else min
        value = values[-1] if self.objective == "accuracy-in-time" else best(values)
        found = {self.metric: value, "seconds": watch.seconds, "steps": watch.steps}
        if self.objective == "time-to-accuracy":
            found["time_to_accuracy"] = self._time(watch)
        return {name: float(value) for name, value in found.items()}

    def _time(self, watch: TimeToAccuracy) -> float:
        if watch.reached:
            return watch.crossing["seconds"]
        scale = max(abs(self.target), abs(watch.best), 1e-9)
        gap = abs(self.target - watch.best) / scale
        gap = 1.0 if math.isnan(gap) else min(gap, 1.0)
        return self.seconds * (2.0 + gap)
