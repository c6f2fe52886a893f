"""Dense NumPy versions of the pooling layers, for one graph."""

import numpy as np


def largest(scores, ratio) -> np.ndarray:
    """Mask [N] of the ceil(ratio N) largest scores [N]; of equal ones the first."""
    count = int(np.ceil(ratio * len(scores) - 1e-9))
    mask = np.zeros(len(scores), bool)
    mask[np.argsort(-scores, kind="stable")[:count]] = True
    return mask


def projections(states, direction) -> np.ndarray:
    """Scores [N] of `TopKPooling`."""
    return states @ direction / np.linalg.norm(direction)


def convolution(graph, states, kernel, bias) -> np.ndarray:
    """Scores [N] of `SAGPooling`; a self-loop of the graph is the node's own."""
    adjacency = np.eye(graph.num_nodes)
    for sender, receiver in zip(graph.senders, graph.receivers, strict=True):
        if sender != receiver:
            adjacency[receiver, sender] += 1
        else:
            adjacency[receiver, sender] = 1
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    return (scale[:, None] * adjacency * scale) @ (states @ kernel)[:, 0] + bias


def pooled(states, scores, ratio) -> tuple:
    """States [N, H] after pooling, with tanh, and the mask of those that stay."""
    mask = largest(scores, ratio)
    return np.where(mask[:, None], states * np.tanh(scores)[:, None], 0.0), mask


def subgraph(graph, mask) -> tuple:
    """Senders, receivers and places of the edges between nodes of a mask."""
    number = np.cumsum(mask) - 1
    keep = np.flatnonzero(mask[graph.senders] & mask[graph.receivers])
    return number[graph.senders[keep]], number[graph.receivers[keep]], keep
