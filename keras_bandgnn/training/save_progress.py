"""`SaveProgress`: resumable training, even within an epoch."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import keras

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import as_path, positive_int, refuse
from keras_bandgnn.data.files import FolderLock, write_json, writing
from keras_bandgnn.data.reading import read_json, reading
from keras_bandgnn.data.weights_files import check_weights, shapes

if TYPE_CHECKING:
    from keras_bandgnn.aliases import FilePath, Logs, Model
    from keras_bandgnn.preprocessing.loading.loader import Loader

_PLACE = "progress.json"
_WEIGHTS = re.compile(r"epoch-[0-9]{1,12}-batch-[0-9]{1,12}\.weights\.h5")


def _check_saved(saved) -> None:
    """Raise a ValueError for contents that `SaveProgress.save` does not write."""
    if not isinstance(saved, dict) or not {"weights", "loader", "seeds"} <= set(saved):
        raise ValueError(f"{_PLACE} without weights, loader and seeds")
    # Only a file in the folder itself, as it is deleted in the end.
    name, loader, seeds = saved["weights"], saved["loader"], saved["seeds"]
    if not isinstance(name, str) or not _WEIGHTS.fullmatch(name):
        raise ValueError(f"the weights {name!r}")
    if not isinstance(loader, dict):
        raise ValueError(f"the loader {loader!r}")
    for key in ("epoch", "batch"):
        positive_int(key, loader.get(key), 0)
    if not isinstance(seeds, list):
        raise ValueError(f"the seeds {seeds!r}")
    for seed in seeds:
        if not isinstance(seed, list) or len(seed) != 2:
            raise ValueError(f"the seed {seed!r}")
        for number in seed:
            positive_int("seeds", number, 0, (1 << 32) - 1)


def _seed_states(model: Model) -> list:
    """Return the seed variables of dropout."""
    # Their paths depend on how many layers exist, their order does not.
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]


class Interruption(KeyboardInterrupt, SystemExit):
    """Ctrl-C during a training that saves its progress.

    It is a `KeyboardInterrupt` for code that expects one, and a `SystemExit` for
    Python, which ends a script with the exit code of Ctrl-C and no traceback.
    """

    code = 130


def end_script(callbacks: Sequence, error: KeyboardInterrupt) -> None:
    """Say on standard error where a training will resume, and raise an `Interruption`.

    It returns, so that the caller raises the error, where that would end more than a
    script: in interactive Python, and for errors of other code that handles signals.

    Args:
        callbacks: The `SaveProgress` of the training.
        error: The interruption.
    """
    if not callbacks or type(error) is not KeyboardInterrupt:
        return
    for callback in callbacks:
        callback.say_place()
    if not hasattr(sys, "ps1") and not sys.flags.interactive:
        raise Interruption from None


class SaveProgress(keras_bases.Callback):
    """Saves weights, optimizer and the position in the epoch.

    Pass it to `fit` of a task, and run the same `fit` again after a crash or an
    interruption: training resumes with the batch after the last saved one, in the same
    order and with the same dropout, and neither repeats nor skips a graph. The files
    are deleted when training ends. Metrics of a resumed epoch cover its remaining
    batches. The states of other callbacks, such as the patience of EarlyStopping, are
    not saved.

    Ctrl-C ends a script with one line, which says where training will resume, and the
    exit code 130 instead of a traceback. `except KeyboardInterrupt` works as usual, and
    interactive sessions get the `KeyboardInterrupt` itself.

    Args:
        directory: Folder for the files, created if missing.
        save_freq: `"epoch"`, or a number of batches.

    Raises:
        ValueError: From `fit`, if the saved progress belongs to other graphs or to
            another batcher, plan, seed or optimizer, or has no state of the optimizer.
        RuntimeError: From `fit`, if another training saves to the folder.

    Example:
    >>> import keras_bandgnn as kb
    >>> kb.training.SaveProgress("progress", save_freq=100).saved() is None
    True
    """

    def __init__(self, directory: FilePath, save_freq: str | int = "epoch"):
        super().__init__()
        if save_freq != "epoch":
            if isinstance(save_freq, str):
                refuse("save_freq", "'epoch' or a number of batches", save_freq)
            positive_int("save_freq", save_freq)
        self.directory = as_path("directory", directory)
        self.save_freq = save_freq
        self.loader = None
        self._lock = None
        self._writes = True
        self._first = self._last = 0
        self._seeds = []

    def saved(self) -> dict | None:
        """Return the saved progress, or None.

        Raises:
            ValueError: If the files are damaged.
        """
        place = self.directory / _PLACE
        if not place.exists():
            return None
        try:
            saved = read_json(place)
            _check_saved(saved)
            check_weights(self.directory / saved["weights"])
        except (ValueError, OSError) as error:
            raise ValueError(
                f"Expected the progress of a training in {self.directory}. Received: "
                f"damaged or incomplete files ({error}). Delete the folder to start "
                "again."
            ) from error
        return saved

    def follow(self, loader: Loader, first_batch: int = 0) -> None:
        """Set the loader whose position is saved; tasks call this.

        Args:
            loader: The loader of `fit`.
            first_batch: Batches of the first epoch that are already done.
        """
        self.loader = loader
        self._first = first_batch

    def restore(self, model: Model, loader: Loader) -> tuple[int, int] | None:
        """Restore the saved progress of the model and the loader.

        Returns:
            The epoch and the number of its batches that are already done; None if
            nothing was saved.
        """
        group = model.distribution
        self._writes = group.is_main
        if group.is_main:
            # One training per folder, also when the folder is a symbolic link.
            self._lock = FolderLock(self.directory.resolve())
        # Other processes may not see the folder.
        saved = self.saved() if group.is_main else None
        saved = json.loads(group.broadcast(json.dumps(saved)))
        if saved is None:
            return None
        if group.is_main:
            self._check_optimizer(model, saved["weights"])
        with reading(self.directory / _PLACE):
            loader.load_state_dict(saved["loader"], hold=True)
        with reading(self.directory / saved["weights"]):
            group.load_weights(model, self.directory / saved["weights"])
        self._seeds = saved["seeds"]
        return saved["loader"]["epoch"], saved["loader"]["batch"]

    def _check_optimizer(self, model: Model, name: str) -> None:
        """Raise a ValueError unless a weights file has the state of the optimizer.

        Keras would leave the state out with a warning, and training would continue with
        a new one.
        """
        names = (key.split("/") for key in shapes(self.directory / name))
        saved = [path for path in names if path[1] == "optimizer"]
        nested = any(path[2] != "vars" for path in saved)
        count = len(model.optimizer.variables)
        if not saved or not nested and len(saved) != count:
            kind = type(model.optimizer).__name__
            raise ValueError(
                f"Expected the state of the optimizer {kind}, "
                f"{count} arrays, in {self.directory / name}. Received: {len(saved)}. "
                "Compile the task with the optimizer that training began with, or "
                f"delete {self.directory} to start again."
            )

    def say_place(self) -> None:
        """Print where the next `fit` will resume, in the main process."""
        if not self._writes:
            return
        place = self.directory / _PLACE
        text = "nothing is saved yet, the same fit starts again"
        if place.exists():
            state = read_json(place)["loader"]
            text = f"the same fit resumes in epoch {state['epoch'] + 1}"
            if state["batch"]:
                text += f" after batch {state['batch']}"
        print(f"\ninterrupted: {text} ({self.directory})", file=sys.stderr, flush=True)

    def save(self, epoch: int, batches: int) -> None:
        """Save the state after some batches of an epoch, in the main process."""
        if not self._writes:
            if self.model.distribution.saves_together:
                with tempfile.TemporaryDirectory() as folder:
                    self.model.save_weights(Path(folder) / "copy.weights.h5")
            return
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        name = f"epoch-{epoch}-batch-{batches}.weights.h5"
        model = self.model
        model.save_weights(self.directory / name)
        saved = {
            "weights": name,
            "loader": self.loader.state_dict(batches, epoch),
            "seeds": [
                keras.ops.convert_to_numpy(v).tolist() for v in _seed_states(model)
            ],
        }
        write_json(self.directory / _PLACE, saved)
        # Including files left by a process that was killed before this line.
        for file in self.directory.glob("*.weights.h5"):
            if file.name != name:
                file.unlink(missing_ok=True)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reject data without a loader, whose position is unknown."""
        if self.loader is None:
            raise ValueError(
                "Expected SaveProgress in `fit` of a task, such as GraphRegressor, "
                "with graphs or a GraphLoader. Received: other data. Make the model a "
                "task, or use keras.callbacks.BackupAndRestore, which saves epochs."
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Record the epoch; restore the dropout seeds of a resumed one."""
        self._epoch = epoch
        self._last = self._first
        # Not earlier, as `fit` also draws from them before its first epoch.
        seeds, self._seeds = self._seeds, []
        if self._first and seeds:
            for variable, state in zip(_seed_states(self.model), seeds, strict=True):
                variable.assign(state)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Save every `save_freq` batches."""
        done = batch + 1 + self._first
        # The end of an epoch is saved after validation.
        if self.save_freq == "epoch" or done >= self.loader.batches_per_epoch:
            return
        if done - self._last >= self.save_freq:
            self.save(self._epoch, done)
            self._last = done

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save the end of the epoch."""
        self._first = 0
        self.save(epoch + 1, 0)

    def clear(self) -> None:
        """Delete the saved progress, in the main process."""
        if not self._writes:
            return
        saved = self.saved()
        if saved is not None:
            (self.directory / _PLACE).unlink()
            (self.directory / saved["weights"]).unlink(missing_ok=True)
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()

    def release(self) -> None:
        """Release the lock on the folder; tasks call this when `fit` ends."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
