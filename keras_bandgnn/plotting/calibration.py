"""`plot_calibration`: whether standard deviations are as large as the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.checks import optional, string
from keras_bandgnn.plotting.style import (
    GREY,
    PALETTE,
    axes_of,
    style_axes,
    style_legend,
    write_lines,
)
from keras_bandgnn.training.calibration_report import calibration_report, known_errors

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from numpy.typing import ArrayLike


def plot_calibration(
    labels: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    ax: matplotlib.axes.Axes | None = None,
    title: str | None = None,
) -> matplotlib.figure.Figure:
    """Plot the observed over the expected coverage of central intervals.

    On the diagonal an interval of level p holds the share p of the labels; below it
    the std are too small. A second, dashed curve has all std multiplied by the `scale`
    of `training.calibration_report`.

    Args:
        labels: True numbers, see `training.calibration_report`.
        mean: Predictions, as from `Ensemble.predict_spread`.
        std: Their standard deviations.
        ax: Axes to draw into; a new figure if omitted.
        title: Title of the axes.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If labels, mean and std do not match.

    Example:
    >>> figure = plot_calibration([0.0, 1.0, 4.0], [0.1, 1.2, 3.0], [0.1, 0.1, 0.5])
    >>> print(figure.axes[0].texts[0].get_text())
    calibration error 0.37
    rank correlation 0.87
    scale 1.73
    """
    optional(string, "title", title)
    levels = np.linspace(0.01, 0.99, 99)
    error, std = known_errors(labels, mean, std)
    zero = np.zeros_like(error)
    report = calibration_report(error, zero, std, levels)
    figure, axes = axes_of(ax, 3.8, 3.8)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, zorder=0.9)
    axes.plot(levels, report["coverage"], color=PALETTE[0], label="spread")
    if np.isfinite(report["scale"]) and report["scale"] > 0:
        scaled = calibration_report(error, zero, report["scale"] * std, levels)
        axes.plot(
            levels,
            scaled["coverage"],
            color=PALETTE[1],
            linestyle="--",
            label=f"{report['scale']:.3g} x spread",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1), box_aspect=1)
    axes.set(xlabel="expected coverage", ylabel="observed coverage")
    lines = [
        f"{name} {report[key]:.2f}"
        for name, key in (
            ("calibration error", "calibration_error"),
            ("rank correlation", "rank_correlation"),
            ("scale", "scale"),
        )
    ]
    write_lines(axes, lines)
    style_axes(axes, title=title)
    style_legend(axes.legend(loc="lower right"))
    return figure
