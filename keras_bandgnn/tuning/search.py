"""`make_tuner`: a resumable keras-tuner tuner for graph models."""

import contextlib
import gc
import json
import os
from pathlib import Path

import keras
import numpy as np

from keras_bandgnn.checks import (
    as_path,
    boolean,
    instance,
    one_of,
    positive_int,
    seed_number,
)
from keras_bandgnn.data.files import FULL, FolderLock, atomic_write, write_json
from keras_bandgnn.data.reading import read_json, refuse_file
from keras_bandgnn.tuning.extra import keras_tuner
from keras_bandgnn.tuning.failures import CrashLog, DiskError
from keras_bandgnn.tuning.hypermodel import GraphHyperModel
from keras_bandgnn.tuning.oracles import (
    FAILURE,
    BayesianOracle,
    HyperbandOracle,
    RandomOracle,
    SafeOracle,
    plain_values,
)

# The settings that identify a search, stored in its folder.
FINGERPRINT = "hypermodel.json"


def _fingerprint(hypermodel) -> dict:
    # As read back from JSON, with lists in place of tuples, ranges and arrays.
    text = json.dumps(
        hypermodel.fixed(), default=lambda value: np.asarray(value).tolist()
    )
    return json.loads(text)


def save_fingerprint(folder: Path, hypermodel) -> None:
    """Write the settings of a new search; called by the chief only."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FINGERPRINT, _fingerprint(hypermodel))


def check_fingerprint(folder: Path, hypermodel) -> None:
    """Reject the folder of a search with another hypermodel.

    Raises:
        ValueError: If the folder holds such a search.
    """
    file = folder / FINGERPRINT
    # Without a state there is nothing to resume. Older folders lack this file.
    if not (folder / "oracle.json").is_file() or not file.is_file():
        return
    old, new = read_json(file), _fingerprint(hypermodel)
    if not isinstance(old, dict):
        refuse_file(file, "to hold a JSON object", type(old).__name__)
    names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    if names:
        changes = ", ".join(f"{k}={new.get(k)!r}, was {old.get(k)!r}" for k in names)
        raise ValueError(
            f"Expected the search in {folder} to use the same hypermodel. Received: "
            f"{changes}. Choose another folder, or pass overwrite=True "
            "(--overwrite) to discard it."
        )


TUNERS = ("random", "hyperband", "bayesian")
# More trials than any search has, so that failures never end it.
_NEVER = 1 << 30


class _Resumable:
    """Makes a tuner of keras-tuner resumable; see `SafeOracle`."""

    def _get_tuner_fname(self):
        return str(Path(self.project_dir) / "oracle.json")

    def save(self):
        """Save the oracle; tuners have no other state."""
        if not self._is_worker():
            self.oracle.save()

    def reload(self):
        """Reload the saved oracle."""
        if not self._is_worker():
            self.oracle.reload()

    def _populate_initial_space(self):
        # Declares the whole space; keras-tuner would build models to discover it.
        space = self.oracle.get_space()
        self.hypermodel.declare_hyperparameters(space)
        self.oracle.update_space(space)
        # Called for new searches only, which workers never start.
        if not self._is_worker():
            save_fingerprint(Path(self.project_dir), self.hypermodel)

    def _try_build(self, hp):
        policy = keras.config.dtype_policy()
        keras.backend.clear_session()
        keras.config.set_dtype_policy(policy)
        gc.collect()
        return self._build_hypermodel(hp)

    def _build_and_fit_model(self, trial, *args, **kwargs):
        # keras-tuner's callbacks synchronise every step, and save every epoch.
        callbacks = [c for c in kwargs.pop("callbacks") if not _is_tuner_callback(c)]
        objective = self.hypermodel.search_objective
        best = keras.callbacks.ModelCheckpoint(
            self._get_checkpoint_fname(trial.trial_id),
            monitor=objective.metric,
            mode=objective.direction,
            save_best_only=objective.objective != "accuracy-in-time",
            save_weights_only=True,
        )
        kwargs["callbacks"] = [*callbacks, best]
        return super()._build_and_fit_model(trial, *args, **kwargs)

    def run_trial(self, trial, *args, **kwargs):
        """Run a trial, unless it has crashed too often; see `CrashLog`."""
        trial.hyperparameters.values = plain_values(trial.hyperparameters.values)
        CrashLog(self.get_trial_dir(trial.trial_id)).check()
        try:
            return super().run_trial(trial, *args, **kwargs)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DiskError(*error.args) from error

    def search(self, *args, **kwargs):
        """Run the search, locked against other processes."""
        if self._is_worker():
            super().search(*args, **kwargs)
            return
        with FolderLock(Path(self.project_dir).resolve()):
            super().search(*args, **kwargs)

    def on_trial_end(self, trial):
        """Store the reason of a failure, which the service does not transmit."""
        if trial.message is not None:
            folder = Path(self.get_trial_dir(trial.trial_id))
            with atomic_write(folder / FAILURE) as file:
                file.write(trial.message.encode())
        super().on_trial_end(trial)


def _is_tuner_callback(callback) -> bool:
    return type(callback).__module__.startswith("keras_tuner.")


class _Tuner(_Resumable, keras_tuner.Tuner):
    """Random search or Bayesian optimisation, depending on the oracle."""


class _Hyperband(_Resumable, keras_tuner.Hyperband):
    """Hyperband, which continues from the checkpoints of earlier rounds."""

    def __init__(self, oracle, hypermodel, **options):
        keras_tuner.Tuner.__init__(self, oracle, hypermodel, **options)


def make_tuner(
    hypermodel: GraphHyperModel,
    directory: str | os.PathLike,
    tuner: str = "random",
    max_trials: int = 40,
    overwrite: bool = False,
    seed: int = 0,
) -> "keras_tuner.Tuner":
    """Return a tuner; `search(graphs, validation_data=...)` runs it.

    The tuner has the methods of keras-tuner (`search`, `get_best_models`,
    `get_best_hyperparameters`, `results_summary`). It resumes automatically: if the
    folder holds a search, `search` continues it, and restarts the trial that was
    running. Failed trials never end a search. A folder belongs to one hypermodel, whose
    settings (`hypermodel.fixed()`) are stored with the state.

    Args:
        hypermodel: The hypermodel to search.
        directory: Folder for the state and the best weights of each trial.
        tuner: `"random"` (the paper's), `"hyperband"` (which ignores `max_trials`: it
            follows from the epochs) or `"bayesian"` (needs scikit-learn).
        max_trials: Number of trials.
        overwrite: Whether to discard an existing search in the folder.
        seed: Seed of the sampling.

    Raises:
        RuntimeError: From `search`, or with `overwrite`, if another process runs the
            search.
        ValueError: For Hyperband with an objective with time, since each of its rounds
            starts a new clock. For a folder with the search of another hypermodel.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(3, [0], [1], node={"kind": [0, 1, i % 2]}, label=i % 2)
    ...     for i in range(8)
    ... ]
    >>> hypermodel = kb.tuning.GraphTransformerHyperModel(graphs, hidden_dim=8)
    >>> make_tuner(hypermodel, "search", max_trials=2).remaining_trials
    2
    """
    instance("hypermodel", hypermodel, GraphHyperModel, "a GraphHyperModel")
    one_of("tuner", tuner, TUNERS)
    path = as_path("directory", directory)
    boolean("overwrite", overwrite)
    positive_int("max_trials", max_trials)
    common = {
        "objective": hypermodel.objective,
        # keras-tuner replaces seed 0 by a random one.
        "seed": seed_number("seed", seed) + 1,
        "max_consecutive_failed_trials": _NEVER,
    }
    if not overwrite:
        check_fingerprint(path, hypermodel)
    tuner_class = _Tuner
    if tuner == "hyperband":
        objective = hypermodel.search_objective
        if objective.timed:
            raise ValueError(
                "Expected objective='accuracy' with tuner='hyperband', which trains "
                f"in rounds. Received: objective={objective.objective!r}. Choose "
                "another tuner."
            )
        tuner_class = _Hyperband
        epochs = objective.max_epochs
        oracle: SafeOracle = HyperbandOracle(max_epochs=epochs, **common)
    else:
        oracle_class = {"random": RandomOracle, "bayesian": BayesianOracle}[tuner]
        oracle = oracle_class(
            max_trials=positive_int("max_trials", max_trials), **common
        )
    # The lock prevents discarding a search that another process is running.
    lock = FolderLock(path.resolve()) if overwrite else contextlib.nullcontext()
    with lock:
        return tuner_class(
            oracle,
            hypermodel,
            directory=str(path.parent),
            project_name=path.name,
            overwrite=overwrite,
        )
