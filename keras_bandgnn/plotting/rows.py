"""Labels and predictions of graphs as pairs of arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_bandgnn.checks import array, refuse, sequence


def paired_rows(labels: Any, predictions: Any) -> Iterator[tuple]:
    """Yield the labels and predictions of each graph, or those of all at once.

    Args:
        labels: An array, or a list with a label or an array for each graph.
        predictions: An array, or a list as `predict` returns it, with None for graphs
            that have no prediction.
    """
    if isinstance(labels, np.ndarray) and isinstance(predictions, np.ndarray):
        yield array("labels", labels), array("predictions", predictions)
        return
    labels = sequence("labels", labels, "a list or an array")
    predictions = sequence("predictions", predictions, "a list or an array")
    if len(labels) != len(predictions) or not labels:
        raise ValueError(
            "Expected as many `labels` as `predictions`, at least one. Received: "
            f"{len(labels)} labels and {len(predictions)} predictions. Pass those of "
            "the same graphs."
        )
    if all(rows is None for rows in predictions):
        refuse("predictions", "predictions of at least one graph", predictions)
    for number, (label, rows) in enumerate(zip(labels, predictions, strict=True)):
        if rows is not None:
            yield (
                array(f"labels[{number}]", label),
                array(f"predictions[{number}]", rows),
            )


def stacked(name: str, parts: list[np.ndarray]) -> np.ndarray:
    """Return [n, D] from arrays [D] or [N, D] of graphs, or from one of all graphs."""
    if len(parts) == 1 and parts[0].ndim:
        rows = parts[0]
    elif len({part.shape for part in parts}) == 1:
        rows = np.stack(parts)
    else:
        rows = np.concatenate([np.atleast_1d(part) for part in parts])
    rows = rows.reshape(len(rows), -1) if rows.ndim < 3 else rows
    if rows.ndim > 2:
        rows = rows.reshape(-1, rows.shape[-1])
    if not rows.size:
        refuse(name, "an array that is not empty", rows)
    return np.asarray(rows, float)
