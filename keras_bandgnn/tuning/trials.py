"""What came of the trials of a search."""

from keras_bandgnn.checks import refuse
from keras_bandgnn.tuning.oracles import DONE


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
