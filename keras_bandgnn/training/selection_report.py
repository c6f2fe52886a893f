"""How well a model selects, beside trivial guesses; which usages look wrong."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_bandgnn.data.program_graph import GUESSES
from keras_bandgnn.graph import Graph

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
    """Chance that each trivial guess is right, per graph.

    `random` picks any candidate; `edges` the one with most edges (ties shared);
    `nearest` and `frequent` are guesses that the graphs' `info` may hold.

    Args:
        graphs: Graphs with candidates and labels.

    Returns:
        Name of the guess -> float [n].
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
    """95 % interval of a mean of scores in [0, 1], by Wilson's formula.

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
        column: Column, from 0.
        used: Variable in the source.
        suggested: Variable that the model prefers.
        share_used: Probability that the model gives to the used one.
        share_suggested: Probability that the model gives to the suggested one.
    """

    filename: str
    line: int | None
    column: int | None
    used: str
    suggested: str
    share_used: float
    share_suggested: float


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax over the candidates of one graph."""
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def suspicious(graphs: Sequence[Graph], logits: Sequence, count: int = 10) -> list:
    """The usages whose own variable the model finds least likely.

    Args:
        graphs: Graphs with labels, `info["candidates"]` (names), "filename", "line".
        logits: One array [C] per graph, as `NodeSelector.predict` gives them.
        count: At most so many.

    Returns:
        `Suspicion`s, the strongest first, at most one per place in a file.
    """
    if any(graph.label is None for graph in graphs):
        raise ValueError(
            "Expected graphs with labels, the variables in use. Received: graphs with "
            "label=None."
        )
    found = {}
    for graph, row in zip(graphs, logits, strict=True):
        share = probabilities(np.asarray(row, np.float64))
        used, best = int(graph.label), int(np.argmax(row))
        names = graph.info["candidates"]
        if best == used or names[best] == names[used]:
            continue
        info = graph.info
        item = Suspicion(
            str(info.get("filename", "?")),
            info.get("line"),
            info.get("column"),
            names[used],
            names[best],
            float(share[used]),
            float(share[best]),
        )
        found[item.filename, item.line, item.column, item.used] = item
    ranked = sorted(found.values(), key=lambda s: s.share_used / s.share_suggested)
    return ranked[:count]
