"""Accuracy of selection against simple baselines, and suspicious variable usages."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_bandgnn.graph import Graph
from keras_bandgnn.programs.program_graph import GUESSES

GUESS_NAMES = {
    "random": "random candidate",
    "edges": "candidate with most edges",
    "nearest": "nearest previous use",
    "frequent": "most frequent in the function",
}


def _most_edges(graph: Graph) -> float:
    ends = np.concatenate([graph.senders, graph.receivers])
    degree = np.bincount(ends, minlength=graph.num_nodes)[graph.candidates]
    best = np.flatnonzero(degree == degree.max())
    return float((best == graph.label).mean()) if graph.label in best else 0.0


def trivial_scores(graphs: Sequence[Graph]) -> dict[str, np.ndarray]:
    """Compute the expected accuracy of simple baselines on each graph.

    `random` picks any candidate; `edges` the one with the most edges (ties share the
    score); `nearest` and `frequent` are optional entries of the graphs' `info`.

    Args:
        graphs: Graphs with candidates and labels.

    Returns:
        Name of the baseline -> float [n].
    """
    scores = {
        "random": [1.0 / len(graph.candidates) for graph in graphs],
        "edges": [_most_edges(graph) for graph in graphs],
    }
    for guess in GUESSES:
        if all(guess in graph.info for graph in graphs):
            scores[guess] = [
                float(graph.info[guess] == int(graph.label)) for graph in graphs
            ]
    return {name: np.array(values) for name, values in scores.items()}


def accuracy_interval(right: np.ndarray) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a mean of scores in [0, 1].

    Args:
        right: float [n], one score per graph.
    """
    count, z = len(right), 1.959964
    mean = float(np.mean(right))
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z * np.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    half = half / (1 + z * z / count)
    return float(centre - half), float(centre + half)


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """A usage for which the model prefers another variable.

    Args:
        filename: File of the usage.
        line: Line, from 1.
        column: Column in characters, from 1 as in editors.
        used: Variable in the source.
        suggested: Variable that the model prefers.
        share_used: Probability of the variable in the source.
        share_suggested: Probability of the suggested variable.
    """

    filename: str
    line: int | None
    column: int | None
    used: str
    suggested: str
    share_used: float
    share_suggested: float

    @property
    def ratio(self) -> float:
        """Probability of the variable in the source over that of the suggested one."""
        return self.share_used / self.share_suggested


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Compute the softmax over the candidates of one graph."""
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def suspicious(graphs: Sequence[Graph], logits: Sequence, count: int = 10) -> list:
    """Return the usages whose variable the model finds least likely.

    Args:
        graphs: Graphs with labels, `info["candidates"]` (names), "filename", "line".
        logits: One array [C] per graph, as `NodeSelector.predict` returns them.
        count: Maximum number of usages.

    Returns:
        `Suspicion`s, the strongest first, at most one per position in a file.
    """
    if any(graph.label is None for graph in graphs):
        raise ValueError(
            "Expected graphs with labels, the variables in the source. Received: "
            "graphs with label=None. Set the labels."
        )
    suspicions = {}
    for graph, row in zip(graphs, logits, strict=True):
        item = suspicion(graph.info, int(graph.label), row)
        if item is not None:
            suspicions[item.filename, item.line, item.column, item.used] = item
    return sorted(suspicions.values(), key=lambda item: item.ratio)[:count]


def suspicion(info: Mapping, used: int, logits: np.ndarray) -> Suspicion | None:
    """Return the suspicion about a usage, or None if the model agrees with it.

    Args:
        info: `info` of the graph: "candidates" (names), and the position in the
            source. `path`, if present, takes precedence over `filename`.
        used: Index of the variable in the source among the candidates.
        logits: [C].
    """
    best, names = int(np.argmax(logits)), info["candidates"]
    if best == used or names[best] == names[used]:
        return None
    share = probabilities(np.asarray(logits, np.float64))
    column = info.get("column")
    return Suspicion(
        str(info.get("path", info.get("filename", "?"))),
        info.get("line"),
        None if column is None else column + 1,
        names[used],
        names[best],
        float(share[used]),
        float(share[best]),
    )
