"""`plot_parity`: predicted numbers over true ones, and the distribution of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import having, optional, refuse, sequence, string
from keras_bandgnn.plotting.rows import paired_rows, stacked
from keras_bandgnn.plotting.style import (
    GREY,
    INK,
    PALETTE,
    new_figure,
    style_axes,
    write_lines,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    from numpy.typing import ArrayLike

# More points are shown as densities.
_POINTS = 5000
_TARGETS = 24


def _errors(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return MAE, RMSE and R2 of predictions [n]."""
    error = predicted - true
    spread = ((true - true.mean()) ** 2).sum()
    return {
        "MAE": float(np.abs(error).mean()),
        "RMSE": float(np.sqrt((error**2).mean())),
        "R²": float(1 - (error**2).sum() / spread) if spread else float("nan"),
    }


def _columns(labels: Any, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and predictions [n, D]."""
    pairs = list(paired_rows(labels, predictions))
    true = stacked("labels", [label for label, _ in pairs])
    predicted = stacked("predictions", [rows for _, rows in pairs])
    if true.size != predicted.size:
        raise ValueError(
            "Expected a prediction per label in `predictions`. Received: predictions "
            f"of shape {predicted.shape}, labels of shape {true.shape}. Pass what "
            "task.predict(graphs) returned, and the labels of the same graphs."
        )
    # Numbers of nodes have one axis in labels and two in predictions.
    width = min(true.shape[1], predicted.shape[1])
    if width > _TARGETS:
        raise ValueError(
            f"Expected at most {_TARGETS} targets in `labels`. Received: {width}. "
            "Select columns, and join the numbers of nodes with np.concatenate."
        )
    return true.reshape(-1, width), predicted.reshape(-1, width)


def plot_parity(
    labels: ArrayLike,
    predictions: ArrayLike,
    targets: str | Sequence[str] | None = None,
    units: str | Sequence[str | None] | None = None,
    ax: matplotlib.axes.Axes | None = None,
    title: str | None = None,
) -> matplotlib.figure.Figure:
    """Plot predicted over true numbers, with MAE, RMSE and R2, and their errors.

    Each target has a panel of points around the diagonal (of densities, if there are
    more than 5,000), and below it the histogram of prediction - label.

    Args:
        labels: True numbers: float [n] or [n, D], or a list with those of each graph or
            of its nodes. Missing labels (NaN) are left out.
        predictions: What `predict` returned for the same graphs. Graphs without a
            prediction (None) are left out.
        targets: Names of the D targets.
        units: Unit of all targets, or a list with that of each, None for no unit.
        ax: Axes to draw the points of a single target into, without the histogram; a
            new figure if omitted.
        title: Title of the figure.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If labels and predictions do not match.

    Example:
    >>> figure = plot_parity([1.0, 2.0, 4.0], [1.5, 2.0, 3.5], "energy", "eV")
    >>> print(figure.axes[0].texts[0].get_text())
    MAE 0.333 eV
    RMSE 0.408 eV
    R² 0.893
    """
    optional(having, "ax", ax, "figure", "a matplotlib Axes")
    optional(string, "title", title)
    true, predicted = _columns(labels, predictions)
    count = true.shape[1]
    targets = _one_each("targets", targets, count)
    several = [units] * count if isinstance(units, str) else units
    units = _one_each("units", several, count, gaps=True)
    if ax is not None:
        if count > 1:
            refuse("ax", "None, as there are several targets", ax)
        _points(ax, true[:, 0], predicted[:, 0], targets[0], units[0])
        style_axes(ax, title=title or targets[0])
        return ax.figure
    wide = 2 if count == 4 else min(3, count)
    high = -(-count // wide)
    width = 4.2 if wide == 1 else 2.9 * wide
    figure = new_figure(width, (1.38 * width / wide) * high + (0.3 if title else 0))
    grid = figure.subplots(2 * high, wide, squeeze=False, height_ratios=[4, 1] * high)
    _panels(grid, true, predicted, targets, units)
    if title:
        figure.suptitle(title, fontsize=11.5, color=INK)
    return figure


def _one_each(name: str, values: Any, count: int, gaps: bool = False) -> list[str]:
    """Return a string per target, empty ones if omitted (or None, with `gaps`)."""
    if values is None:
        return [""] * count
    values = sequence(name, values) if not isinstance(values, str) else [values]
    values = ["" if gaps and v is None else string(name, v) for v in values]
    if len(values) != count:
        refuse(name, f"one string for each of {count} targets", values)
    return values


def _panels(
    grid: np.ndarray,
    true: np.ndarray,
    predicted: np.ndarray,
    targets: list[str],
    units: list[str],
) -> None:
    """Plot each target into a column of two axes; remove the axes left over."""
    columns = np.stack([grid[::2].reshape(-1), grid[1::2].reshape(-1)], axis=1)
    for place, (upper, lower) in enumerate(columns):
        if place >= len(targets):
            upper.remove()
            lower.remove()
            continue
        y, y_pred = true[:, place], predicted[:, place]
        _points(upper, y, y_pred, targets[place], units[place])
        style_axes(upper, title=targets[place])
        _histogram(lower, y, y_pred, units[place])
        style_axes(lower, grid=None)


def _points(axes: Any, true, predicted, target: str, unit: str) -> None:
    finite = np.isfinite(true) & np.isfinite(predicted)
    true, predicted = true[finite], predicted[finite]
    if not true.size:
        refuse("labels", f"numbers, of which some are known {target}".rstrip(), true)
    low = min(true.min(), predicted.min())
    high = max(true.max(), predicted.max())
    margin = 0.04 * (high - low) or 1.0
    ends = [low - margin, high + margin]
    if len(true) > _POINTS:
        axes.hexbin(
            true,
            predicted,
            gridsize=60,
            bins="log",
            mincnt=1,
            cmap="viridis",
            linewidths=0,
            extent=(*ends, *ends),
        )
    else:
        alpha = float(np.clip(12 / np.sqrt(len(true)), 0.3, 0.85))
        axes.scatter(true, predicted, s=12, color=PALETTE[0], alpha=alpha, linewidths=0)
    axes.plot(ends, ends, color=GREY, linewidth=1, zorder=0.9)
    axes.set(xlim=ends, ylim=ends, box_aspect=1)
    # The same ticks on both axes.
    axes.locator_params(nbins=5)
    axes.set_yticks(axes.get_xticks(), minor=False)
    axes.set(xlim=ends, ylim=ends)
    suffix = f" [{unit}]" if unit else ""
    axes.set(xlabel=f"true{suffix}", ylabel=f"predicted{suffix}")
    lines = [
        f"{name} {value:.3g}" + (f" {unit}" if unit and name != "R²" else "")
        for name, value in _errors(true, predicted).items()
    ]
    write_lines(axes, lines)


def _histogram(axes: Any, true, predicted, unit: str) -> None:
    error = predicted - true
    error = error[np.isfinite(error)]
    # Few outliers must not hide the rest; they are counted in the last bins.
    reach = float(np.quantile(np.abs(error), 0.99)) or 1.0
    bins = np.linspace(-reach, reach, int(np.clip(2 * len(error) ** 0.5, 8, 42)))
    axes.hist(np.clip(error, -reach, reach), bins=bins, color=PALETTE[0])
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set(xlabel=f"prediction - label{f' [{unit}]' if unit else ''}", yticks=[])
    axes.set_xlim(-reach, reach)
    axes.locator_params(axis="x", nbins=5)
    axes.spines["left"].set_visible(False)
