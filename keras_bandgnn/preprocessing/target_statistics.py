"""Facts of labelled graphs that a normaliser is made of."""

import numpy as np

from keras_bandgnn.data.flat import FlatGraphs

NUM_ELEMENTS = 119
"""Ids of elements are below it: atomic numbers 1 to 118."""


def graph_labels(part: FlatGraphs) -> np.ndarray:
    """Labels of graphs as float64 [n, D], NaN where missing.

    Raises:
        ValueError: If the graphs have no labels, or labels of something else.
    """
    received = None
    if part.label is None:
        received = "graphs with label=None"
    elif part.label_level == "node":
        received = "labels of nodes (label_level='node')"
    elif part.candidates is not None:
        received = "graphs with candidates, whose label is the position of one of them"
    elif part.label.ndim > 2:
        received = f"labels of shape {part.label.shape[1:]}"
    elif np.isinf(part.label).any():
        received = "infinite labels"
    if received:
        raise ValueError(
            "Expected one number or one vector [D] per graph as the label. "
            f"Received: {received}. Set Graph(..., label=1.5) or label=[1.5, 2.0]."
        )
    labels = np.asarray(part.label, np.float64)
    return labels.reshape(len(part), -1)


def flat_parts(graphs) -> list[FlatGraphs]:
    """The flat arrays of a list of `Graph`, a `FlatGraphs`, a store or a loader."""
    for name in ("parts", "shards"):
        if hasattr(graphs, name):
            return list(getattr(graphs, name))
    if isinstance(graphs, FlatGraphs):
        return [graphs]
    return [FlatGraphs.from_graphs(graphs)]


def least_squares(counts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Value of each element [V, D] that explains labels [n, D] by counts [n, V].

    Each target on its own, from the graphs where it is not NaN.
    """
    columns = []
    for column in labels.T:
        known = ~np.isnan(column)
        columns.append(np.linalg.lstsq(counts[known], column[known], rcond=None)[0])
    return np.stack(columns, axis=1)


def composition(part: FlatGraphs, elements: np.ndarray) -> np.ndarray:
    """Number of nodes of each element in each graph, float32 [n, 119].

    Args:
        part: n graphs.
        elements: int, the element of each node of all graphs.
    """
    graph = np.repeat(np.arange(len(part)), part.num_nodes)
    keys = graph * NUM_ELEMENTS + elements
    counts = np.bincount(keys, minlength=len(part) * NUM_ELEMENTS)
    return counts.reshape(-1, NUM_ELEMENTS).astype(np.float32)
