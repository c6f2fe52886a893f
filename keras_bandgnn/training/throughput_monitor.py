"""`ThroughputMonitor`: graphs per second, fill and compilations in the logs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import function, instance, optional
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.training.recompile_guard import RecompileGuard

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Logs, Model


class ThroughputMonitor(keras_bases.Callback):
    """Adds the speed of training and the use of the batches to the logs of each epoch.

    All callbacks that read the logs record them: `History`, `CSVLogger`, `TensorBoard`,
    `wandb.integration.keras.WandbMetricsLogger`, `mlflow.keras.MlflowCallback`. In
    `fit` of a task the place in the list of callbacks does not matter; for other models
    put the monitor before the callbacks that read the logs.

    - `graphs_per_second`, `nodes_per_second`, `edges_per_second`: real graphs, nodes
      and edges per second of training, over all devices.
    - `fill_node`, `fill_edge`, `fill_graph`, and those of the plan: share of the padded
      size that real graphs use.
    - `waiting`: share of the time in which the loader had no batch ready.
    - `compilations`: those of the training and evaluation steps since `fit` began, as
      `RecompileGuard` counts them.

    Time is that of the training steps and of waiting for their batches, to the end of
    the last step of the epoch. The first step of a `fit`, which compiles, is left out
    unless the epoch has no other. The monitor never waits for the device.

    Args:
        loader: The `GraphLoader` of a model that is not a task; tasks tell it.
        seconds: Function without arguments that reads a clock; `time.perf_counter` if
            omitted.

    Raises:
        ValueError: From `fit`, if the training data is no `GraphLoader`.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [kb.Graph(2, [0], [1], node={"kind": [1, 0]}, label=0)] * 2
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> monitor = ThroughputMonitor()
    >>> history = task.fit(graphs, verbose=0, callbacks=[monitor]).history
    >>> history["graphs_per_second"][0] > 0, 0 < history["fill_node"][0] <= 1
    (True, True)
    """

    # Keras calls `on_train_batch_end` in a thread, and need not wait for it.
    async_safe = True

    def __init__(
        self,
        loader: Loader | None = None,
        seconds: Callable[[], float] | None = None,
    ):
        super().__init__()
        optional(function, "seconds", seconds)
        optional(instance, "loader", loader, Loader, "a GraphLoader")
        self.loader = loader
        self._guard = RecompileGuard(action="count")
        self._usage: dict[str, np.ndarray] = {}
        self._clock = time.perf_counter if seconds is None else seconds
        # Batches that were done, and when: before the clock started, and after steps.
        self._start = 0, 0.0
        self._done: list[tuple[int, float]] = []
        self._compiles = False
        self._waiting: float | None = None

    def follow(self, loader: Loader) -> None:
        """Set the loader that is trained on; tasks call this.

        Args:
            loader: The loader of `fit`.
        """
        self.loader = loader

    def set_model(self, model: Model) -> None:
        """Set the model, whose compilations are counted."""
        super().set_model(model)
        self._guard.set_model(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reset the counts; reject data without a loader."""
        steps = (self.params or {}).get("steps")
        if self.loader is None or steps not in (None, len(self.loader)):
            raise ValueError(
                "Expected ThroughputMonitor in `fit` with graphs or a GraphLoader. "
                "Received: other data. Pass the loader to fit and, unless the model is "
                "a task, to ThroughputMonitor(loader)."
            )
        self._compiles = True
        self._guard.on_train_begin()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the real and padded sizes of the epoch's batches."""
        self._waiting = None
        resumed = self.loader.resumed_batches
        usage = self.loader.usage().items()
        self._usage = {name: counts[:, resumed:] for name, counts in usage}
        self._guard.on_epoch_begin(epoch)
        self._done, self._start = [], (0, self._clock())

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Watch the training step; start the clock after the first of a fit."""
        if self._compiles and batch:
            self._start, self._compiles = (batch, self._clock()), False
        self._guard.on_train_batch_begin(batch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Note when the step was done."""
        self._done.append((batch + 1, self._clock()))

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Watch the evaluation step."""
        self._guard.on_test_batch_begin(batch)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Note the waiting, as validation may read from the same loader."""
        self._note_waiting()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add the figures of the epoch to the logs."""
        self._note_waiting()
        if logs is not None:
            logs.update(self._figures())
        self._compiles = False

    def _note_waiting(self) -> None:
        if self._waiting is None and self.loader is not None:
            self._waiting = self.loader.stats.waiting

    def _figures(self) -> dict[str, float]:
        first, start = self._start
        # Of threads, which may be late.
        last, end = map(max, zip(*self._done, strict=True))
        figures = {
            f"{name}s_per_second": self._usage[name][0, first:last].sum()
            / (end - start)
            for name in ("graph", "node", "edge")
        }
        for name, counts in self._usage.items():
            used, padded = counts[:, :last].sum(1)
            if padded:
                # Names as trackers allow them: "banded:128" has a colon.
                figures[f"fill_{re.sub(r'[^0-9A-Za-z]+', '_', name)}"] = used / padded
        figures["waiting"] = self._waiting
        figures["compilations"] = self._guard.count + self._guard.test_count
        return {name: float(value) for name, value in figures.items()}
