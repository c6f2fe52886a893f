"""Scores of pairs of a graph, and what `LinkPredictor.evaluate` measures of them."""

import numpy as np

from keras_bandgnn.data.link_splits import NodePairs
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.link_pairs import GraphPairs
from keras_bandgnn.models.link_ranking import node_states, score_pairs
from keras_bandgnn.preprocessing.sampling.negative_sampler import NegativeSampler

# Pairs scored at a time.
CHUNK = 1 << 16


def scores(
    task, graph: Graph, pairs: NodePairs, by_layer: bool, size: int = CHUNK
) -> np.ndarray:
    """Return the scores of pairs, float32 [Q]; see `LinkPredictor.predict`.

    Args:
        task: The `LinkPredictor`.
        graph: The graph.
        pairs: The pairs.
        by_layer: Whether states are computed one layer at a time.
        size: Pairs scored at a time.
    """
    if not len(pairs):
        return np.zeros(0, np.float32)
    states = node_states(task, graph, by_layer)
    size = min(size, len(pairs))
    parts = [
        score_pairs(task, states, pairs.take(slice(start, start + size)), size)
        for start in range(0, len(pairs), size)
    ]
    return np.concatenate(parts)


def measures(
    task, links: GraphPairs, pairs, negatives, known, seed: int, by_layer: bool
) -> dict[str, float]:
    """Return loss and measures of the pairs of a graph; see `LinkPredictor.evaluate`.

    Args:
        task: The `LinkPredictor`.
        links: Has the graph.
        pairs: Pairs that are true; None for the edges.
        negatives: See `LinkPredictor.evaluate`, also for the others.
        known: Other pairs that are true, or None.
        seed: Seed of the negatives.
        by_layer: Whether states are computed one layer at a time.
    """
    from keras_bandgnn.training.link_metrics import average_precision, link_auc

    graph, pairs = links.graph, links.read_or_edges(pairs)
    _refuse_empty("pairs", pairs)
    links.check_messages("pairs", pairs)
    if negatives is None or isinstance(negatives, NegativeSampler):
        sampler = NegativeSampler() if negatives is None else negatives
        negatives = sampler.sample(
            pairs,
            graph.num_nodes,
            links.true(pairs, known),
            sampler.types_of(graph),
            seed,
            undirected=links.undirected,
        )
    negatives = links.read("negatives", negatives)
    _refuse_empty("negatives", negatives)
    both = NodePairs.concatenate([pairs, negatives])
    rows = scores(task, graph, both, by_layer)
    positive, negative = np.split(rows, [len(pairs)])
    return {
        "loss": mean_loss(task, positive, negative),
        "auc": link_auc(positive, negative),
        "average_precision": average_precision(positive, negative),
    }


def mean_loss(task, positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the mean loss of scores of pairs that are true, and of others.

    Args:
        task: The `LinkPredictor`.
        positive: float32 [Q].
        negative: float32 [K Q] with the objective "softmax", K for each pair.
    """
    if task.objective == "softmax":
        if len(negative) % len(positive):
            raise ValueError(
                "Expected as many `negatives` for each pair with "
                f"objective='softmax'. Received: {len(negative)} for "
                f"{len(positive)} pairs."
            )
        rows = negative.reshape(len(positive), -1)
        outputs = np.concatenate([positive[:, None], rows], axis=1)
        y = np.zeros((len(positive), 1), np.int32)
    else:
        outputs = np.concatenate([positive, negative])[:, None]
        y = np.repeat([1.0, 0.0], [len(positive), len(negative)])[:, None]
    weight = np.ones(len(y), np.float32)
    return float(task.loss(y.astype(np.float32), outputs, weight))


def _refuse_empty(name: str, pairs: NodePairs) -> None:
    """Raise a ValueError for no pairs, over which no measure is defined."""
    if not len(pairs):
        raise ValueError(
            f"Expected `{name}` to have at least one pair. Received: 0. Pass pairs, "
            "such as split_links(graph, test=0.2).test_pairs."
        )
