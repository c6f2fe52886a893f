"""`plot_history`: training curves of one or several runs."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import (
    array,
    as_path,
    having,
    one_of,
    optional,
    refuse,
    string,
    strings,
)
from keras_bandgnn.data.reading import read_text, reading, refuse_file
from keras_bandgnn.plotting.style import (
    INK,
    colors,
    new_figure,
    style_axes,
    style_legend,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    from keras_bandgnn.aliases import Item, Values

_EXPECTED = (
    "what `fit` returned, its `history`, a file of CSVLogger, or a dict of them by name"
)
_COLUMNS = 3
# Of the run, not of the model: panels only on request.
_OF_THE_RUN = re.compile("learning_rate|fill_|waiting$|compilations$|.*_per_second$")


def read_log(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return epochs and columns of a file of `keras.callbacks.CSVLogger`."""
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected `history` to be a file. Received: history={str(path)!r}, which "
            "is none. Check the path."
        )
    with reading(path, what="to be a file of keras.callbacks.CSVLogger"):
        rows = list(csv.reader(io.StringIO(read_text(path)), strict=True))
        names = rows[0] if rows else []
        if "epoch" not in names or len(set(names)) < len(names) or len(rows) < 2:
            advice = "Pass the file that keras.callbacks.CSVLogger wrote."
            what = "to begin with the names of columns, one of them `epoch`"
            refuse_file(path, what, f"{len(rows)} rows, the first {names}", advice)
        cells = zip(*rows[1:], strict=True)
        columns = {
            name: np.array([math.nan if cell == "NA" else float(cell) for cell in row])
            for name, row in zip(names, cells, strict=True)
        }
    epochs = columns.pop("epoch")
    # CSVLogger adds columns for a validation that there may not have been.
    return epochs, {k: v for k, v in columns.items() if not np.isnan(v).all()}


def _curves(name: str, epochs: np.ndarray, values: Any) -> np.ndarray:
    """Return points [n, 2], epoch from 1 and value; not finite ones are left out."""
    values = np.asarray(array(name, values), float)
    if values.ndim != 1:
        refuse(name, "a list of numbers, one per epoch", values)
    every = max(1, len(epochs) // max(1, len(values)))
    # With `validation_freq` there are fewer values than epochs.
    epochs = epochs[every - 1 :: every]
    if len(epochs) != len(values):
        raise ValueError(
            f"Expected the values in `{name}` to be evenly spaced over the epochs. "
            f"Received: {len(values)} values. Pass a file of CSVLogger, which has the "
            "epoch of each."
        )
    finite = np.isfinite(values)
    return np.stack([epochs[finite] + 1, values[finite]], 1)


def _run(history: Any) -> dict[str, np.ndarray]:
    """Return the curves of one run by the name of the metric."""
    if isinstance(history, str | os.PathLike):
        epochs, columns = read_log(as_path("history", history))
    else:
        epochs = np.asarray(getattr(history, "epoch", ()), float)
        columns = getattr(history, "history", history)
        if not isinstance(columns, Mapping) or not columns:
            refuse("history", _EXPECTED, history)
        for name in columns:
            string("history", name)
        if not len(epochs):
            lengths = [np.size(values) for values in columns.values()]
            epochs = np.arange(max(lengths), dtype=float)
    return {
        name: _curves(f"history[{name!r}]", epochs, values)
        for name, values in columns.items()
    }


def _is_run(value: Any) -> bool:
    return isinstance(value, Mapping | str | os.PathLike) or hasattr(value, "history")


def _runs(history: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the curves of each run by its name, which is empty for a single one."""
    several = isinstance(history, Mapping) and all(map(_is_run, history.values()))
    if several and history:
        return {string("history", k): _run(run) for k, run in history.items()}
    return {"": _run(history)}


def _metrics(runs: Mapping[str, Mapping], metrics: Any) -> list[str]:
    """Return the names of the panels: those wished, or all with validation."""
    columns = [name for run in runs.values() for name in run]
    names = list(dict.fromkeys(name.removeprefix("val_") for name in columns))
    if metrics is None:
        validated = [name for name in names if f"val_{name}" in columns]
        learned = [name for name in names if not _OF_THE_RUN.match(name)]
        panels = validated or learned or names
        return sorted(panels, key=lambda name: name != "loss")
    if isinstance(metrics, str):
        metrics = [metrics]
    metrics = [name.removeprefix("val_") for name in strings("metrics", metrics)]
    for name in metrics:
        one_of("metrics", name, names)
    return metrics


def plot_history(
    history: Values | Item,
    metrics: str | Sequence[str] | None = None,
    yscale: str = "linear",
    ax: matplotlib.axes.Axes | None = None,
    title: str | None = None,
) -> matplotlib.figure.Figure:
    """Plot training curves, a panel per metric, of one run or of several.

    Args:
        history: What `fit` returned, its dict `history`, or the path of a file that
            `keras.callbacks.CSVLogger` wrote. For several runs a dict of these by the
            name of the run.
        metrics: Names without `val_`. By default those with values of validation; if
            there are none, all but learning rates and what `ThroughputMonitor` adds.
        yscale: `"linear"` or `"log"`.
        ax: Axes to draw a single metric into; a new figure if omitted.
        title: Title of the figure.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If `history` is none of these or lacks a metric.

    Example:
    >>> history = {"loss": [0.9, 0.5, 0.3], "val_loss": [1.0, 0.7, 0.6]}
    >>> plot_history(history).savefig("curves.png")
    """
    one_of("yscale", yscale, ("linear", "log"))
    optional(having, "ax", ax, "figure", "a matplotlib Axes")
    optional(string, "title", title)
    runs = _runs(history)
    names = _metrics(runs, metrics)
    if ax is not None and len(names) > 1:
        refuse("metrics", "one name, as there is one `ax`", names)
    if ax is None:
        figure, panels = _new_panels(len(names), 0.3 if title else 0)
    else:
        figure, panels = ax.figure, [ax]
    drawn: dict[str, Any] = {}
    for panel, name in zip(panels, names, strict=True):
        _draw(panel, runs, name, drawn)
        panel.set_yscale(yscale)
        panel.set_xlabel("epoch")
        panel.xaxis.get_major_locator().set_params(integer=True)
        style_axes(panel, title=name if ax is None else title or name)
    if title and ax is None:
        figure.suptitle(title, fontsize=11.5, color=INK)
    if len(drawn) > 1:
        place = {"loc": "best"}
        if ax is None:
            place = {"loc": "outside lower center", "ncols": min(4, len(drawn))}
        owner = figure if ax is None else ax
        style_legend(owner.legend(drawn.values(), drawn.keys(), **place))
    return figure


def _new_panels(count: int, room: float) -> tuple[Any, np.ndarray]:
    """Return a new figure with panels in a grid, and room for a title in inches."""
    wide = 2 if count == 4 else min(_COLUMNS, count)
    high = -(-count // wide)
    figure = new_figure(7.2 if wide > 1 else 4.8, 2.7 * high + room)
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for spare in panels[count:]:
        spare.remove()
    return figure, panels[:count]


def _draw(panel: Any, runs: Mapping[str, Mapping], name: str, drawn: dict) -> None:
    """Draw a metric of all runs; `drawn` gets a line per entry of the legend."""
    shades = colors(max(2, len(runs)))
    validated = any(f"val_{name}" in run for run in runs.values())
    for number, (run, curves) in enumerate(runs.items()):
        for prefix, what in (("", "training"), ("val_", "validation")):
            points = curves.get(prefix + name)
            if points is None:
                continue
            shade, style = shades[number], {"linewidth": 1.8, "linestyle": "-"}
            if not run:
                # One run: the colour says which curve it is.
                shade = shades[bool(prefix)]
            elif validated and not prefix:
                style = {"linewidth": 1.1, "linestyle": (0, (1.5, 1.5))}
            few = {"marker": "o", "markersize": 3} if len(points) < 2 else {}
            (line,) = panel.plot(*points.T, color=shade, **style, **few)
            label = ", ".join(part for part in (run, validated and what) if part)
            drawn.setdefault(label or what, line)
