"""`plot_bandwidths`: histograms of graph sizes and bandwidths."""

import os
from collections.abc import Mapping

import numpy as np

from keras_bandgnn.checks import array, as_path, mapping, refuse
from keras_bandgnn.optional import optional_import
from keras_bandgnn.plotting.batching import save_figure


def plot_bandwidths(sizes: Mapping[str, np.ndarray], path: str | os.PathLike) -> None:
    """Draw Figure 1 of Balog et al. 2019 for a set of graphs.

    Left: histograms of nodes and bandwidths. Middle: share of graphs below a
    bandwidth. Right: histogram of nodes / bandwidth after reordering.

    Args:
        sizes: "nodes", "before" and "after" (bandwidths), int arrays [n].
        path: File to write; its suffix determines the format.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    as_path("path", path)
    mapping("sizes", sizes)
    for name in ("nodes", "before", "after"):
        if name not in sizes:
            refuse("sizes", f"a dict with {name!r}", sorted(sizes))
        array(f"sizes[{name!r}]", sizes[name])
    figures = optional_import("matplotlib.figure", "keras-bandgnn[plot]", "figures")
    figure = figures.Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    top = max(int(sizes["nodes"].max()), 2)
    bins = np.geomspace(1, top, 40)
    names = {"nodes": "nodes", "before": "bandwidth before", "after": "bandwidth after"}
    for key, name in names.items():
        values = np.maximum(sizes[key], 1)
        left.hist(values, bins=bins, histtype="step", label=name)
    left.set(xscale="log", xlabel="nodes, bandwidth", ylabel="graphs")
    left.legend(fontsize="small")
    share = np.arange(1, len(sizes["after"]) + 1) / len(sizes["after"])
    for key in ("before", "after"):
        middle.step(np.sort(sizes[key]), 100 * share, where="post", label=names[key])
    middle.set(xscale="symlog", xlabel="bandwidth", ylabel="cumulative % of graphs")
    middle.set_ylim(0, 100)
    middle.legend(fontsize="small")
    ratio = sizes["nodes"] / np.maximum(sizes["after"], 1)
    right.hist(np.minimum(ratio, 15), bins=np.arange(0.5, 16, 0.5))
    right.axvline(3, color="black", linewidth=0.8)
    right.set(xlabel="nodes / bandwidth after reordering", ylabel="graphs")
    save_figure(figure, path)
