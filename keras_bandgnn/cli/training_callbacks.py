"""Training of `bandgnn train`: checkpoints, best weights, time limit, progress."""

import argparse
import contextlib
import json
import math
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from keras_bandgnn.cli import interrupts
from keras_bandgnn.cli.options import flag

# Options that may name files. Their paths are stored resolved, independent of the
# working directory.
_PATHS = ("data", "path", "source", "valid")


def settings_of(options: argparse.Namespace, free: Collection[str]) -> dict:
    """Return the options as JSON values, except the `free` ones."""
    settings = {k: v for k, v in vars(options).items() if k not in free}
    return json.loads(json.dumps(resolved(settings), default=str))


def resolved(settings: dict) -> dict:
    """Return settings with the paths of existing files resolved."""
    paths = {
        name: str(Path(value).resolve())
        for name, value in settings.items()
        if name in _PATHS and isinstance(value, str | Path) and Path(value).exists()
    }
    return settings | paths


def differences(old: dict, new: dict, free: Collection[str] = ()) -> list[str]:
    """Describe each changed setting with its new and old value."""
    old = resolved(old)
    return [
        f"{flag(name)} is {_shown(new.get(name))}, was {_shown(old.get(name))}"
        for name in sorted({*old, *new} - set(free))
        if old.get(name) != new.get(name)
    ]


def _shown(value) -> str:
    if value is None or value is False or value == []:
        return "not set"
    if value is True:
        return "set"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


# Exists in the folder of a run from when it begins to save its model.
_SAVING = "saving"
# Files and folders of a run.
_BEST = "best.weights.h5"
_PROGRESS = "progress"

# Options that may change between a run and its continuation.
_FREE = (
    "backend",
    "command",
    "debug",
    "line",
    "minutes",
    # The run's folder is next to it.
    "out",
    "overwrite",
    "restart",
    "run",
    "title",
    "top",
    "weights",
)


def check_run(options: argparse.Namespace, data: dict, work: Path) -> None:
    """Reject the folder of another run; the caller holds the folder's lock."""
    from keras_bandgnn.data.files import write_json
    from keras_bandgnn.data.reading import read_json, reading

    settings = settings_of(options, _FREE)
    data = json.loads(json.dumps(data, default=str))
    saved = work / "settings.json"
    if options.restart:
        for path in work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif saved.is_file():
        with _resuming(work), reading(saved):
            old, graphs = read_json(saved, list)
            changes = differences(old, settings, _FREE)
            changes += [f"other {k} graphs" for k in data if data[k] != graphs.get(k)]
        if changes:
            raise ValueError(
                f"Expected the interrupted run in {work} to have the same options and "
                f"data. Received: {'; '.join(changes)}. Pass --restart to discard it, "
                "or choose another --out."
            )
    write_json(saved, [settings, data])


@contextlib.contextmanager
def _resuming(work: Path) -> Iterator[None]:
    """Say of errors in files of an interrupted run how to do without them."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"Expected all files of the interrupted run in {work}. Received: {error} "
            "Pass --restart to train from the start, or choose another --out."
        ) from error


def check_resumed(work: Path, history: "History", loader) -> None:
    """Raise a ValueError if a run cannot resume, before it trains."""
    from keras_bandgnn.training import SaveProgress

    with _resuming(work):
        saved = SaveProgress(work / _PROGRESS).saved()
        history.check(saved["loader"]["epoch"] if saved else 0)
    if saved and saved["loader"].get("fingerprint") != loader.fingerprint():
        raise ValueError(
            f"Expected the graphs, batches and plan that the run in {work} began with. "
            "Received: others. By default a plan is chosen for the backend and the "
            "machine: continue where the run began, or pass --restart to train from "
            "the start."
        )


class History:
    """Metrics of the epochs of a run, stored on disk.

    Args:
        work: Folder of the run.
        monitor: The metric that determines the best epoch.
        mode: "max" or "min".
        starts: Epochs, ascending, from which the metric means something else, so that
            it is compared with those since then. Training does not end early before
            the last of them.
    """

    def __init__(self, work: Path, monitor: str, mode: str, starts: Sequence[int] = ()):
        from keras_bandgnn.data.reading import read_json, reading

        self._file = work / "history.json"
        self._monitor, self._sign = monitor, 1 if mode == "max" else -1
        self._starts = (0, *starts)
        self._rows = []
        if self._file.is_file():
            with _resuming(work), reading(self._file):
                self._rows = read_json(self._file, list)
                self._scores(self._rows)

    def _scores(self, rows: list[dict]) -> list[float]:
        """Return the monitored metric, negated if lower is better."""
        values = [self._sign * row[self._monitor] for row in rows]
        return [-math.inf if math.isnan(value) else value for value in values]

    def check(self, epochs: int) -> None:
        """Raise a ValueError if files of a run of so many epochs are missing."""
        from keras_bandgnn.data.weights_files import check_weights

        if len(self._rows) < epochs:
            raise ValueError(
                f"{self._file} with {len(self._rows)} of the {epochs} epochs that it "
                "has trained."
            )
        if max(self._scores(self._rows), default=-math.inf) > -math.inf:
            best = self._file.with_name(_BEST)
            if not best.is_file():
                raise ValueError(f"no {best}, the best weights.")
            check_weights(best)

    def is_best(self, epoch: int, logs: dict) -> bool:
        """Return whether an epoch is better than all before it since a start."""
        (score,) = self._scores([logs])
        first = max(start for start in self._starts if start <= epoch)
        return score > max(self._scores(self._rows[first:epoch]), default=-math.inf)

    def add(self, epoch: int, logs: dict) -> None:
        """Store the metrics of an epoch; replace them if it is repeated."""
        from keras_bandgnn.data.files import write_json

        row = {name: float(value) for name, value in logs.items()}
        self._rows = [*self._rows[:epoch], row]
        write_json(self._file, self._rows)

    def plateaus(self, patience: int, epochs: int) -> int:
        """Count how often `patience` of the first epochs in a row had no new best."""
        best, waited, count = -math.inf, 0, 0
        for epoch, score in enumerate(self._scores(self._rows[:epochs])):
            if epoch in self._starts:
                best = -math.inf
            waited = 0 if score > best else waited + 1
            best = max(best, score)
            if waited == patience:
                waited, count = 0, count + 1
        return count

    def is_over(self, patience: int | None, epochs: int | None = None) -> bool:
        """Return whether the best of the first epochs is `patience` epochs ago."""
        scores = self._scores(self._rows[:epochs][self._starts[-1] :])
        if not patience or not scores:
            return False
        return len(scores) - 1 - scores.index(max(scores)) >= patience


def run_folder_path(out: Path) -> Path:
    """Return the folder of the run that writes a model."""
    return out.with_name(out.name + ".partial")


def save(model, options: argparse.Namespace, card: str) -> None:
    """Save a task or an ensemble as a preset, in the context of `run_folder`.

    Args:
        model: The model.
        options: The command line.
        card: The model card.
    """
    (run_folder_path(options.out) / _SAVING).touch()
    model.save_to_preset(options.out, options.weights, card)


def check_out(options: argparse.Namespace, members: int = 1) -> None:
    """Reject an existing model, unless this run saved it before it was killed.

    Args:
        options: The command line.
        members: Number of models that are saved as an ensemble; 1 for a preset.
    """
    from keras_bandgnn.data.files import remove_leftovers
    from keras_bandgnn.saving.preset_files import check_ensemble_target, check_target

    if members > 1:
        check_ensemble_target(options.out, members)
    else:
        check_target(options.out)
    remove_leftovers(run_folder_path(options.out))
    own = (run_folder_path(options.out) / _SAVING).exists()
    if options.out.exists() and not options.overwrite and not own:
        raise ValueError(
            f"Expected --out {options.out} to be new. Received: an existing model. "
            "Pass --overwrite to replace it, or choose another folder."
        )


@contextlib.contextmanager
def run_folder(options: argparse.Namespace, data: dict) -> Iterator[Path]:
    """Lock the folder of a run, and remove it after the model is saved.

    Args:
        options: The command line.
        data: Values that identify the graphs.

    Yields:
        The folder.

    Raises:
        ValueError: If it holds another run.
        RuntimeError: If another process has locked it.
    """
    from keras_bandgnn.data.files import FolderLock, remove_folder, remove_leftovers

    work = run_folder_path(options.out)
    with FolderLock(work):
        check_run(options, data, work)
        yield work
        remove_folder(work)
    remove_leftovers(work)


def fit(
    task,
    loader,
    valid,
    options: argparse.Namespace,
    work: Path,
    monitor: str = "val_accuracy",
    mode: str = "max",
    patience: int | None = None,
    averaged: bool = False,
    callbacks: Sequence = (),
    verbose: int | None = None,
    starts: Sequence[int] = (),
) -> None:
    """Train, resuming an interrupted run, and load the best weights.

    Args:
        task: The compiled task.
        loader: Training graphs.
        valid: Validation graphs.
        options: The command line.
        work: Folder of the run.
        monitor: The metric that determines the best epoch.
        mode: "max" or "min".
        patience: Epochs without improvement after which training ends.
        averaged: Whether the optimizer averages the weights, and the averages are
            validated and saved.
        callbacks: More callbacks.
        verbose: As for Keras; a bar on a terminal, otherwise lines, if omitted.
        starts: See `History`.
    """
    history = History(work, monitor, mode, starts)
    if verbose is None:
        verbose = 1 if sys.stdout.isatty() else 2
    check_resumed(work, history, loader)
    if not history.is_over(patience):
        task.fit(
            loader,
            validation_data=valid,
            epochs=options.epochs,
            callbacks=[
                *checkpoints(work, history, patience, averaged),
                *callbacks,
                limits(options.minutes),
                *progress_lines(),
            ],
            verbose=verbose,
        )
    interrupts.check()
    if (work / _BEST).is_file():
        task.load_weights(work / _BEST)


def checkpoints(
    work: Path, history: History, patience: int | None = None, averaged: bool = False
) -> list:
    """Return the callbacks that save the best weights and the resumable state.

    Args:
        work: Folder of the run.
        history: The metrics of the run.
        patience: Epochs without improvement after which training ends.
        averaged: Whether the averages of the optimizer are validated and the best.
    """
    import keras

    from keras_bandgnn.training import SaveProgress

    averages = keras.callbacks.SwapEMAWeights()

    class Best(keras.callbacks.Callback):
        """Saves best weights and metrics before the epoch is marked as complete."""

        def on_epoch_end(self, epoch, logs=None):
            if history.is_best(epoch, logs):
                if averaged:
                    averages.on_test_begin()
                self.model.save_weights(work / _BEST)
                if averaged:
                    averages.on_test_end()
            history.add(epoch, logs)
            if history.is_over(patience, epoch + 1):
                self.model.stop_training = True

    class Progress(SaveProgress):
        """Keeps the saved progress until the model is saved."""

        def clear(self):
            pass

    # Validation takes the averages; progress is saved with the weights themselves.
    validated = [averages] if averaged else []
    return [*validated, Best(), Progress(work / _PROGRESS)]


def plateaus(history: History, rate: float, patience: int, factor: float = 0.5):
    """Return the callback that lowers the learning rate where progress ends.

    Unlike Keras' `ReduceLROnPlateau` it reads the metrics of the whole run, so that a
    run that resumes continues with its rate.

    Args:
        history: The metrics of the run.
        rate: The first learning rate.
        patience: Epochs without improvement before the rate falls.
        factor: What the rate is multiplied by.
    """
    import keras

    class Plateaus(keras.callbacks.Callback):
        """Sets the learning rate of each epoch."""

        def on_epoch_begin(self, epoch, logs=None):
            count = history.plateaus(patience, epoch)
            self.model.optimizer.learning_rate = rate * factor**count

    return Plateaus()


def limits(minutes: float | None):
    """Return the callback that ends training on the time limit or on Ctrl-C."""
    import keras

    class Limits(keras.callbacks.Callback):
        """Ends training on the time limit or on Ctrl-C."""

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


def progress_lines() -> list:
    """Return the callback that prints progress if there is no terminal.

    On a terminal, Keras shows a progress bar.
    """
    from keras_bandgnn.training.progress_callbacks import ProgressLines

    return [] if sys.stdout.isatty() else [ProgressLines()]
