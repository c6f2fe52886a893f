"""`EdgeBank`: pairs that were there before will be there again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.training.link_baseline import (
    LinkBaseline,
    PairHistories,
    checked_window,
)

if TYPE_CHECKING:
    from keras_bandgnn.data.link_ends import NodePairs


class EdgeBank(LinkBaseline):
    """Memory of pairs: 1 for a pair that was there before, otherwise 0.

    Args:
        window: Length of time that it remembers, in the unit of the pairs' times: a
            pair of time t scores 1 if it was there at or after t - window. None for
            memory without end.

    Reference:
        Poursafaei et al. 2022, https://arxiv.org/abs/2207.10128: `EdgeBank` without end
        and, with a window as long as the test, of a time window.

    Example:
    >>> from keras_bandgnn.data import NodePairs
    >>> history = NodePairs([0, 0], [1, 2], time=[10, 20])
    >>> queries = NodePairs([0, 0], [1, 1], time=[20, 30])
    >>> EdgeBank().scores(history, queries, [1, 2, 3]).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    >>> EdgeBank(window=10).scores(history, queries, [1, 2, 3]).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    def __init__(self, window: int | None = None):
        self.window = checked_window(window)

    def prepare(self, history: NodePairs) -> Callable[..., np.ndarray]:
        """Return the function that scores pairs; see `LinkBaseline`."""
        pairs = PairHistories(history)

        def score(senders, receivers, times) -> np.ndarray:
            was, last = pairs.last(senders, receivers, times)
            if self.window is not None:
                was &= times - last <= self.window
            return was.astype(np.float64)

        return score
