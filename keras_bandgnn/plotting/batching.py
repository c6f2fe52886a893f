"""Figures 3 to 5 of Speckhard et al. 2025: batch shapes, step times and speed-ups."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import refuse
from keras_bandgnn.plotting.style import (
    GREY,
    PALETTE,
    new_figure,
    save_figure,
    style_axes,
    style_legend,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

_MARKERS = {"dynamic": "o", "constant": "s", "64": "^", "power_of_two": "v"}
_COLORS = dict(zip(_MARKERS, PALETTE, strict=False))
_ROWS = {
    "batching_ms": "batching",
    "update_ms": "gradient update",
    "combined_ms": "combined",
}


def _groups(cells: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """Group the cells that differ only in the batch size, by title."""
    groups: dict[str, list[Mapping]] = {}
    for cell in sorted(cells, key=lambda cell: cell["batch_size"]):
        title = f"{cell['backend']}, {cell['edges']}, H = {cell['hidden']}"
        if "model" in cell:
            title = f"{cell['model']}, {title}"
        groups.setdefault(title, []).append(cell)
    if not groups:
        refuse("cells", "at least one measurement", cells)
    return groups


def _saved(figure: Any, path: str | os.PathLike | None) -> Any:
    if path is not None:
        save_figure(figure, path)
    return figure


def _lines(axes, group: Sequence[Mapping], value) -> None:
    """Plot one line per algorithm over the batch sizes."""
    for name, marker in _MARKERS.items():
        points = [
            (cell["batch_size"], value(cell["algorithms"][name]))
            for cell in group
            if name in cell["algorithms"]
        ]
        if points:
            style = {"marker": marker, "color": _COLORS[name], "markersize": 4}
            axes.plot(*zip(*points, strict=True), label=name, **style)
    sizes = [cell["batch_size"] for cell in group]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()


def plot_shapes(
    cells: Sequence[Mapping], path: str | os.PathLike | None = None
) -> matplotlib.figure.Figure:
    """Plot Figure 3: distinct shapes over the batch size, and graphs per batch.

    Args:
        cells: Measurements, each a dict with `backend`, `edges`, `hidden`,
            `batch_size`, optionally `model`, and `algorithms`: name -> dict with
            `shapes` (number of steps -> distinct shapes) and `graphs_in_batch` (counts
            of batches with 0, 1, ... real graphs).
        path: File to write, if any; its suffix determines the format.

    Returns:
        The `matplotlib.figure.Figure`.
    """
    groups = _groups(cells)
    by_edges = {group[0]["edges"]: group for group in groups.values()}
    figure = new_figure(6 * 2, 3.6 * len(by_edges))
    axes = figure.subplots(len(by_edges), 2, squeeze=False)
    for (shape_axes, right), (edges, group) in zip(axes, by_edges.items(), strict=True):
        steps = max(map(int, next(iter(group[0]["algorithms"].values()))["shapes"]))
        _lines(shape_axes, group, lambda item, n=str(steps): item["shapes"][n])
        label = f"shapes in {steps:,} steps"
        shape_axes.set(xlabel="batch size", ylabel=label, yscale="log")
        style_axes(shape_axes, title=edges)
        style_legend(shape_axes.legend())
        middle = group[len(group) // 2]
        for name, item in middle["algorithms"].items():
            counts = np.array(item["graphs_in_batch"])
            shares = 100 * counts / counts.sum()
            right.stairs(shares, label=name, color=_COLORS.get(name))
        right.set(xlabel="real graphs in a batch", ylabel="% of the batches")
        style_axes(right, title=f"{edges}, batch size {middle['batch_size']}")
    return _saved(figure, path)


def plot_step_times(
    cells: Sequence[Mapping], path: str | os.PathLike | None = None
) -> matplotlib.figure.Figure:
    """Plot Figure 4: batching, update and combined time per step, not compilation.

    Args:
        cells: As for `plot_shapes`; each algorithm has `batching_ms`, `update_ms` and
            `combined_ms`, which are dicts with `mean`.
        path: File to write, if any; its suffix determines the format.

    Returns:
        The `matplotlib.figure.Figure`.
    """
    groups = _groups(cells)
    figure = new_figure(3.2 * len(groups), 8)
    axes = figure.subplots(len(_ROWS), len(groups), squeeze=False, sharex="col")
    for column, (title, group) in enumerate(groups.items()):
        for row, (key, name) in enumerate(_ROWS.items()):
            _lines(axes[row, column], group, lambda item, k=key: item[k]["mean"])
            axes[row, column].set_ylim(bottom=0)
            style_axes(axes[row, column])
            if column == 0:
                axes[row, column].set_ylabel(f"{name}, ms per step")
        axes[0, column].set_title(title, fontsize=10.5)
        axes[-1, column].set_xlabel("batch size")
    style_legend(axes[0, 0].legend())
    return _saved(figure, path)


def plot_speedups(
    cells: Sequence[Mapping], path: str | os.PathLike | None = None
) -> matplotlib.figure.Figure:
    """Plot Figure 5: speed-up of each algorithm over the slowest.

    Args:
        cells: As for `plot_shapes`; each algorithm has `total_ms`: number of steps ->
            milliseconds per step, including compilation. The largest number of steps
            is plotted.
        path: File to write, if any; its suffix determines the format.

    Returns:
        The `matplotlib.figure.Figure`.
    """
    groups = _groups(cells)
    figure = new_figure(3.2 * len(groups), 3.4)
    axes = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    for panel, (title, group) in zip(axes, groups.items(), strict=True):
        steps = max(map(int, next(iter(group[0]["algorithms"].values()))["total_ms"]))
        width = 0.8 / len(_MARKERS)
        for position, cell in enumerate(group):
            times = {
                k: v["total_ms"][str(steps)] for k, v in cell["algorithms"].items()
            }
            for number, name in enumerate(_MARKERS):
                if name in times:
                    place = position + (number - 1.5) * width
                    gain = max(times.values()) / times[name]
                    label = None if position else name
                    panel.bar(place, gain, width, color=_COLORS[name], label=label)
        panel.set_xticks(range(len(group)), [str(c["batch_size"]) for c in group])
        panel.axhline(1, color=GREY, linewidth=1)
        style_axes(panel, grid="y", title=title)
        panel.set_xlabel("batch size")
    axes[0].set_ylabel(f"speed-up over the slowest, {steps:,} steps")
    style_legend(axes[0].legend())
    return _saved(figure, path)
