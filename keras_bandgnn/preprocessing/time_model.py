"""`TimeModel`: milliseconds of a step on shapes that were not measured."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from keras_bandgnn.preprocessing.batcher import PER_GRAPH


class TimeModel:
    """Time as a constant plus a multiple of each size, none of them negative.

    Fitted by least squares to relative errors, so that small shapes count as much as
    large ones. Sizes that are the same in all shapes, such as those of two resources
    that always agree, count once.

    Args:
        shapes: Measured shapes, name of a resource -> padded size.
        times: Milliseconds of each.

    Attributes:
        residual: Largest relative error at the measured shapes.

    Example:
    >>> model = TimeModel([{"node": 64}, {"node": 128}], [2.0, 3.0])
    >>> round(model.ms({"node": 256}), 6)
    5.0
    """

    def __init__(self, shapes: Sequence[Mapping[str, int]], times: Sequence[float]):
        names = [name for name in shapes[0] if name not in (*PER_GRAPH, "graph")]
        # Nodes and edges first: of equal columns the first is kept.
        names.sort(key=lambda name: (name != "node", name != "edge", name))
        table = np.array([[shape[name] for name in names] for shape in shapes], float)
        _, first = np.unique(table, axis=1, return_index=True)
        self._names = [names[i] for i in sorted(first)]
        table = table[:, sorted(first)]
        scale = table.max(axis=0).clip(1)
        rows = np.column_stack([np.ones(len(table)), table / scale])
        times = np.asarray(times, float)
        weights, _ = nnls(rows / times[:, None], np.ones(len(times)))
        self.residual = float(np.abs(rows @ weights / times - 1).max())
        self._constant, self._slopes = weights[0], weights[1:] / scale

    def ms(self, shape: Mapping[str, int]) -> float:
        """Milliseconds of a step on a padded shape."""
        sizes = np.array([shape[name] for name in self._names], float)
        return float(self._constant + sizes @ self._slopes)
