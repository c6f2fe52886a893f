"""Oracles of keras-tuner whose state survives a kill at any moment."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_bandgnn.checks import refuse
from keras_bandgnn.data.files import write_json
from keras_bandgnn.data.reading import read_json, reading, refuse_file
from keras_bandgnn.tuning.extra import keras_tuner

# What came of the trials of a search.


def reason_of(trial) -> str:
    """Why a trial failed, in one line; empty if it did not."""
    lines = (trial.message or "").strip().splitlines()
    if not lines:
        return ""
    name, _, said = lines[-1].partition(": ")
    return said if name.endswith("FailedTrialError") and said else lines[-1]


def trial_row(trial) -> dict:
    """A trial as plain facts.

    Returns:
        `trial`, `status`, `score`, `metrics` by name, `values` by name, `reason`.
    """
    found = trial.metrics.metrics
    # The service of several workers gives them in any order.
    names = sorted(found, key=lambda name: (not name.startswith("val_"), name))
    metrics = {name: float(found[name].get_best_value()) for name in names}
    return {
        "trial": trial.trial_id,
        "status": trial.status.lower(),
        "score": trial.score,
        "metrics": metrics,
        "values": dict(trial.hyperparameters.values),
        "reason": reason_of(trial),
    }


def trial_table(tuner) -> list[dict]:
    """The trials of a search that are done, best first, failed ones last.

    Args:
        tuner: A tuner of `make_tuner`, or any of keras-tuner.

    Returns:
        A dictionary per trial: `trial`, `status` ("completed" or "failed"), `score`,
        `metrics`, `values`, and the `reason` of a failure in one line.
    """
    if not hasattr(tuner, "oracle"):
        refuse("tuner", "a tuner of keras-tuner", tuner)
    rows = [trial_row(t) for t in tuner.oracle.trials.values() if t.status in DONE]
    falls = tuner.oracle.objective.direction == "min"
    return sorted(rows, key=lambda row: _rank(row, falls))


def _rank(row: dict, falls: bool) -> tuple:
    if row["score"] is None or row["status"] != "completed":
        return (1, row["trial"])
    return (0, row["score"] if falls else -row["score"])


DONE = ("COMPLETED", "FAILED")
FAILURE = "failure.txt"
_STATES = ("RUNNING", "IDLE", "INVALID", "STOPPED", "COMPLETED", "FAILED")


def plain_values(values: dict) -> dict:
    """Numbers as short decimals, which they are again after single precision.

    The service between chief and workers carries floats in single precision.
    """
    return {
        name: float(str(np.float32(value))) if isinstance(value, float) else value
        for name, value in values.items()
    }


def _check_state(folder: Path) -> None:
    """Raises a ValueError for files that no search writes.

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
        # It names the folder that weights are read from.
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
    """What keras-tuner's oracles lack to be killed and resumed.

    - Files are replaced as a whole.
    - A trial that was under way runs again, with the same values, wherever the kill
      came: also between the files of the trial and of the oracle. keras-tuner would
      lose it, or average its metrics with those from before.
    - The reason of a failure that a worker met is kept, and so are exact values.
    - Failures, however many follow each other, do not end the search.

    `ended(trial)` is called with every trial that is done.
    """

    ended: Callable | None = None

    def populate_space(self, trial_id):
        """Draws values."""
        drawn = super().populate_space(trial_id)
        if drawn.get("values"):
            drawn["values"] = plain_values(drawn["values"])
        return drawn

    def create_trial(self, tuner_id):
        """Hands a trial out, to be run from its beginning."""
        trial = super().create_trial(tuner_id)
        trial.metrics = type(trial.metrics)()
        trial.score, trial.message = None, None
        return trial

    def end_trial(self, trial):
        """Ends a trial; says so to `ended`."""
        own = self.trials[trial.trial_id]
        trial.hyperparameters = own.hyperparameters
        if trial.message is None and trial.status not in ("COMPLETED", "RUNNING"):
            path = Path(self._get_trial_dir(trial.trial_id)) / FAILURE
            trial.message = path.read_text("utf-8") if path.is_file() else None
        super().end_trial(trial)
        if self.ended is not None and own.status in DONE:
            self.ended(own)

    def save(self) -> None:
        """Saves the state, but for the trials, which have files of their own."""
        write_json(self._get_oracle_fname(), self.get_state())

    def _save_trial(self, trial) -> None:
        folder = Path(self._get_trial_dir(trial.trial_id))
        write_json(folder / "trial.json", trial.get_state())

    def reload(self) -> None:
        """Goes on with a search; trials that are not done will run again."""
        folder = Path(self._project_dir)
        with reading(folder):
            _check_state(folder)
            super().reload()
            self._resume_order()

    def _resume_order(self) -> None:
        """Puts trials that are not done before new ones."""
        order = {name: place for place, name in enumerate(self.end_order)}
        done = [t.trial_id for t in self.trials.values() if t.status in DONE]
        self.end_order = sorted(done, key=lambda name: order.get(name, len(order)))
        again = sorted(self.trials.keys() - set(done))
        for name in again:
            self._run_times.pop(name, None)
        for trial in self.trials.values():
            self._record_values(trial)
            if trial.trial_id not in self.start_order:
                self.start_order.append(trial.trial_id)
        # Taken from the end.
        self._retry_queue = again[::-1]


class RandomOracle(SafeOracle, keras_tuner.oracles.RandomSearchOracle):
    """Random search."""


class HyperbandOracle(SafeOracle, keras_tuner.oracles.HyperbandOracle):
    """Hyperband."""


class BayesianOracle(SafeOracle, keras_tuner.oracles.BayesianOptimizationOracle):
    """Bayesian optimisation."""
