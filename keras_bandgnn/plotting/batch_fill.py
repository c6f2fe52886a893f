"""`plot_batch_fill`: how much of the padded batches is real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import number, optional, refuse, string
from keras_bandgnn.plotting.style import (
    INK,
    PALE,
    axes_of,
    colors,
    style_axes,
    style_legend,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    from keras_bandgnn.aliases import Values
    from keras_bandgnn.preprocessing.loading.loader import Loader


def _fill(source: Any) -> dict[str, float]:
    """Return the share of each resource that is filled."""
    shares = source
    if not isinstance(source, Mapping):
        shares = getattr(source, "fill", None)
        shares = shares() if callable(shares) else shares
    if not isinstance(shares, Mapping) or not shares:
        what = "a GraphLoader, its `stats`, a dict of shares, or a dict of these"
        refuse("source", what, source, "Train with the loader, or read its batches.")
    return {string("source", name): _share(share) for name, share in shares.items()}


def _share(value: Any) -> float:
    if not 0 <= number("source", value) <= 1:
        refuse("source", "shares in [0, 1]", value)
    return float(value)


def plot_batch_fill(
    source: Loader | Values,
    ax: matplotlib.axes.Axes | None = None,
    title: str | None = None,
) -> matplotlib.figure.Figure:
    """Plot which share of each resource of the batches real graphs use.

    The rest is padding: memory and computation that are wasted.

    Args:
        source: A `GraphLoader`, of which the fill of an epoch is computed; its `stats`,
            for the batches that were read; or a dict of resources with shares in
            [0, 1]. To compare several, a dict of these by name.
        ax: Axes to draw into; a new figure if omitted.
        title: Title.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the source has no figures.

    Example:
    >>> plot_batch_fill({"node": 0.93, "edge": 0.88, "graph": 0.71})
    <Figure size ...>
    """
    optional(string, "title", title)
    several = isinstance(source, Mapping) and not any(
        isinstance(value, int | float) for value in source.values()
    )
    if several and source:
        fills = {string("source", name): _fill(entry) for name, entry in source.items()}
    else:
        fills = {"": _fill(source)}
    names = list(dict.fromkeys(name for fill in fills.values() for name in fill))
    shades = colors(len(fills))
    height = 0.8 / len(fills)
    size = 0.8 + (0.34 if len(fills) == 1 else 0.24 * len(fills) + 0.1) * len(names)
    figure, axes = axes_of(ax, 5.6, size + 0.35 * bool(title or len(fills) > 1))
    for place, (run, fill) in enumerate(fills.items()):
        rows = [row for row, name in enumerate(names) if name in fill]
        shares = np.array([fill[names[row]] for row in rows])
        y = np.array(rows) + (place - (len(fills) - 1) / 2) * height
        bar = {"height": 0.86 * height, "linewidth": 0}
        axes.barh(y, 1, color=PALE, **bar)
        axes.barh(y, shares, color=shades[place], label=run or None, **bar)
        _write_shares(axes, y, shares)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
    axes.set_xlabel("filled by real graphs")
    style_axes(axes, grid=None, title=title)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if len(fills) > 1:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": len(fills)}
        style_legend(axes.legend(**place, borderaxespad=0.2, handlelength=1))
    return figure


def _write_shares(axes: Any, y: np.ndarray, shares: np.ndarray) -> None:
    """Write the share of each bar at its end, inside the bar if there is room."""
    for row, share in zip(y, shares, strict=True):
        inside = share > 0.12
        shift, side = (-0.01, "right") if inside else (0.01, "left")
        color = "white" if inside else INK
        style = {"ha": side, "va": "center", "fontsize": 8.5, "color": color}
        axes.text(share + shift, row, f"{100 * share:.1f} %", **style)
