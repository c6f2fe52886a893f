"""`TrainingClock`: seconds and steps of training, without validation."""

import time
from collections.abc import Callable

import keras

from keras_bandgnn.checks import function, optional


class TrainingClock(keras.callbacks.Callback):
    """Counts the seconds that training takes.

    Counted: the steps, and waiting for their batches. Not counted: validation, other
    callbacks at the end of an epoch, and the first step of a `fit`, which compiles.
    (A later step that compiles again, for another shape, is counted.) At the end of an
    epoch the clock waits for the device, so that no step is still under way.

    Args:
        seconds: Function without arguments that reads a clock; `time.perf_counter`
            when omitted.

    Attributes:
        seconds: Seconds of training so far.
        steps: Steps of training so far, the first one among them.
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

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        running = 0.0 if self._since is None else self._clock() - self._since
        return self._counted + running

    def on_train_begin(self, logs=None):
        """Starts anew."""
        self._reset()

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the clock, once something is compiled."""
        if self.first_step is not None:
            self._since = self._clock()

    # Not at the end of a batch: callbacks that wait for it make Keras fetch the
    # results of every step from the device.
    def on_train_batch_begin(self, batch, logs=None):
        """Tells the first step from the others."""
        self.steps += 1
        if self.first_step is not None:
            return
        if self._first_since is None:
            self._first_since = self._clock()
            return
        self._end_first()
        self._since = self._clock()

    def on_test_begin(self, logs=None):
        """Leaves the validation out."""
        self._stop()

    def on_epoch_end(self, epoch, logs=None):
        """Stops the clock until the next epoch."""
        self._stop()

    def _end_first(self) -> None:
        self.first_step = self._clock() - self._first_since

    def _stop(self) -> None:
        if self.steps:
            # Waits for the last step.
            keras.ops.convert_to_numpy(self.model.optimizer.iterations)
        if self.first_step is None and self._first_since is not None:
            self._end_first()
        self._counted, self._since = self.seconds, None
