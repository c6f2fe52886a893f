"""`LinkBaseline`: scores of pairs from what was before them, without a model."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.arrays import INT32_MAX
from keras_bandgnn.checks import array, positive_int
from keras_bandgnn.data.link_ends import NodePairs, as_pairs, warn_of_units
from keras_bandgnn.preprocessing.sampling.edge_histories import EdgeHistories
from keras_bandgnn.registration import constructor_arguments

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from keras_bandgnn.aliases import Pairs

# Scores in memory at a time.
_CHUNK = 1 << 20


class LinkBaseline(abc.ABC):
    """Scores the receivers that a sender may have, from earlier pairs alone.

    A model of a graph in time is worth its cost if it ranks better. History may have
    pairs of all times, since a score reads those that are strictly earlier than the
    pair in question. Types of pairs do not count: leave out reverse edges that were
    added for messages. Pairs of an edge set are rows of its two node sets in all
    arguments. Subclasses override `prepare`.
    """

    @abc.abstractmethod
    def prepare(self, history: NodePairs) -> Callable[..., np.ndarray]:
        """Return a function from senders, receivers and times to scores.

        Args:
            history: `NodePairs` with times.

        Returns:
            A function of int [n], int [n] and int64 [n] that returns float64 [n]; a
            higher score is a likelier pair.
        """

    def scores(
        self, history: NodePairs, queries: Pairs, candidates: ArrayLike
    ) -> np.ndarray:
        """Return the score of each candidate as the receiver of each query.

        Args:
            history: `NodePairs` with times, such as of all edges of a graph.
            queries: `NodePairs` with times, whose senders are asked about.
            candidates: int [C], nodes, the same for all queries; or int [Q, C].

        Returns:
            float64 [Q, C].

        Raises:
            ValueError: For pairs without times, or candidates of other shapes.
        """
        history, queries = _timed(history=history, queries=queries)
        candidates = _candidates(candidates, len(queries))
        return self._table(self.prepare(history), queries, candidates)

    def rank(
        self, history: NodePairs, pairs: Pairs, candidates: ArrayLike
    ) -> np.ndarray:
        """Return the rank of the receiver of each pair among itself and candidates.

        1 is best. Nodes with the same score share the mean of their ranks, so that a
        baseline that knows nothing has the rank of chance, as `LinkPredictor.rank`.

        Args:
            history: `NodePairs` with times.
            pairs: `NodePairs` with times that are true.
            candidates: int [C], nodes, such as all of a graph; or int [Q, C], such as
                drawn ones. The receiver itself is not counted twice.

        Returns:
            float64 [Q].

        Raises:
            ValueError: For pairs without times, or candidates of other shapes.
        """
        history, pairs = _timed(history=history, pairs=pairs)
        candidates = _candidates(candidates, len(pairs))
        score = self.prepare(history)
        out = np.empty(len(pairs))
        step = max(1, _CHUNK // max(1, candidates.shape[-1]))
        for start in range(0, len(pairs), step):
            part = slice(start, start + step)
            some = pairs.take(part)
            others = candidates if candidates.ndim == 1 else candidates[part]
            table = self._table(score, some, others)
            true = score(some.senders, some.receivers, some.time)[:, None]
            table[others == some.receivers[:, None]] = np.nan
            above, ties = (table > true).sum(axis=1), (table == true).sum(axis=1)
            out[part] = 1 + above + 0.5 * ties
        return out

    def _table(self, score, queries: NodePairs, candidates: np.ndarray) -> np.ndarray:
        shape = len(queries), candidates.shape[-1]
        receivers = np.broadcast_to(candidates, shape).reshape(-1)
        senders, times = (v.repeat(shape[1]) for v in (queries.senders, queries.time))
        return score(senders, receivers, times).reshape(shape)

    get_config = constructor_arguments

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({options})"


class PairHistories:
    """The times of each pair of a history.

    Args:
        history: `NodePairs` with times.
    """

    def __init__(self, history: NodePairs):
        keys = _keys(history.senders, history.receivers)
        self._keys, rows = np.unique(keys, return_inverse=True)
        self._histories = EdgeHistories(
            rows.reshape(-1), history.time, len(self._keys) + 1
        )
        self._times = history.time[self._histories.order]

    def last(self, senders, receivers, times) -> tuple[np.ndarray, np.ndarray]:
        """Return whether pairs were there before, and when last.

        Args:
            senders: int [n].
            receivers: int [n].
            times: int64 [n], which earlier times count.

        Returns:
            bool [n], and int64 [n], 0 where they were not.
        """
        keys = _keys(senders, receivers)
        rows = np.searchsorted(self._keys, keys)
        # Pairs that never were have the row without times.
        here = rows < len(self._keys)
        here[here] = self._keys[rows[here]] == keys[here]
        rows = np.where(here, rows, len(self._keys))
        first, counts = self._histories.before(rows, self._histories.ranks(times))
        was = counts > 0
        last = np.zeros(len(rows), np.int64)
        last[was] = self._times[(first + counts - 1)[was]]
        return was, last


def checked_window(window) -> int | None:
    """Return a length of time, or None, or raise a ValueError."""
    return None if window is None else positive_int("window", window, 1, 2**62)


def _keys(senders, receivers) -> np.ndarray:
    return (np.asarray(senders, np.int64) << 32) + receivers


def _timed(**arguments) -> list[NodePairs]:
    """Return pairs with times, all of them numbered alike, or raise a ValueError.

    The first are the history of the others.
    """
    numbered_by = {getattr(pairs, "edge_set", None) for pairs in arguments.values()}
    out = []
    for name, pairs in arguments.items():
        if len(numbered_by) == 1 and isinstance(pairs, NodePairs):
            # Rows of the two sets of an edge set, or nodes.
            pairs = NodePairs(pairs.senders, pairs.receivers, time=pairs.time)
        pairs = as_pairs(name, pairs, INT32_MAX)
        if pairs.time is None:
            raise ValueError(
                f"Expected `{name}` with times. Received: pairs without. Write "
                "NodePairs(senders, receivers, time=t)."
            )
        out.append(pairs)
        warn_of_units(name, pairs.time, out[0].time)
    return out


def _candidates(candidates, count: int) -> np.ndarray:
    nodes = array("candidates", candidates)
    valid = nodes.ndim == 1 or (nodes.ndim == 2 and len(nodes) == count)
    if nodes.dtype.kind not in "iu" or not valid or nodes.min(initial=0) < 0:
        raise ValueError(
            "Expected `candidates` to be nodes, int [C], or int [Q, C] with a row for "
            f"each of {count} pairs. Received: {nodes.dtype} of shape {nodes.shape}."
        )
    return nodes
