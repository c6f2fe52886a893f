"""Oracles of keras-tuner that can be killed at any time and resumed."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_bandgnn.checks import refuse
from keras_bandgnn.data.files import write_json
from keras_bandgnn.data.reading import read_json, reading, refuse_file
from keras_bandgnn.tuning.extra import keras_tuner

# Results of the trials.


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
    # The service for several workers returns them in no fixed order.
    names = sorted(histories, key=lambda name: (not name.startswith("val_"), name))
    metrics = {name: float(histories[name].get_best_value()) for name in names}
    return {
        "trial": trial.trial_id,
        "status": trial.status.lower(),
        "score": trial.score,
        "metrics": metrics,
        "values": dict(trial.hyperparameters.values),
        "reason": reason_of(trial),
    }


def trial_table(tuner) -> list[dict]:
    """Return the finished trials of a search, best first, failed ones last.

    Args:
        tuner: A tuner of `make_tuner`, or any keras-tuner tuner.

    Returns:
        A dictionary per trial: `trial`, `status` ("completed" or "failed"), `score`,
        `metrics`, `values`, and the `reason` of a failure in one line.
    """
    if not hasattr(tuner, "oracle"):
        refuse("tuner", "a tuner of keras-tuner", tuner)
    rows = [trial_row(t) for t in tuner.oracle.trials.values() if t.status in DONE]
    ascending = tuner.oracle.objective.direction == "min"
    return sorted(rows, key=lambda row: _rank(row, ascending))


def _rank(row: dict, ascending: bool) -> tuple:
    if row["score"] is None or row["status"] != "completed":
        return (1, row["trial"])
    return (0, row["score"] if ascending else -row["score"])


DONE = ("COMPLETED", "FAILED")
FAILURE = "failure.txt"
_STATES = ("RUNNING", "IDLE", "INVALID", "STOPPED", "COMPLETED", "FAILED")


def plain_values(values: dict) -> dict:
    """Rounds floats to the shortest decimal of the same float32 value.

    The service between chief and workers transmits floats in single precision.
    """
    return {
        name: float(str(np.float32(value))) if isinstance(value, float) else value
        for name, value in values.items()
    }


def _check_state(folder: Path) -> None:
    """Validate the files of a search; raise a ValueError if they are malformed.

    Args:
        folder: The folder of a search: `oracle.json`, and `trial_<id>/trial.json`.
    """
    state = read_json(folder / "oracle.json", dict)
    if not isinstance(state, dict):
        refuse_file(
            folder / "oracle.json", "to hold a JSON object", type(state).__name__
        )
    for key in ("start_order", "end_order"):
        names = state.get(key, [])
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            refuse_file(
                folder / "oracle.json", f"to have names of trials in {key!r}", names
            )
    for path in folder.glob("trial_*/trial.json"):
        trial = read_json(path, dict)
        if not isinstance(trial, dict):
            refuse_file(path, "to hold a JSON object", type(trial).__name__)
        # The id names the folder that weights are loaded from.
        name = trial.get("trial_id")
        if not isinstance(name, str) or path.parent.name != f"trial_{name}":
            refuse_file(path, "to have the trial_id of its folder", name)
        if trial.get("status") not in _STATES:
            refuse_file(path, f"to have a status among {_STATES}", trial.get("status"))
        score = trial.get("score")
        if score is not None and not (
            isinstance(score, int | float) and math.isfinite(score)
        ):
            refuse_file(path, "to have a finite score", score)
        if not isinstance(trial.get("message"), str | None):
            refuse_file(path, "to have a message", trial.get("message"))


class SafeOracle(keras_tuner.Oracle):
    """Makes an oracle of keras-tuner safe to kill and resume.

    - Files are written atomically.
    - A trial that was running restarts with the same values, even if the process was
      killed between writing the files of the trial and of the oracle. keras-tuner would
      lose the trial, or average its metrics with earlier ones.
    - Failure reasons from workers, and exact values, are preserved.
    - Any number of consecutive failures does not end the search.

    `ended(trial)` is called with every finished trial.
    """

    ended: Callable | None = None

    def populate_space(self, trial_id):
        """Sample the values of a trial."""
        trial = super().populate_space(trial_id)
        if trial.get("values"):
            trial["values"] = plain_values(trial["values"])
        return trial

    def create_trial(self, tuner_id):
        """Return the next trial, reset to its start."""
        trial = super().create_trial(tuner_id)
        trial.metrics = type(trial.metrics)()
        trial.score, trial.message = None, None
        return trial

    def end_trial(self, trial):
        """End a trial and call `ended`."""
        stored = self.trials[trial.trial_id]
        trial.hyperparameters = stored.hyperparameters
        if trial.message is None and trial.status not in ("COMPLETED", "RUNNING"):
            path = Path(self._get_trial_dir(trial.trial_id)) / FAILURE
            trial.message = path.read_text("utf-8") if path.is_file() else None
        super().end_trial(trial)
        if self.ended is not None and stored.status in DONE:
            self.ended(stored)

    def save(self) -> None:
        """Save the state, except the trials, which have separate files."""
        write_json(self._get_oracle_fname(), self.get_state())

    def _save_trial(self, trial) -> None:
        folder = Path(self._get_trial_dir(trial.trial_id))
        write_json(folder / "trial.json", trial.get_state())

    def reload(self) -> None:
        """Resume a search; unfinished trials will run again."""
        folder = Path(self._project_dir)
        with reading(folder):
            _check_state(folder)
            super().reload()
            self._resume_order()

    def _resume_order(self) -> None:
        """Schedule unfinished trials before new ones."""
        order = {name: place for place, name in enumerate(self.end_order)}
        done = [t.trial_id for t in self.trials.values() if t.status in DONE]
        self.end_order = sorted(done, key=lambda name: order.get(name, len(order)))
        unfinished = sorted(self.trials.keys() - set(done))
        for name in unfinished:
            self._run_times.pop(name, None)
        for trial in self.trials.values():
            self._record_values(trial)
            if trial.trial_id not in self.start_order:
                self.start_order.append(trial.trial_id)
        # The queue is popped from the end.
        self._retry_queue = unfinished[::-1]


class RandomOracle(SafeOracle, keras_tuner.oracles.RandomSearchOracle):
    """Random search."""


class HyperbandOracle(SafeOracle, keras_tuner.oracles.HyperbandOracle):
    """Hyperband."""


class BayesianOracle(SafeOracle, keras_tuner.oracles.BayesianOptimizationOracle):
    """Bayesian optimisation."""
