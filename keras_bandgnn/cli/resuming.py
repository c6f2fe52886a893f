"""Callbacks of runs that resume.

Keras' `EarlyStopping`, `ReduceLROnPlateau` and `ModelCheckpoint` forget their state
when a process ends. It follows from the metrics of the epochs, which `Metrics` stores
and shows them again.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import keras

from keras_bandgnn.cli import interrupts
from keras_bandgnn.data.files import write_json


class Checkpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best weights, or the averages of the optimizer.

    Args:
        averages: Callback that swaps in the averages; None to save the weights.
        **options: Those of `ModelCheckpoint`.
    """

    def __init__(self, averages: keras.callbacks.SwapEMAWeights | None, **options):
        super().__init__(save_best_only=True, save_weights_only=True, **options)
        self._averages = averages

    def on_epoch_end(self, epoch, logs=None):
        """Save the weights if they are the best."""
        if self._averages is not None:
            self._averages.on_test_begin()
        super().on_epoch_end(epoch, logs)
        if self._averages is not None:
            self._averages.on_test_end()


class Metrics(keras.callbacks.Callback):
    """Stores the metrics of the epochs, and shows those of earlier ones to callbacks.

    Args:
        file: The file of metrics, JSON.
        rows: Metrics of the epochs before.
        checkpoint: Callback that saves the best weights.
        others: Callbacks that follow the same metric, such as `EarlyStopping`.
        starts: Epochs from which the metric means something else, so that it is
            compared with those since then.
        end: File that is created when training ends.

    Attributes:
        rate: The first learning rate, if it changes with the metric.
    """

    rate: float | None = None

    def __init__(
        self,
        file: Path,
        rows: Sequence[dict],
        checkpoint: Checkpoint,
        others: Sequence[keras.callbacks.Callback],
        starts: Sequence[int],
        end: Path,
    ):
        super().__init__()
        self._file, self._rows, self._end = file, list(rows), end
        self._checkpoint, self._others = checkpoint, others
        self._starts = (0, *starts)
        self._better = min if checkpoint.mode == "min" else max
        # NaN is no improvement on it, as it is for Keras on None.
        self._worst = math.inf if checkpoint.mode == "min" else -math.inf
        self._replayed = False

    def on_epoch_begin(self, epoch, logs=None):
        """Show the epochs before the first one of this process."""
        earlier = [] if self._replayed else self._rows[:epoch]
        if self.rate is not None and not self._replayed:
            # The restored rate is lowered already; earlier epochs lower it again.
            self.model.optimizer.learning_rate = self.rate
        self._replayed = True
        for number, row in enumerate(earlier):
            self._start(number)
            value = row[self._checkpoint.monitor]
            if not math.isnan(value):
                self._checkpoint.best = self._better(self._checkpoint.best, value)
            for callback in self._others:
                callback.on_epoch_end(number, dict(row))
        self._start(epoch)

    def _start(self, epoch: int) -> None:
        if epoch in self._starts:
            for callback in (self._checkpoint, *self._others):
                callback.best = self._worst

    def on_epoch_end(self, epoch, logs=None):
        """Store the metrics; replace those of an epoch that is repeated."""
        row = {name: float(value) for name, value in logs.items()}
        self._rows = [*self._rows[:epoch], row]
        write_json(self._file, self._rows)

    def on_train_end(self, logs=None):
        """Note that training is complete."""
        self._end.touch()


class Limits(keras.callbacks.Callback):
    """Ends training on the time limit, in minutes, or on Ctrl-C."""

    def __init__(self, minutes: float | None):
        super().__init__()
        self._seconds = math.inf if minutes is None else 60 * minutes

    def on_train_begin(self, logs=None):
        """Start the clock."""
        self._end = time.monotonic() + self._seconds

    def on_train_batch_end(self, batch, logs=None):
        """End training on Ctrl-C or after the time."""
        interrupts.check()
        if time.monotonic() > self._end:
            self.model.stop_training = True

    def on_test_batch_end(self, batch, logs=None):
        """End the command on Ctrl-C."""
        interrupts.check()

    def on_epoch_end(self, epoch, logs=None):
        """End the command on Ctrl-C."""
        interrupts.check()
