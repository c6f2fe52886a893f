"""`calibration_report`: whether standard deviations are as large as the errors."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import array, refuse, sequence

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def calibration_report(
    labels: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    levels: Iterable[float] = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95),
) -> dict:
    """Compare predicted standard deviations with errors, for regression.

    Of a normal distribution with this mean and std, the central interval of level p
    holds a label with probability p. `coverage` is the share of labels that it holds:
    below p the std are too small, and the model is overconfident. Use labels of
    validation, which the model was not trained on; multiply later std by `scale`, and
    check the result on other labels.

    Args:
        labels: float [...], or a list of such arrays, as the labels of graphs; NaN
            where unknown, which does not count.
        mean: Predictions in the same order, as from `Ensemble.predict_spread`; None for
            graphs without a prediction, which do not count.
        std: Their standard deviations, in the same units.
        levels: Probabilities of the central intervals, between 0 and 1.

    Returns:
        `count`, the number n of labels that are compared; `mae` and `rmse` of the mean;
        `mean_std`; `levels` and `coverage`, float64 [L]; `calibration_error`, the mean
        of |coverage - level| over the levels; `rank_correlation`, Spearman's, of std
        and absolute error, 1 where the order is the same and NaN where one of them is
        constant; `scale`, the factor of std by which the mean of ((label - mean) /
        std)^2 becomes 1. Entries of std 0 count as wrong in `coverage` unless their
        error is 0, and have no part in `scale`; `without_std` is their number.

    Raises:
        ValueError: For different numbers of labels, means and std, for negative std,
            and if no label is known.

    Reference:
        Kuleshov et al., "Accurate Uncertainties for Deep Learning Using Calibrated
        Regression", ICML 2018, Eq. 9; Levi et al., "Evaluating and Calibrating
        Uncertainty Prediction in Regression Tasks", Sensors 2022, for `scale`.

    Example:
    >>> report = calibration_report([0.0, 1.0, 4.0], [0.1, 1.2, 3.0], [0.1, 0.1, 0.5])
    >>> report["coverage"].round(2).tolist(), round(report["scale"], 2)
    ([0.0, 0.0, 0.0, 0.33, 0.33, 0.33], 1.73)
    """
    levels = np.asarray([_level(level) for level in sequence("levels", levels)])
    if not len(levels):
        refuse("levels", "a list that is not empty", levels.tolist())
    error, std = known_errors(labels, mean, std)
    spread = std > 0
    # NaN would be neither within an interval nor outside.
    z = np.where(error == 0, 0.0, np.inf)
    z[spread] = np.abs(error[spread]) / std[spread]
    bounds = [NormalDist().inv_cdf((1 + level) / 2) for level in levels]
    coverage = np.array([(z <= bound).mean() for bound in bounds])
    scale = np.sqrt(np.mean(z[spread] ** 2)) if spread.any() else np.nan
    return {
        "count": len(error),
        "without_std": int((~spread).sum()),
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mean_std": float(std.mean()),
        "levels": levels,
        "coverage": coverage,
        "calibration_error": float(np.abs(coverage - levels).mean()),
        "rank_correlation": _correlation(_ranks(std), _ranks(np.abs(error))),
        "scale": float(scale),
    }


def known_errors(labels, mean, std) -> tuple[np.ndarray, np.ndarray]:
    """Return label - mean and std, float64 [n], where all three are known.

    Args:
        labels: See `calibration_report`.
        mean: See there.
        std: See there.
    """
    columns = {"labels": labels, "mean": mean, "std": std}
    parts = {name: _parts(name, values) for name, values in columns.items()}
    missing = {
        at for rows in parts.values() for at, row in enumerate(rows) if row is None
    }
    if missing:
        _check_counts({name: len(rows) for name, rows in parts.items()})
    flat = {}
    for name, rows in parts.items():
        rows = [row for at, row in enumerate(rows) if at not in missing]
        flat[name] = np.concatenate([*rows, np.zeros(0)])
    _check_counts({name: values.size for name, values in flat.items()})
    finite = ~np.isnan(np.stack(list(flat.values()))).any(axis=0)
    if not finite.any():
        refuse("labels", "numbers, of which some are known", flat["labels"])
    error, std = (flat["labels"] - flat["mean"])[finite], flat["std"][finite]
    if (std < 0).any():
        refuse("std", "at least 0", float(std.min()))
    return error, std


def _parts(name: str, values) -> list:
    """Return a flat array for each graph, or one of all; None where there is none."""
    if isinstance(values, np.ndarray):
        return [np.float64(array(name, values)).ravel()]
    rows = sequence(name, values, "an array of numbers, or a list of such arrays")
    return [
        None if row is None else np.float64(array(f"{name}[{at}]", row)).ravel()
        for at, row in enumerate(rows)
    ]


def _check_counts(counts: dict) -> None:
    if len(set(counts.values())) == 1:
        return
    numbers = ", ".join(f"{count} {name}" for name, count in counts.items())
    raise ValueError(
        "Expected as many `labels` as `mean` and `std`, at least one. Received: "
        f"{numbers}. Pass those of the same graphs."
    )


def _level(value) -> float:
    numeric = isinstance(value, float | int | np.floating) and not isinstance(
        value, bool
    )
    if not numeric or not 0 < value < 1:
        refuse("levels", "numbers between 0 and 1", value)
    return float(value)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks, float64 [n]; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one - one.mean(), other - other.mean()
    norm = np.sqrt((one**2).sum() * (other**2).sum())
    return float((one * other).sum() / norm) if norm > 0 else float("nan")
