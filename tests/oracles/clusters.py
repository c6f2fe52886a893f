"""Dense NumPy versions of the readouts of clusters, for one graph."""

import numpy as np

from tests.oracles.convolutions import softmax


def adjacency(graph) -> np.ndarray:
    """A [N, N], with A[n, j] the number of edges (j -> n)."""
    out = np.zeros((graph.num_nodes,) * 2)
    np.add.at(out, (graph.receivers, graph.senders), 1.0)
    return out


def assignment(states, kernel, bias) -> np.ndarray:
    """S [N, K] of `MinCutPooling`."""
    return softmax((states @ kernel + bias).T).T


def convolved_assignment(graph, states, kernel, bias) -> np.ndarray:
    """S [N, K] of `DiffPooling`."""
    rows = adjacency(graph)
    np.fill_diagonal(rows, 1.0)
    scale = 1 / np.sqrt(rows.sum(axis=1))
    rows = scale[:, None] * rows * scale
    return assignment(rows @ states, kernel, bias)


def cut_factors(clusters) -> np.ndarray:
    """A'' [K, K] of `MinCutPooling`."""
    rows = clusters - np.diag(np.diag(clusters))
    scale = 1 / np.sqrt(np.maximum(rows.sum(axis=1), 1e-30))
    scale[rows.sum(axis=1) == 0] = 0.0
    return scale[:, None] * rows * scale


def mean_factors(clusters) -> np.ndarray:
    """Factors [K, K] of the messages between clusters of `DiffPooling`."""
    return clusters / np.maximum(clusters.sum(axis=1, keepdims=True), 1.0)


def readout(states, factors, layers) -> np.ndarray:
    """Output [U] of layers (W_1, W_2, b) between clusters, with ReLU."""
    for message, cluster, bias in layers:
        states = np.maximum(factors @ states @ message + states @ cluster + bias, 0)
    return states.mean(axis=0)


def cut_loss(graph, share) -> float:
    """Loss of the cut and of orthogonality."""
    edges = adjacency(graph)
    inside = np.trace(share.T @ edges @ share)
    whole = np.trace(share.T @ np.diag(edges.sum(axis=1)) @ share)
    overlap = share.T @ share
    even = np.eye(share.shape[1]) / np.sqrt(share.shape[1])
    cut = -inside / whole if whole else 0.0
    return cut + np.linalg.norm(overlap / np.linalg.norm(overlap) - even)


def link_loss(graph, share) -> float:
    """Loss of the links and of the entropy."""
    error = np.linalg.norm(adjacency(graph) - share @ share.T)
    entropy = -(share * np.log(share)).sum(axis=1).mean()
    return error / graph.num_nodes**2 + entropy
