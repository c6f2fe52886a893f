"""Scores and ranks of pairs, from the states of all nodes of a graph."""

from collections.abc import Callable

import numpy as np

from keras_bandgnn.checks import boolean
from keras_bandgnn.data.link_splits import NodePairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.inputs import GRAPHS, Inputs
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.progress import progress_bar

# Numbers of a table of scores, or of the hidden layer behind it.
_CHUNK = 1 << 24


def check_one_device(task) -> None:
    """Raise a ValueError for a task on several devices."""
    if task.distribution.several:
        raise ValueError(
            "Expected one device for LinkPredictor. Received: "
            f"{task.distribution.size}. Create the task outside of the scope of a "
            "distribution."
        )


def node_states(task, graph: Graph, by_layer: bool = False) -> np.ndarray:
    """Return the states of all nodes, float32 [1, N, H], in the caller's order.

    Args:
        task: The `LinkPredictor`.
        graph: The graph.
        by_layer: See `LinkPredictor.predict`.
    """
    from keras_bandgnn.models.layerwise import states_by_layer

    boolean("by_layer", by_layer)
    check_one_device(task)
    task.complete([graph])
    if by_layer:
        (states,) = states_by_layer(task, [graph])
    else:
        (states,) = task.embed(Inputs(GRAPHS, [graph], graph))
    if np.isnan(states).any():
        raise ValueError(
            "Expected states of all nodes. Received: NaN, of a model that diverged "
            "or of nodes that the preprocessor drops. Lower the learning rate, or "
            "apply layers that drop nodes before splitting the edges."
        )
    return np.asarray(states, np.float32)[None]


def score_pairs(
    task, states: np.ndarray, pairs: NodePairs, size: int, end: str | None = None
) -> np.ndarray:
    """Return the scores [q] of pairs; or [q, N], with each node at one end.

    Args:
        task: The `LinkPredictor`.
        states: float32 [1, N, H].
        pairs: At most `size` pairs.
        size: What pairs are padded to, so that steps have one shape.
        end: The end of pairs that all nodes take; None to score the pairs themselves.
    """
    missing = (0, size - len(pairs))
    columns = {"sender": pairs.senders, "receiver": pairs.receivers}
    columns["type"] = pairs.types
    pair = {name: np.pad(ids, missing)[None] for name, ids in columns.items()}
    program = compiled(task, _pair_scores, end)
    out = program.predict_on_batch({"states": states, "pair": pair})
    return np.asarray(out)[0, : len(pairs)]


def _pair_scores(task, inputs, end: str | None):
    """Return scores [1, Q] or [1, Q, N] of pairs from stored states."""
    states, parts = inputs["states"], {"pair": inputs["pair"]}
    if end is None:
        return task.head(states, parts)
    return task.head.score_nodes(states, parts, end)


def ranks(
    task,
    states: np.ndarray,
    pairs: NodePairs,
    known: NodePairs | None,
    ends: tuple[str, ...],
    chunk: int | None,
    self_pairs: bool,
    progress: bool,
) -> list[np.ndarray]:
    """Return the ranks of the true nodes of pairs, float64 [Q] for each end.

    Args:
        task: The `LinkPredictor`.
        states: float32 [1, N, H].
        pairs: Pairs that are true.
        known: All true pairs, which are left out; or None.
        ends: The ends of pairs that are asked for.
        chunk: See `LinkPredictor.rank`.
        self_pairs: Whether a node is among its own answers.
        progress: Whether to show a progress bar, after two seconds.
    """
    if chunk is None:
        width = 1
        if task.head.score == "mlp":
            width = task.head.hidden or task.backbone.hidden_dim
        chunk = max(1, _CHUNK // (states.shape[1] * width))
    chunk = max(1, min(chunk, len(pairs)))
    with progress_bar("Ranking", len(ends) * len(pairs), progress) as advance:
        return [
            _ranks_of_end(task, states, pairs, known, end, chunk, self_pairs, advance)
            for end in ends
        ]


def _ranks_of_end(
    task,
    states: np.ndarray,
    pairs: NodePairs,
    known: NodePairs | None,
    end: str,
    chunk: int,
    self_pairs: bool,
    advance: Callable,
) -> np.ndarray:
    """Return the rank of one end of each pair, float64 [Q]."""
    asked = pairs if end == "receiver" else pairs.reversed()
    others = None
    if known is not None:
        others = _Answers(known if end == "receiver" else known.reversed())
    out = np.empty(len(pairs))
    for start in range(0, len(pairs), chunk):
        part = slice(start, start + chunk)
        table = np.array(score_pairs(task, states, pairs.take(part), chunk, end))
        rows = np.arange(len(table))
        true = table[rows, asked.receivers[part]]
        if others is not None:
            table[others.of(asked.take(part))] = -np.inf
        if not self_pairs:
            table[rows, asked.senders[part]] = -np.inf
        # The true node may be among the known ones.
        table[rows, asked.receivers[part]] = -np.inf
        above = (table > true[:, None]).sum(axis=1)
        ties = (table == true[:, None]).sum(axis=1)
        out[part] = 1 + above + 0.5 * ties
        advance(len(rows))
    return out


class _Answers:
    """The known receivers for each sender and type.

    Args:
        known: All pairs that are true.
    """

    def __init__(self, known: NodePairs):
        order = np.lexsort((known.senders, known.types))
        self._receivers = known.receivers[order]
        self._keys = _question(known)[order]

    def of(self, pairs: NodePairs) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the known receivers in a table of scores."""
        keys = _question(pairs)
        first = np.searchsorted(self._keys, keys, "left")
        counts = np.searchsorted(self._keys, keys, "right") - first
        rows = np.repeat(np.arange(len(pairs)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self._receivers[first[rows] + within]


def _question(pairs: NodePairs) -> np.ndarray:
    """Return one number for the sender and the type of each pair."""
    return (pairs.types.astype(np.int64) << 32) + pairs.senders
