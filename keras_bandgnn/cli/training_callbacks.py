"""Callbacks of `bandgnn train`: the best weights, the state to go on from, the end."""

import argparse
import csv
import json
import shutil
import time
from pathlib import Path

from keras_bandgnn.cli import interrupts
from keras_bandgnn.cli.settings import differences, settings_of

# Options that may change between a run and its continuation.
_FREE = (
    "backend",
    "command",
    "debug",
    "line",
    "minutes",
    # What is kept lies beside it.
    "out",
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

    from keras_bandgnn.data.files import atomic_write

    kept = settings_of(options, _FREE)
    data = json.loads(json.dumps(data, default=str))
    saved = work / "settings.json"
    if options.restart:
        shutil.rmtree(work, ignore_errors=True)
    elif saved.is_file():
        old, graphs = json.loads(saved.read_text())
        found = differences(old, kept, _FREE)
        found += [f"other {k} graphs" for k in data if data[k] != graphs.get(k)]
        if found:
            raise ValueError(
                f"Expected the interrupted run in {work} to have the same options and "
                f"data. Received: {'; '.join(found)}. Pass --restart to throw it away, "
                "or choose another --out."
            )
    work.mkdir(parents=True, exist_ok=True)
    with atomic_write(saved) as file:
        file.write(json.dumps([kept, data]).encode())
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
