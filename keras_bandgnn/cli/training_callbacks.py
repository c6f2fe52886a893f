"""Callbacks of `bandgnn train`: the best weights, the state to go on from, the end."""

import argparse
import csv
import json
import shutil
import time
from pathlib import Path

from keras_bandgnn.cli import interrupts

# Options that may change between a run and its continuation.
_FREE = (
    "backend",
    "command",
    "debug",
    "line",
    "minutes",
    "overwrite",
    "restart",
    "run",
    "title",
    "top",
    "weights",
)


def checkpoints(
    options: argparse.Namespace,
    data: dict,
    work: Path,
    monitor: str = "val_accuracy",
    mode: str = "max",
) -> list:
    """The callbacks that keep the best weights, and the state to go on from."""
    import keras

    kept = {k: v for k, v in vars(options).items() if k not in _FREE}
    settings = json.dumps([kept, data], default=str, sort_keys=True)
    saved = work / "settings.json"
    if options.restart:
        shutil.rmtree(work, ignore_errors=True)
    elif saved.is_file() and saved.read_text() != settings:
        raise ValueError(
            f"Expected the interrupted run in {work} to have the same options and "
            "data. Received: others. Pass --restart to throw it away, or choose "
            "another --out."
        )
    work.mkdir(parents=True, exist_ok=True)
    saved.write_text(settings)
    best = None
    if (work / "history.csv").is_file():
        with open(work / "history.csv", newline="") as file:
            seen = [float(row[monitor]) for row in csv.DictReader(file)]
            best = (max if mode == "max" else min)(seen, default=None)
    return [
        keras.callbacks.BackupAndRestore(work / "backup", double_checkpoint=True),
        keras.callbacks.CSVLogger(work / "history.csv", append=True),
        keras.callbacks.ModelCheckpoint(
            work / "best.weights.h5",
            monitor=monitor,
            mode=mode,
            save_best_only=True,
            save_weights_only=True,
            initial_value_threshold=best,
        ),
    ]


def limits(minutes: float | None):
    """The callback that ends training when the time is up or Ctrl-C came."""
    import keras

    class Limits(keras.callbacks.Callback):
        """Ends training when the time is up or Ctrl-C came."""

        def on_train_begin(self, logs=None):
            self.end = float("inf")
            if minutes is not None:
                self.end = time.monotonic() + 60 * minutes

        def on_train_batch_end(self, batch, logs=None):
            interrupts.check()
            if time.monotonic() > self.end:
                self.model.stop_training = True

        def on_test_batch_end(self, batch, logs=None):
            interrupts.check()

        def on_epoch_end(self, epoch, logs=None):
            interrupts.check()

    return Limits()
