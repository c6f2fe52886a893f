"""Runs of `bandgnn train`: their folder, which resumes, and training in it."""

import argparse
import contextlib
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from keras_bandgnn.cli import interrupts, recipe_files
from keras_bandgnn.cli import options as shared

# Exists in the folder of a run from when it begins to save its model.
_SAVING = "saving"
# Exists from when training is complete.
_TRAINED = "trained"
# Files and folders of a run.
_BEST = "best.weights.h5"
_HISTORY = "history.json"
_PROGRESS = "progress"
# The recipe of a run of version 0.2.0.
_OLD_RECIPE = "settings.json"

# Options that may change between a run and its continuation.
_FREE = ("minutes", "title", "weights")


def check_run(options: argparse.Namespace, data: Mapping, work: Path) -> None:
    """Reject the folder of another run; the caller holds the folder's lock."""
    from keras_bandgnn.data.reading import reading

    recipe = recipe_files.settings(options)
    data = json.loads(json.dumps(data, default=str))
    saved, old_file = work / recipe_files.FILE, work / _OLD_RECIPE
    if options.restart:
        for path in work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif saved.is_file() or old_file.is_file():
        with _resuming(work), reading(saved if saved.is_file() else old_file):
            old, graphs = _saved_recipe(work)
            changes = shared.differences({k: old.get(k) for k in recipe}, recipe, _FREE)
            changes += [f"other {k} graphs" for k in data if data[k] != graphs.get(k)]
        if changes:
            raise ValueError(
                f"Expected the interrupted run in {work} to have the same options and "
                f"data. Received: {'; '.join(changes)}. Pass --restart to discard it, "
                "or choose another --out."
            )
    recipe_files.write(saved, recipe, data)


def _saved_recipe(work: Path) -> tuple[Mapping, Mapping]:
    """Return the recipe of an interrupted run, and the identity of its graphs."""
    from keras_bandgnn.data.reading import read_json

    if (work / recipe_files.FILE).is_file():
        values = recipe_files.read_values(work / recipe_files.FILE)
        texts = values["graphs"]
        return values, {name: json.loads(text) for name, text in texts.items()}
    values, graphs = read_json(work / _OLD_RECIPE, list)
    # Choices that are texts of a command line in a recipe.
    return recipe_files.from_json(values), graphs


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


def read_history(file: Path, monitor: str) -> list[dict]:
    """Return the metrics of epochs, which include a metric."""
    from keras_bandgnn.data.reading import read_json, reading

    with reading(file):
        rows = read_json(file, list)
        return [row | {monitor: float(row[monitor])} for row in rows]


def _saved_rows(work: Path, loader, monitor: str) -> list[dict]:
    """Return the metrics of the epochs before; raise a ValueError if files are missing.

    Args:
        work: Folder of the run.
        loader: Training graphs.
        monitor: The metric that determines the best epoch.
    """
    from keras_bandgnn.data.weights_files import check_weights
    from keras_bandgnn.training import SaveProgress

    file = work / _HISTORY
    with _resuming(work):
        rows = read_history(file, monitor) if file.is_file() else []
        saved = SaveProgress(work / _PROGRESS).saved()
        epochs = saved["loader"]["epoch"] if saved else 0
        if (work / _TRAINED).exists():
            epochs = len(rows)
        if len(rows) < epochs:
            raise ValueError(
                f"{file} with {len(rows)} of the {epochs} epochs that it has trained."
            )
        if any(math.isfinite(row[monitor]) for row in rows[:epochs]):
            if not (work / _BEST).is_file():
                raise ValueError(f"no {work / _BEST}, the best weights.")
            check_weights(work / _BEST)
    if saved and saved["loader"].get("fingerprint") != loader.fingerprint():
        raise ValueError(
            f"Expected the graphs, batches and plan that the run in {work} began with. "
            "Received: others. By default a plan is chosen for the backend and the "
            "machine: continue where the run began, or pass --restart to train from "
            "the start."
        )
    return rows


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
    recipe_files.write(options.out / recipe_files.FILE, recipe_files.settings(options))


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
    is_saving = (run_folder_path(options.out) / _SAVING).exists()
    if options.out.exists() and not options.overwrite and not is_saving:
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
    plateau: int | None = None,
    starts: Sequence[int] = (),
    callbacks: Sequence = (),
    verbose: int | None = None,
) -> list[dict]:
    """Train, resuming an interrupted run, and load the best weights.

    If the optimizer averages the weights, the averages are validated and saved.

    Args:
        task: The compiled task.
        loader: Training graphs.
        valid: Validation graphs.
        options: The command line.
        work: Folder of the run.
        monitor: The metric that determines the best epoch.
        mode: "max" or "min".
        patience: Epochs without improvement after which training ends.
        plateau: Epochs without improvement after which the learning rate is halved.
        starts: Epochs, ascending, from which the metric means something else, so that
            it is compared with those since then. Training does not end early before
            the last of them.
        callbacks: More callbacks.
        verbose: As for Keras; a bar on a terminal, otherwise lines, if omitted.

    Returns:
        The metrics of the epochs.
    """
    import keras

    from keras_bandgnn.cli import resuming
    from keras_bandgnn.training import SaveProgress

    rows = _saved_rows(work, loader, monitor)
    if (work / _TRAINED).exists():
        # The weights have its state, too.
        task.optimizer.build(task.trainable_variables)
    else:
        watch = {"monitor": monitor, "mode": mode}
        averages = None
        if task.optimizer.use_ema:
            averages = keras.callbacks.SwapEMAWeights()
        checkpoint = resuming.Checkpoint(averages, filepath=work / _BEST, **watch)
        others: list = []
        if plateau is not None:
            others.append(
                keras.callbacks.ReduceLROnPlateau(
                    factor=0.5, patience=plateau, min_delta=0.0, **watch
                )
            )
        if patience is not None:
            first = starts[-1] if starts else 0
            others.append(
                keras.callbacks.EarlyStopping(
                    patience=patience, start_from_epoch=first, **watch
                )
            )
        metrics = resuming.Metrics(
            work / _HISTORY, rows, checkpoint, others, starts, work / _TRAINED
        )
        if plateau is not None:
            metrics.rate = options.learning_rate
        task.fit(
            loader,
            validation_data=valid,
            epochs=options.epochs,
            callbacks=[
                # Validation takes the averages.
                *([] if averages is None else [averages]),
                metrics,
                *callbacks,
                checkpoint,
                *others,
                # Last, with the weights themselves: the epoch is complete.
                SaveProgress(work / _PROGRESS),
                limits(options.minutes),
                *progress_lines(),
            ],
            verbose=(1 if sys.stdout.isatty() else 2) if verbose is None else verbose,
        )
    interrupts.check()
    if (work / _BEST).is_file():
        task.load_weights(work / _BEST)
    return read_history(work / _HISTORY, monitor)


def limits(minutes: float | None):
    """Return the callback that ends training on the time limit or on Ctrl-C."""
    from keras_bandgnn.cli.resuming import Limits

    return Limits(minutes)


def progress_lines() -> list:
    """Return the callback that prints progress if there is no terminal.

    On a terminal, Keras shows a progress bar.
    """
    from keras_bandgnn.training.progress_callbacks import ProgressLines

    return [] if sys.stdout.isatty() else [ProgressLines()]
