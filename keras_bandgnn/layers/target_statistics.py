"""Statistics of labelled graphs, from which a `TargetNormalizer` is adapted."""

from __future__ import annotations

import numpy as np

from keras_bandgnn.checks import LAST_ELEMENT
from keras_bandgnn.data.flat import FlatGraphs


def flat_parts(graphs) -> list[FlatGraphs]:
    """Return the parts of a list of `Graph`, a `FlatGraphs`, a store or a loader."""
    for name in ("parts", "shards"):
        if hasattr(graphs, name):
            return list(getattr(graphs, name))
    if isinstance(graphs, FlatGraphs):
        return [graphs]
    return [FlatGraphs.from_graphs(graphs)]


def least_squares(counts: np.ndarray, labels: np.ndarray, weights: np.ndarray):
    """Fit values of elements [V, D] to labels [n, D] and counts [n, V].

    Each target is fitted separately, on the graphs where it is not NaN. Squares weigh
    by the weights [n].
    """
    columns, roots = [], np.sqrt(weights)
    for column in labels.T:
        labelled = ~np.isnan(column)
        rows = (
            counts[labelled] * roots[labelled, None],
            column[labelled] * roots[labelled],
        )
        columns.append(np.linalg.lstsq(*rows, rcond=None)[0])
    return np.stack(columns, axis=1)


def mean_and_deviation(values: np.ndarray, weights: np.ndarray) -> tuple:
    """Return the weighted mean and standard deviation [D] of values [n, D].

    Args:
        values: float64, NaN where missing.
        weights: [n], such that each column has a value with a weight above 0.
    """
    labelled = ~np.isnan(values)
    values, weights = np.where(labelled, values, 0.0), labelled * weights[:, None]
    total = weights.sum(axis=0)
    mean = (weights * values).sum(axis=0) / total
    squares = (weights * np.square(values - mean)).sum(axis=0)
    return mean, np.sqrt(squares / total)


def composition(part: FlatGraphs, elements: np.ndarray) -> np.ndarray:
    """Count the nodes of each element in each graph, float32 [n, 119].

    Args:
        part: n graphs.
        elements: int, the element of each node of all graphs.
    """
    width = LAST_ELEMENT + 1
    graph = np.repeat(np.arange(len(part)), part.num_nodes)
    counts = np.bincount(graph * width + elements, minlength=len(part) * width)
    return counts.reshape(-1, width).astype(np.float32)
