"""`LastPartner`: the receivers that a sender had last come first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.training.link_baseline import LinkBaseline, PairHistories

if TYPE_CHECKING:
    from keras_bandgnn.data.link_ends import NodePairs


class LastPartner(LinkBaseline):
    """Receivers of a sender by how recent they are; those it never had come last.

    The score is the negative of the time since the last such pair, and minus infinity
    without one.

    Example:
    >>> from keras_bandgnn.data import NodePairs
    >>> history = NodePairs([0, 0], [1, 2], time=[10, 20])
    >>> queries = NodePairs([0], [1], time=[25])
    >>> LastPartner().scores(history, queries, [1, 2, 3]).tolist()
    [[-15.0, -5.0, -inf]]
    """

    def prepare(self, history: NodePairs) -> Callable[..., np.ndarray]:
        """Return the function that scores pairs; see `LinkBaseline`."""
        pairs = PairHistories(history)

        def score(senders, receivers, times) -> np.ndarray:
            was, last = pairs.last(senders, receivers, times)
            return np.where(was, (last - times).astype(np.float64), -np.inf)

        return score
