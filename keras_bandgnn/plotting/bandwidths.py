"""`plot_bandwidths`: histograms of graph sizes and bandwidths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import array, as_path, mapping, optional, refuse
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

_NAMES = {"nodes": "nodes", "before": "bandwidth before", "after": "bandwidth after"}
_COLORS = {"nodes": GREY, "before": PALETTE[1], "after": PALETTE[0]}


def plot_bandwidths(
    sizes: Mapping[str, np.ndarray], path: str | os.PathLike | None = None
) -> matplotlib.figure.Figure:
    """Plot bandwidths before and after reordering (Figure 1 of Balog et al. 2019).

    Left: histograms of nodes and bandwidths. Middle: share of graphs below a
    bandwidth. Right: histogram of nodes / bandwidth after reordering; above 3, three
    blocks beat one dense matrix.

    Args:
        sizes: "nodes", "before" and "after" (bandwidths), int arrays [n].
        path: File to write, if any; its suffix determines the format.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If `sizes` lacks one of the arrays.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [kb.Graph(n, [0, 1], [n - 1, 2]) for n in (4, 6, 9)]
    >>> ordered = [kb.preprocessing.RCMKCompile(4)(graph) for graph in graphs]
    >>> sizes = {
    ...     "nodes": np.array([graph.num_nodes for graph in graphs]),
    ...     "before": np.array([graph.bandwidth for graph in graphs]),
    ...     "after": np.array([graph.bandwidth for graph in ordered]),
    ... }
    >>> plot_bandwidths(sizes)
    <Figure size ...>
    """
    optional(as_path, "path", path)
    sizes = _sizes(sizes)
    figure = new_figure(9, 2.9)
    size_axes, middle, right = figure.subplots(1, 3)
    _draw_sizes(size_axes, sizes)
    share = np.arange(1, len(sizes["after"]) + 1) / len(sizes["after"])
    for key in ("before", "after"):
        style = {"where": "post", "color": _COLORS[key], "linewidth": 1.8}
        middle.step(np.sort(sizes[key]), 100 * share, label=_NAMES[key], **style)
    middle.set(xscale="symlog", xlabel="bandwidth", ylabel="graphs below, %")
    middle.set_ylim(0, 100)
    ratio = sizes["nodes"] / np.maximum(sizes["after"], 1)
    right.hist(np.minimum(ratio, 15), np.arange(0.5, 16, 0.5), color=_COLORS["after"])
    right.axvline(3, color=GREY, linewidth=1)
    right.set(xlabel="nodes / bandwidth after", ylabel="graphs")
    for axes in (size_axes, middle, right):
        style_axes(axes, grid="y")
    handles, names = size_axes.get_legend_handles_labels()
    style_legend(figure.legend(handles, names, loc="outside lower center", ncols=3))
    if path is not None:
        save_figure(figure, path)
    return figure


def _sizes(sizes: Mapping) -> dict[str, np.ndarray]:
    """Return the arrays of an argument `sizes`; refuse missing and empty ones."""
    mapping("sizes", sizes)
    for name in _NAMES:
        if name not in sizes:
            refuse("sizes", f"a dict with {name!r}", sorted(sizes))
        if not array(f"sizes[{name!r}]", sizes[name]).size:
            refuse("sizes", "arrays that are not empty", sizes[name])
    return {name: np.asarray(sizes[name]) for name in _NAMES}


def _draw_sizes(axes: Any, sizes: Mapping[str, np.ndarray]) -> None:
    """Draw the histograms of nodes and bandwidths."""
    bins = np.geomspace(1, max(int(sizes["nodes"].max()), 2), 40)
    for key, name in _NAMES.items():
        style = {"histtype": "stepfilled" if key == "nodes" else "step"}
        style["alpha"] = 0.35 if key == "nodes" else 1.0
        values = np.maximum(sizes[key], 1)
        axes.hist(values, bins, label=name, color=_COLORS[key], linewidth=1.5, **style)
    axes.set(xscale="log", xlabel="nodes, bandwidth", ylabel="graphs")
