"""`make_tuner`: a resumable keras-tuner tuner for graph models."""

import contextlib
import copy
import json
import os
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from keras_bandgnn.checks import (
    as_path,
    boolean,
    instance,
    one_of,
    positive_int,
    refuse,
    seed_number,
)
from keras_bandgnn.data.files import FULL, FolderLock, atomic_write, write_json
from keras_bandgnn.data.reading import read_json, reading, refuse_file
from keras_bandgnn.tuning.extra import keras_tuner
from keras_bandgnn.tuning.failures import DiskError
from keras_bandgnn.tuning.hypermodel import GraphHyperModel

TUNERS = ("random", "hyperband", "bayesian")
# The settings that identify a search, stored in its folder.
FINGERPRINT = "hypermodel.json"
# More trials than any search has, so that failures never end it.
_NEVER = 1 << 30

# === Results ===


def reason_of(trial) -> str:
    """Return why a trial failed, in one line; empty if it did not fail."""
    lines = (trial.message or "").strip().splitlines()
    if not lines:
        return ""
    name, _, text = lines[-1].partition(": ")
    return text if name.endswith("FailedTrialError") and text else lines[-1]


def trial_row(trial) -> dict:
    """Describe a trial by plain values.

    Returns:
        `trial`, `status`, `score`, `metrics` by name, `values` by name, `reason`.
    """
    histories = trial.metrics.metrics
    # keras-tuner's service returns them in no fixed order.
    names = sorted(histories, key=lambda name: (not name.startswith("val_"), name))
    return {
        "trial": trial.trial_id,
        "status": trial.status.lower(),
        "score": trial.score,
        "metrics": {name: float(histories[name].get_best_value()) for name in names},
        "values": dict(trial.hyperparameters.values),
        "reason": reason_of(trial),
    }


def trial_table(tuner: keras_tuner.Tuner) -> list[dict]:
    """Return the finished trials of a search, best first, failed ones last.

    Args:
        tuner: A tuner of `make_tuner`, or any keras-tuner tuner.

    Returns:
        A dictionary per trial: `trial`, `status` ("completed" or "failed"), `score`,
        `metrics`, `values`, and the `reason` of a failure in one line.
    """
    if not hasattr(tuner, "oracle"):
        refuse("tuner", "a tuner of keras-tuner", tuner)
    trials = tuner.oracle.trials.values()
    rows = [trial_row(t) for t in trials if t.status in ("COMPLETED", "FAILED")]
    sign = 1 if tuner.oracle.objective.direction == "min" else -1

    def rank(row: dict) -> tuple:
        if row["score"] is None or row["status"] != "completed":
            return (1, row["trial"])
        return (0, sign * row["score"])

    return sorted(rows, key=rank)


# === Distributed mode ===


def is_worker() -> bool:
    """Return whether keras-tuner's environment variables make this process a worker."""
    name = os.environ.get("KERASTUNER_TUNER_ID", "")
    return "KERASTUNER_ORACLE_IP" in os.environ and "chief" not in name


class _Oracle:
    """Repeats trials from the start, and restores values that workers do not transmit.

    `ended(trial)` is called with every finished trial.
    """

    folder: Path
    ended: Callable | None = None

    def create_trial(self, tuner_id):
        """Return the next trial, without the metrics of an interrupted attempt."""
        trial = super().create_trial(tuner_id)
        trial.metrics = type(trial.metrics)()
        return trial

    def end_trial(self, trial):
        """End a trial, with its exact values and its reason of failure."""
        stored = self.get_trial(trial.trial_id)
        # Workers return floats in single precision, which are no choices of `Choice`.
        trial.hyperparameters = stored.hyperparameters
        message = _message_file(self.folder, trial.trial_id)
        if trial.status != "COMPLETED" and trial.message is None and message.is_file():
            trial.message = message.read_text("utf-8")
        super().end_trial(trial)
        if self.ended is not None:
            self.ended(stored)


class _RandomOracle(_Oracle, keras_tuner.oracles.RandomSearchOracle):
    """Random search."""


class _HyperbandOracle(_Oracle, keras_tuner.oracles.HyperbandOracle):
    """Hyperband."""


class _BayesianOracle(_Oracle, keras_tuner.oracles.BayesianOptimizationOracle):
    """Bayesian optimisation."""


def _message_file(folder: Path, trial_id: str) -> Path:
    return folder / f"trial_{trial_id}" / "failure.txt"


# === The tuner ===


class GraphTuner(keras_tuner.Tuner):
    """Runs the trials of a `GraphHyperModel`; see `make_tuner`.

    Args:
        oracle: The oracle, whose search space is declared.
        hypermodel: The hypermodel.
        folder: Folder of the search.
        overwrite: Whether to discard an existing search.
    """

    def __init__(self, oracle, hypermodel, folder: Path, overwrite: bool):
        # Without the hypermodel, of which keras-tuner would build several models to
        # discover the space.
        super().__init__(
            oracle,
            directory=str(folder.parent),
            project_name=folder.name,
            overwrite=overwrite,
        )
        self.hypermodel = hypermodel

    def run_trial(self, trial, *args, callbacks=(), **options):
        """Build, train and score the model of a trial."""
        policy = keras.config.dtype_policy()
        keras.backend.clear_session()
        keras.config.set_dtype_policy(policy)
        hp = trial.hyperparameters
        objective = self.hypermodel.search_objective
        best = keras.callbacks.ModelCheckpoint(
            self._weights(trial.trial_id),
            monitor=objective.metric,
            mode=objective.direction,
            save_best_only=objective.objective != "accuracy-in-time",
            save_weights_only=True,
        )
        if "tuner/epochs" in hp.values:  # a round of Hyperband
            options["epochs"] = hp.values["tuner/epochs"]
            options["initial_epoch"] = hp.values["tuner/initial_epoch"]
        try:
            model = self.hypermodel.build(hp)
            if "tuner/trial_id" in hp.values:
                model.load_weights(self._weights(hp.values["tuner/trial_id"]))
            callbacks = [*copy.deepcopy(list(callbacks)), best]
            return self.hypermodel.fit(hp, model, *args, callbacks=callbacks, **options)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DiskError(*error.args) from error

    def load_model(self, trial):
        """Return the model of a trial with its best weights."""
        model = self.hypermodel.build(trial.hyperparameters)
        model.load_weights(self._weights(trial.trial_id))
        return model

    def on_trial_end(self, trial):
        """End a trial; a worker leaves the reason of a failure to the chief."""
        if is_worker() and trial.message is not None:
            self.get_trial_dir(trial.trial_id)
            file = _message_file(Path(self.project_dir), trial.trial_id)
            with atomic_write(file) as stream:
                stream.write(trial.message.encode())
        super().on_trial_end(trial)

    def search(self, *args, **options):
        """Run the search, locked against other searches in the folder."""
        lock = contextlib.nullcontext()
        if not is_worker():
            lock = FolderLock(Path(self.project_dir).resolve())
        with lock:
            super().search(*args, **options)

    def _weights(self, trial_id: str) -> str:
        return str(Path(self.get_trial_dir(trial_id)) / "checkpoint.weights.h5")


def _fingerprint(hypermodel) -> dict:
    # As read back from JSON, with lists in place of tuples, ranges and arrays.
    text = json.dumps(
        hypermodel.fixed(), default=lambda value: np.asarray(value).tolist()
    )
    return json.loads(text)


def _check_fingerprint(folder: Path, hypermodel) -> None:
    """Raise a ValueError if the folder holds a search of another hypermodel."""
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


def _check_trials(folder: Path, oracle: _Oracle) -> None:
    """Raise a ValueError for completed trials without a finite score."""
    for trial in oracle.trials.values():
        number = isinstance(trial.score, int | float) and np.isfinite(trial.score)
        if trial.status == "COMPLETED" and not number:
            file = folder / f"trial_{trial.trial_id}" / "trial.json"
            refuse_file(file, "to have a finite score", trial.score)


def _make_oracle(hypermodel, tuner: str, max_trials: int, seed: int) -> _Oracle:
    space = keras_tuner.HyperParameters()
    hypermodel.declare_hyperparameters(space)
    common = {
        "objective": hypermodel.objective,
        "hyperparameters": space,
        # keras-tuner replaces seed 0 by a random one.
        "seed": seed + 1,
        "max_consecutive_failed_trials": _NEVER,
    }
    if tuner == "random":
        return _RandomOracle(max_trials=max_trials, **common)
    if tuner == "bayesian":
        return _BayesianOracle(max_trials=max_trials, **common)
    objective = hypermodel.search_objective
    if objective.timed:
        raise ValueError(
            "Expected objective='accuracy' with tuner='hyperband', which trains "
            f"in rounds. Received: objective={objective.objective!r}. Choose "
            "another tuner."
        )
    return _HyperbandOracle(max_epochs=objective.max_epochs, **common)


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
    settings (`hypermodel.fixed()`) are stored with the state. keras-tuner's environment
    variables for several processes or machines are followed: KERASTUNER_TUNER_ID,
    KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT.

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
    oracle = _make_oracle(hypermodel, tuner, max_trials, seed_number("seed", seed))
    oracle.folder = path
    # Only the chief of a distributed search may discard or begin it.
    begins = not is_worker()
    overwrite = overwrite and begins
    if not overwrite:
        _check_fingerprint(path, hypermodel)
    # The lock prevents discarding a search that another process is running.
    lock = FolderLock(path.resolve()) if overwrite else contextlib.nullcontext()
    with lock, reading(path):
        result = GraphTuner(oracle, hypermodel, path, overwrite)
        if begins and (path / "oracle.json").is_file():
            # keras-tuner resumes only if the process had the same KERASTUNER_TUNER_ID.
            oracle.reload()
            _check_trials(path, oracle)
        elif begins:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / FINGERPRINT, _fingerprint(hypermodel))
    return result
