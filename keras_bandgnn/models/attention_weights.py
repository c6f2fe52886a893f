"""Attention weights of a task's backbone, for `Task.attention_weights`."""

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np

from keras_bandgnn.models.node_order import node_places
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.whole_graphs import helper_of


class AttentionWeights(NamedTuple):
    """Attention weights of one layer in one graph.

    Attributes:
        senders: int32 [E], nodes that are looked at.
        receivers: int32 [E], nodes that look, ascending.
        weights: float32 [E, K]; those of a receiver and head add up to 1.
    """

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray


class SeenGraph(NamedTuple):
    """One graph of a batch, as a backbone has seen it.

    Args:
        num_nodes: Number of nodes.
        senders: int [E].
        receivers: int [E].
        edge: Edge features by name, [E, ...].
    """

    num_nodes: int
    senders: np.ndarray
    receivers: np.ndarray
    edge: dict


class Terms(Task):
    """What the attention of a backbone is made of, for `predict_on_batch`.

    Args:
        task: The task.
    """

    def __init__(self, task):
        super().__init__(task.backbone, task.preprocessor)
        self.build()
        self.compile()

    def build(self, input_shape=None):
        """All weights are the backbone's."""
        self.built = True

    def call(self, x, training=False):
        """Returns the backbone's `attention_terms`."""
        return self.backbone.attention_terms(x)


def attention_weights(task, graphs) -> list:
    """See `Task.attention_weights`."""
    if not hasattr(task.backbone, "attention_terms"):
        raise ValueError(
            "Expected a backbone with attention: GATBackbone, GraphormerBackbone or "
            f"GTBackbone. Received: {type(task.backbone).__name__}."
        )
    if task.distribution.several:
        raise ValueError(
            "Expected a task on one device for attention weights. Received: "
            f"{task.distribution.size} devices."
        )
    if isinstance(graphs, list | tuple) and not graphs:
        return []
    model = helper_of(task, Terms)
    loader = model.loader(graphs, training=False)
    out: list = [None] * int(loader.starts[-1])
    places = list(node_places(graphs, loader))
    for x in model.batches(loader, graphs):
        terms = keras.tree.map_structure(
            keras.ops.convert_to_numpy, model.predict_on_batch(x)
        )
        for index, seen, cut in _graphs_of(x):
            rows, count = places[index]
            # The token is a node behind the last one.
            rows = np.append(rows, count)
            out[index] = [
                _weights(task.backbone.attention_pairs(number, cut(layer), seen), rows)
                for number, layer in enumerate(terms)
            ]
    return out


def _graphs_of(x) -> Iterator[tuple]:
    """Position and `SeenGraph` of each graph of a batch, and what cuts terms to it."""
    graph, edge = x["graph"], x["edge"]
    node_stop = np.cumsum(graph["n_node"], axis=1)
    edge_stop = np.cumsum(graph["n_edge"], axis=1)
    for group, slot in np.argwhere(graph["mask"]):
        nodes = slice(
            node_stop[group, slot] - graph["n_node"][group, slot],
            node_stop[group, slot],
        )
        edges = slice(
            edge_stop[group, slot] - graph["n_edge"][group, slot],
            edge_stop[group, slot],
        )
        place = {
            "edge_bias": (group, edges),
            "own_bias": (),
            "token_bias": (),
            "token_query": (group, slot),
            "token_key": (group, slot),
        }

        def cut(terms, place=place, nodes=(group, nodes)):
            return {k: v[place.get(k, nodes)] for k, v in terms.items()}

        features = {name: values[group, edges] for name, values in edge.items()}
        first = nodes.start
        seen = SeenGraph(
            int(graph["n_node"][group, slot]),
            features["sender"] - first,
            features["receiver"] - first,
            features,
        )
        yield int(graph["id"][group, slot]), seen, cut


def _weights(pairs, rows: np.ndarray) -> AttentionWeights:
    """The softmax over the pairs of each receiver, in the caller's order of nodes.

    Args:
        pairs: Senders, receivers and logits.
        rows: int [n + 1], the caller's number of each node.
    """
    senders, receivers, logits = pairs
    senders, receivers = rows[senders], rows[receivers]
    order = np.lexsort((senders, receivers))
    senders, receivers = (t[order].astype(np.int32) for t in (senders, receivers))
    logits = logits[order].astype(np.float32)
    if not order.size:
        return AttentionWeights(senders, receivers, logits)
    first = np.append(True, receivers[1:] != receivers[:-1])
    starts, segment = np.flatnonzero(first), np.cumsum(first) - 1
    shares = np.exp(logits - np.maximum.reduceat(logits, starts)[segment])
    shares /= np.add.reduceat(shares, starts)[segment]
    return AttentionWeights(senders, receivers, shares)
