"""The style of all figures: plain axes, and colours for colour-blind readers."""

import functools
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bandgnn.checks import having, optional
from keras_bandgnn.data.files import atomic_write
from keras_bandgnn.optional import optional_import

# Of Okabe and Ito, those that are readable as lines on white.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
INK = "#333333"
GREY = "#8a8a8a"
PALE = "#e4e7eb"


def new_figure(width: float, height: float) -> Any:
    """Return an empty `matplotlib.figure.Figure`, which needs no display.

    Args:
        width: Inches.
        height: Inches.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    figures = optional_import("matplotlib.figure", "keras-bandgnn[plot]", "figures")
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    # For notebooks, which matplotlib tells how to show figures once pyplot is imported.
    figure._repr_png_ = functools.partial(_png, figure)
    return figure


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def axes_of(ax: Any, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure and its axes: those of `ax`, or new ones.

    Args:
        ax: `matplotlib.axes.Axes` to draw into, or None.
        width: Inches of a new figure.
        height: Inches of a new figure.
    """
    if optional(having, "ax", ax, "figure", "a matplotlib Axes") is not None:
        return ax.figure, ax
    figure = new_figure(width, height)
    return figure, figure.subplots()


def colors(count: int) -> list:
    """Return colours for so many lines or classes."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    maps = optional_import("matplotlib", "keras-bandgnn[plot]", "figures").colormaps
    return list(maps["viridis"](np.linspace(0, 0.92, count)))


def style_axes(axes: Any, grid: str | None = "both", title: str | None = None) -> None:
    """Style axes: no box, a pale grid behind the data, a quiet title.

    Args:
        axes: The axes.
        grid: `"x"`, `"y"` or `"both"`; None for no grid.
        title: Title of the axes.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8.5, length=3, color=GREY)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(fontsize=9.5, color=INK)
    if grid is not None:
        axes.grid(axis=grid, color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
    if title:
        axes.set_title(title, fontsize=10.5, color=INK)


def style_legend(legend: Any) -> None:
    """Style a legend: no frame, small text."""
    legend.set_frame_on(False)
    for text in legend.get_texts():
        text.set(fontsize=8.5, color=INK)


def add_colorbar(figure: Any, axes: Any, shown: Any, label: str | None) -> None:
    """Add the scale of colours of an image or of points beside their axes.

    Args:
        figure: The figure.
        axes: The axes.
        shown: What has the colours.
        label: What they stand for.
    """
    bar = figure.colorbar(shown, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)
    bar.solids.set_alpha(1)
    bar.ax.tick_params(colors=INK, labelsize=8.5, length=3, color=GREY)
    bar.set_label(label or "", fontsize=9.5, color=INK)


def write_lines(axes: Any, lines: Sequence[str]) -> None:
    """Write lines of text into the upper left corner of axes."""
    style = {"va": "top", "fontsize": 8.5, "color": INK, "linespacing": 1.4}
    axes.text(0.04, 0.97, "\n".join(lines), transform=axes.transAxes, **style)


def save_figure(figure: Any, path: str | os.PathLike) -> None:
    """Write a figure; the suffix of the path determines the format."""
    with atomic_write(path) as file:
        kind = Path(path).suffix.lstrip(".") or "png"
        figure.savefig(file, format=kind, dpi=150)
