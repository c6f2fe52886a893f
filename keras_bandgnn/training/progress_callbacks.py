"""Progress of `fit`, `evaluate` and `predict`, in graphs: a bar, or lines."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

import keras

from keras_bandgnn import keras_bases, progress
from keras_bandgnn.checks import instance, optional
from keras_bandgnn.compat import RateProgbar
from keras_bandgnn.preprocessing.loading.loader import Loader

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Logs


def shows_bars() -> bool:
    """Return whether standard output is where Keras' bar moves in place."""
    terminal = hasattr(sys.stdout, "isatty") and sys.stdout.isatty()
    return terminal or "ipykernel" in sys.modules or "PYCHARM_HOSTED" in os.environ


class _Progress:
    """Reduces the events of Keras to `begin`, `step` and `end`.

    An epoch of training, an evaluation and a prediction begin and end; a validation is
    part of its epoch.
    """

    # Keras calls `on_..._batch_end` in threads, and need not wait for them.
    async_safe = True
    loader: Loader | None = None
    _training = False
    _epoch = 0

    def begin(self) -> None:
        """Called before the first batch."""

    def step(self, batch: int, logs: Logs, kind: str) -> None:
        """Called after each batch of "epoch", "validation", "evaluation" etc."""

    def end(self, logs: Logs) -> None:
        """Called after the last batch."""

    def follow(self, loader: Loader) -> None:
        """Set the loader whose graphs are counted; tasks call this.

        Args:
            loader: The loader of `fit`, `evaluate` or `predict`.
        """
        self.loader = loader

    def on_train_begin(self, logs: Logs = None) -> None:
        """Note that evaluations are validations from here on."""
        self._training = True

    def on_train_end(self, logs: Logs = None) -> None:
        """Note that evaluations are no longer validations."""
        self._training = False

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Begin an epoch."""
        self._epoch = epoch
        self.begin()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Show a step of training."""
        self.step(batch, logs, "epoch")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """End an epoch, with the metrics of validation."""
        self.end(logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Begin an evaluation."""
        if not self._training:
            self.begin()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Show a step of an evaluation."""
        self.step(batch, logs, "validation" if self._training else "evaluation")

    def on_test_end(self, logs: Logs = None) -> None:
        """End an evaluation."""
        if not self._training:
            self.end(logs)

    def on_predict_begin(self, logs: Logs = None) -> None:
        """Begin a prediction."""
        self.begin()

    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Show a step of a prediction."""
        self.step(batch, None, "prediction")

    def on_predict_end(self, logs: Logs = None) -> None:
        """End a prediction."""
        self.end(None)


class GraphProgressBar(_Progress, keras.callbacks.ProgbarLogger):
    """Keras' progress bar, counting graphs instead of steps.

    It replaces Keras' own bar in `fit`, `evaluate` and `predict`, and like it follows
    their `verbose`: 0 is silent, 1 a bar, 2 one line per epoch. Graphs per second leave
    out validation and the first step of an epoch, which may compile.

    Args:
        loader: The `GraphLoader` of a model that is not a task; tasks tell it.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [kb.Graph(2, [0], [1], node={"kind": [1, 0]}, label=0)] * 2
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> history = task.fit(graphs, verbose=2, callbacks=[GraphProgressBar()])
    Batches: ...
    2/2 - ... graphs/s - accuracy: ... - loss: ...
    """

    def __init__(self, loader: Loader | None = None):
        super().__init__()
        optional(instance, "loader", loader, Loader, "a GraphLoader")
        self.loader = loader
        self._lock = threading.Lock()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Show the number of the epoch, and a new bar."""
        if self.verbose and self.epochs > 1:
            print(f"Epoch {epoch + 1}/{self.epochs}", flush=True)
        super().on_epoch_begin(epoch, logs)

    def begin(self) -> None:
        """Show a new bar."""
        if self.loader is None:
            raise ValueError(
                "Expected GraphProgressBar with graphs or a GraphLoader. Received: "
                "other data. Pass the loader of a model that is not a task to "
                "GraphProgressBar(loader)."
            )
        graphs = self.loader.usage()["graph"][0, self.loader.resumed_batches :]
        self._graphs = graphs.cumsum()
        self.seen = 0
        self.progbar = RateProgbar(
            target=int(self._graphs[-1]),
            verbose=self.verbose,
            unit_name="graphs",
            # What Keras logs are means already.
            stateless_metrics=(),
        )

    def step(self, batch: int, logs: Logs, kind: str) -> None:
        """Count the graphs of a batch."""
        if kind == "validation":
            return
        graphs = int(self._graphs[min(batch, len(self._graphs) - 1)])
        with self._lock:
            # Threads may be late.
            if graphs > self.seen:
                self.seen = graphs
                self.progbar.update(graphs, list((logs or {}).items()), finalize=False)

    def end(self, logs: Logs) -> None:
        """Complete the bar."""
        self.progbar.update(self.seen, list((logs or {}).items()), finalize=True)


class ProgressLines(_Progress, keras_bases.Callback):
    """Prints step, loss, graphs/s and the time left, about every 25 seconds.

    `fit` and `evaluate` of a task add it where standard output is no terminal, unless
    `verbose` is 0 or 1. The loss is read from the device only for a line.
    """

    _limiter: progress.RateLimiter | None = None
    # Steps and time when the first step of the run, and of the epoch, was done: such
    # steps compile.
    _run = _start = None

    def on_train_begin(self, logs=None):
        """Begin to print lines."""
        super().on_train_begin(logs)
        self._limiter, self._run = progress.RateLimiter(), None

    def begin(self) -> None:
        """Start the clock."""
        self._start = None
        if not self._training:
            self._limiter, self._run, self._epoch = progress.RateLimiter(), None, 0

    def step(self, batch, logs, kind) -> None:
        """Print a line if one is due."""
        # Keras tells no number of steps of a validation.
        steps = None if kind == "validation" else self.params["steps"]
        now = progress.now()
        done = self._epoch * (steps or 0) + batch
        if steps is not None:
            self._start = self._start or (batch, now)
            self._run = self._run or (done, now)
        if not self._limiter.is_due():
            return
        epochs = self.params.get("epochs", 1) if kind == "epoch" else 1
        text = "evaluation" if kind == "validation" else kind
        if kind == "epoch":
            text += f" {self._epoch + 1}/{epochs}"
        text += f", step {batch + 1}" + ("" if steps is None else f"/{steps}")
        if logs and "loss" in logs:
            text += f": loss {float(logs['loss']):.4g}"
        if steps is not None and batch > self._start[0] and now > self._start[1]:
            pace = (now - self._start[1]) / (batch - self._start[0])
            text += f", {self._rate(pace)}"
            text += f", {progress.duration((steps - 1 - batch) * pace)} left"
            if epochs > 1:
                # With validation, and what else there was between epochs.
                pace = (now - self._run[1]) / (done - self._run[0])
                remaining = (epochs * steps - 1 - done) * pace
                text += f" of the epoch, {progress.duration(remaining)} of all"
        progress.print_line(text)

    def _rate(self, pace: float) -> str:
        # A loader that samples has parts of a graph, of which steps are counted.
        if self.loader.item != "graph":
            return progress.rate_text(1 / pace, "steps")
        graphs = int(self.loader.starts[-1]) / len(self.loader)
        return progress.rate_text(graphs / pace, "graphs")
