"""`Popularity`: nodes that received often before will receive again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.preprocessing.sampling.edge_histories import EdgeHistories
from keras_bandgnn.training.link_baseline import LinkBaseline, checked_window

if TYPE_CHECKING:
    from keras_bandgnn.data.link_ends import NodePairs


class Popularity(LinkBaseline):
    """Number of earlier pairs with the same receiver, from any sender.

    Args:
        window: Length of time before the pair in which they count, in the unit of the
            pairs' times; None for all of it.

    Example:
    >>> from keras_bandgnn.data import NodePairs
    >>> history = NodePairs([0, 1, 2], [1, 2, 1], time=[10, 20, 30])
    >>> queries = NodePairs([5], [1], time=[31])
    >>> Popularity().scores(history, queries, [1, 2, 3]).tolist()
    [[2.0, 1.0, 0.0]]
    >>> Popularity(window=5).scores(history, queries, [1, 2, 3]).tolist()
    [[1.0, 0.0, 0.0]]
    """

    def __init__(self, window: int | None = None):
        self.window = checked_window(window)

    def prepare(self, history: NodePairs) -> Callable[..., np.ndarray]:
        """Return the function that scores pairs; see `LinkBaseline`."""
        nodes, rows = np.unique(history.receivers, return_inverse=True)
        histories = EdgeHistories(rows.reshape(-1), history.time, len(nodes) + 1)

        def score(senders, receivers, times) -> np.ndarray:
            del senders
            row = np.searchsorted(nodes, receivers)
            here = row < len(nodes)
            here[here] = nodes[row[here]] == receivers[here]
            # Nodes that never received have the row without times.
            row = np.where(here, row, len(nodes))
            _, counts = histories.before(row, histories.ranks(times))
            if self.window is not None:
                starts = histories.ranks(times - self.window)
                counts = counts - histories.before(row, starts)[1]
            return counts.astype(np.float64)

        return score
