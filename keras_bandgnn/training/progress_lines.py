"""Lines of progress within an epoch, where there is no terminal for a bar."""

import os
import sys

import keras

from keras_bandgnn import progress
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader


def shows_bars() -> bool:
    """Return whether standard output is where Keras' bar moves in place."""
    terminal = hasattr(sys.stdout, "isatty") and sys.stdout.isatty()
    return terminal or "ipykernel" in sys.modules or "PYCHARM_HOSTED" in os.environ


class ProgressLines(keras.callbacks.Callback):
    """Prints step, loss, graphs/s and the time left, about every 25 seconds.

    `fit` and `evaluate` of a task add it where standard output is no terminal, unless
    `verbose` is 0 or 1. The loss is read from the device only for a line.
    """

    # Keras calls `on_..._batch_end` in threads, and need not wait for them.
    async_safe = True

    def __init__(self):
        super().__init__()
        self._loader: GraphLoader | None = None
        self._turn = None
        self._epoch = 0

    def follow(self, loader: GraphLoader) -> None:
        """Set the loader whose graphs are counted; tasks call this.

        Args:
            loader: The loader of `fit`, `evaluate` or `predict`. Batches of one that
                samples are parts of a graph, of which steps are counted.
        """
        self._loader = loader if type(loader) is GraphLoader else None

    def on_train_begin(self, logs=None):
        """Start the clock."""
        self._begin()

    def on_predict_begin(self, logs=None):
        """Start the clock."""
        self._begin()

    def on_test_begin(self, logs=None):
        """Start the clock, unless this is validation."""
        if self._turn is None:
            self._begin()

    def on_train_end(self, logs=None):
        """Stop the clock."""
        self._turn = None

    def on_test_end(self, logs=None):
        """Stop the clock, unless this is validation."""
        if not self._training:
            self._turn = None

    def on_predict_end(self, logs=None):
        """Stop the clock."""
        self._turn = None

    def on_epoch_begin(self, epoch, logs=None):
        """Note the epoch."""
        self._training = True
        self._epoch, self._first = epoch, None

    def on_train_batch_end(self, batch, logs=None):
        """Print a line if one is due."""
        steps, epochs = self.params["steps"], self.params["epochs"]
        where = f"epoch {self._epoch + 1}/{epochs}, step {batch + 1}/{steps}"
        self._step(batch, steps, where, logs, epochs)

    def on_test_batch_end(self, batch, logs=None):
        """Print a line if one is due."""
        # Of validation Keras tells no number of steps.
        steps = None if self._training else self.params["steps"]
        of_steps = "" if steps is None else f"/{steps}"
        self._step(batch, steps, f"evaluation, step {batch + 1}{of_steps}", logs)

    def on_predict_batch_end(self, batch, logs=None):
        """Print a line if one is due."""
        steps = self.params["steps"]
        self._step(batch, steps, f"prediction, step {batch + 1}/{steps}", None)

    def _begin(self) -> None:
        self._turn, self._training = progress.Turn(), False
        # Step and time of the first step of this epoch, and of the run: they compile.
        self._first = self._run_first = None
        self._epoch = 0

    def _step(self, batch, steps, text, logs, epochs: int = 1) -> None:
        moment = progress.now()
        if self._first is None and steps is not None:
            self._first = batch, moment
        if self._run_first is None and steps is not None:
            self._run_first = self._epoch * steps + batch, moment
        if self._turn is None or not self._turn.is_due():
            return
        text += _loss(logs)
        if steps is not None and batch > self._first[0] and moment > self._first[1]:
            pace = (moment - self._first[1]) / (batch - self._first[0])
            text += f", {self._rate(pace)}"
            text += f", {progress.duration((steps - 1 - batch) * pace)} left"
            if epochs > 1:
                # With validation, and what else there was between epochs.
                done = self._epoch * steps + batch - self._run_first[0]
                pace = (moment - self._run_first[1]) / done
                rest = (epochs - self._epoch) * steps - 1 - batch
                text += f" of the epoch, {progress.duration(rest * pace)} of all"
        progress.print_line(text)

    def _rate(self, pace: float) -> str:
        if self._loader is None:
            return progress.rate_text(1 / pace, "steps")
        graphs = int(self._loader.starts[-1]) / len(self._loader)
        return progress.rate_text(graphs / pace, "graphs")


def _loss(logs) -> str:
    return f": loss {float(logs['loss']):.4g}" if logs and "loss" in logs else ""
