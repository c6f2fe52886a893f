"""Backbone states of nodes and graphs, and attention weights."""

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np

from keras_bandgnn.batch import graph_rows
from keras_bandgnn.checks import INT32_MAX, one_of, positive_int
from keras_bandgnn.models.inputs import read_graphs
from keras_bandgnn.models.task_program import compiled
from keras_bandgnn.preprocessing.loading.node_order import (
    caller_rows,
    scatter_to_caller_order,
)

# Reductions over the nodes of a graph, for `Task.embed`.
_REDUCED = {
    "mean": lambda rows: rows.sum(axis=0) / max(len(rows), 1),
    "sum": lambda rows: rows.sum(axis=0),
    "max": lambda rows: rows.max(axis=0) if len(rows) else rows.sum(axis=0),
}


def layer_states(backbone, batch, layer: int, tokens: bool = False):
    """Return the states [G, N, H] of a layer, or the tokens [G, B, H] of the graphs.

    Args:
        backbone: The backbone.
        batch: A batch.
        layer: Index of the layer, from 0; the backbone's depth for its output.
        tokens: Whether to return the tokens instead.
    """
    if tokens:
        return backbone(batch, return_tokens=True)[1]
    if layer in (-1, backbone.depth):
        return backbone(batch)
    for number, states in enumerate(backbone.hidden_states(batch)):
        if number == layer:
            return states
    raise RuntimeError(f"no layer {layer}")


def _attention_terms(backbone, batch):
    return backbone.attention_terms(batch)


def embed(task, graphs, level: str, reduce: str, layer: int) -> list:
    """Return states of nodes or graphs; see `Task.embed`."""
    one_of("level", level, ("node", "graph"))
    one_of("reduce", reduce, (*_REDUCED, "token"))
    tokens = level == "graph" and reduce == "token"
    layer = _layer(task.backbone, layer)
    if level == "graph" and task.backbone.pools:
        raise ValueError(
            "Expected level='node' for a backbone with `pooling`, whose output has "
            "some nodes of a graph; rows of the others are 0. Received: "
            f"level={level!r}."
        )
    if tokens:
        _check_token(task.backbone, layer)
    inputs = read_graphs(task, "graphs", graphs)
    if inputs.is_empty:
        return inputs.spread([])
    rows_of = "graph" if tokens else "node"
    model = compiled(task, layer_states, layer, tokens, level=rows_of, of_backbone=True)
    loader = model.loader(inputs, training=False)
    out: list = [None] * int(loader.starts[-1])
    if level == "node":
        places = list(caller_rows(inputs.data, loader))
    for graph, rows in model.outputs(loader, inputs.data):
        if level == "node":
            rows = scatter_to_caller_order(rows, *places[graph])
        out[graph] = rows if level == "node" or tokens else _REDUCED[reduce](rows)
    return inputs.spread(task.distribution.gather(out))


def _layer(backbone, layer: int) -> int:
    positive_int("layer", layer, -INT32_MAX)
    depth = backbone.depth
    if depth is None:
        if layer == -1:
            return layer
        raise ValueError(
            "Expected layer=-1 for a backbone that does not say its `depth`. Received: "
            f"layer={layer}, {type(backbone).__name__}. Define `depth` and "
            "`hidden_states` in the class."
        )
    number = layer + depth + 1 if layer < 0 else layer
    if not 0 <= number <= depth:
        raise ValueError(
            f"Expected `layer` in [{-depth - 1}, {depth}], as the backbone has {depth} "
            f"layers after the embedded features, layer 0. Received: layer={layer}."
        )
    return number


def _check_token(backbone, layer: int) -> None:
    if not getattr(backbone, "global_token", False):
        raise ValueError(
            "Expected a graph transformer with global_token=True for reduce='token'. "
            f"Received: {type(backbone).__name__} without one."
        )
    if layer != backbone.depth:
        raise ValueError(
            f"Expected layer=-1 for reduce='token'. Received: layer={layer}."
        )


class AttentionWeights(NamedTuple):
    """Attention weights of one layer in one graph.

    Attributes:
        senders: int32 [E], nodes attended to.
        receivers: int32 [E], attending nodes, sorted.
        weights: float32 [E, K]; those of a receiver and head sum to 1.
    """

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray


class BatchGraph(NamedTuple):
    """One graph of a batch, as the backbone processes it.

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


def attention_weights(task, graphs) -> list:
    """Return attention weights; see `Task.attention_weights`."""
    if not hasattr(task.backbone, "attention_terms"):
        raise ValueError(
            "Expected a backbone with attention: GATBackbone, GPSBackbone, "
            "GraphormerBackbone or GTBackbone. "
            f"Received: {type(task.backbone).__name__}."
        )
    if task.backbone.pools:
        raise ValueError(
            "Expected a backbone without `pooling` for attention weights, as pooling "
            "leaves out edges. Received: one with it. Use "
            "keras_bandgnn.explain.saliency or gnn_explainer instead."
        )
    if task.distribution.several:
        raise ValueError(
            "Expected a task on one device for attention weights. Received: "
            f"{task.distribution.size} devices."
        )
    inputs = read_graphs(task, "graphs", graphs)
    if inputs.is_empty:
        return inputs.spread([])
    model = compiled(task, _attention_terms, of_backbone=True)
    loader = model.loader(inputs, training=False)
    out: list = [None] * int(loader.starts[-1])
    places = list(caller_rows(inputs.data, loader))
    for batch in model.batches(loader, inputs.data):
        terms = keras.tree.map_structure(
            keras.ops.convert_to_numpy, model.predict_on_batch(batch)
        )
        for index, graph, cut in _graphs_of(batch):
            rows, count = places[index]
            # The token is numbered after the last node.
            rows = np.append(rows, count)
            out[index] = [
                _weights(task.backbone.attention_pairs(number, cut(layer), graph), rows)
                for number, layer in enumerate(terms)
            ]
    return inputs.spread(out)


def _graphs_of(batch) -> Iterator[tuple]:
    """Yield the position and `BatchGraph` of each graph, and a slicer of terms."""
    for index, group, slot, nodes, edges in graph_rows(batch):
        place = {
            "edge_bias": (group, edges),
            "loop_bias": (),
            "token_bias": (),
            "token_query": (group, slot),
            "token_key": (group, slot),
        }

        def cut(terms, place=place, nodes=(group, nodes)):
            return {k: v[place.get(k, nodes)] for k, v in terms.items()}

        features = {k: v[group, edges] for k, v in batch["edge"].items()}
        first = nodes.start
        graph = BatchGraph(
            nodes.stop - first,
            features["sender"] - first,
            features["receiver"] - first,
            features,
        )
        yield index, graph, cut


def _weights(pairs, rows: np.ndarray) -> AttentionWeights:
    """Compute the softmax per receiver, in the caller's order of nodes.

    Args:
        pairs: Senders, receivers and logits.
        rows: int [n + 1], the caller's index of each node.
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
