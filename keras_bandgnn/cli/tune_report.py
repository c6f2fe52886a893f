"""What `bandgnn tune` prints of its trials."""

from keras_bandgnn.cli import report


def shown(value) -> str:
    """A value in few letters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _values(values: dict) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def say_trial(trial) -> None:
    """Prints a trial that is done in a line."""
    from keras_bandgnn.tuning.trials import trial_row

    row = trial_row(trial)
    found = ", ".join(f"{name} {shown(v)}" for name, v in row["metrics"].items())
    report.say(
        f"trial {row['trial']} {row['status']}: {row['reason'] or found}; "
        f"{_values(row['values'])}"
    )


def show(tuner) -> list[dict]:
    """Prints the table of the trials that are done; returns its rows, best first."""
    from keras_bandgnn import tuning

    rows = tuning.trial_table(tuner)
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    report.table(
        f"{len(rows)} trials",
        ["trial", "status", *metrics, "values, or why it failed"],
        [
            [
                row["trial"],
                row["status"],
                *(shown(row["metrics"].get(name, "-")) for name in metrics),
                row["reason"] or _values(row["values"]),
            ]
            for row in rows
        ],
    )
    return rows
