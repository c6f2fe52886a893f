"""`attention`: the share of the head's inputs that came along each edge."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.explain.edge_places import edge_places
from keras_bandgnn.explain.explanation import Explanation
from keras_bandgnn.explain.probe import Probe
from keras_bandgnn.explain.request import ExplanationRequest, explanations
from keras_bandgnn.graph import Graph
from keras_bandgnn.models.graph_transformer.graph_transformer_backbone import (
    GraphTransformerBackbone,
)
from keras_bandgnn.models.inspection import AttentionWeights, attention_weights
from keras_bandgnn.models.task import Task

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Data


class HeadReading(Probe):
    """How much each node's last state contributes to the output."""

    method = "attention"

    def compute(self, batch) -> dict:
        """Return sizes of states times their gradient, as scores of nodes."""
        output = self.task(batch)
        rows = self.select_rows(output, batch)
        column = self.columns(rows, batch)

        def values(states):
            varied = {**batch, "explained": {"states": states}}
            return self.scores(
                self.select_rows(self.task(varied), batch), column, batch
            )

        states = self.task.backbone(batch)
        _, slopes = graph_ops.value_and_gradient(values, states)
        sizes = ops.abs(ops.sum(ops.cast(states * slopes, "float32"), axis=-1))
        return {"rows": rows, "column": column, "node": {"states": sizes}}


def attention(
    task: Task,
    graphs: Data,
    target: int | Sequence[int] | None = None,
    index: int | Sequence[int] | None = None,
) -> list[Explanation | None]:
    """Explain predictions by the attention weights of the backbone.

    Begins with the share of each node in what the head reads for the target (the size
    of its last state times the gradient), and follows the weights of each layer, the
    mean over heads, back to the first:

        c_l[n, j] = a_l[n, j] r_l[n],  r_(l-1)[j] = sum over n of c_l[n, j]

    The score of an edge (j -> n) is the sum of c_l[n, j] over the layers, that of node
    j is r_0[j] (tokens, which are no nodes, keep theirs). Layers of graph transformers
    add their input, so half of r_l stays at its node. Weights say where a model
    looks, which need not be why it decides; compare with another method.

    Args:
        task: The trained task, over a backbone with attention.
        graphs: Graphs, in any form that `predict` takes.
        target: Class, candidate or number to explain, from 0, one for all or one each;
            None for the predicted class, or the only number.
        index: The node to explain, one for all graphs or one each, for tasks over
            nodes; None otherwise.

    Returns:
        An `Explanation` per graph, in their order; scores of nodes, and of a token, add
        up to 1. None for graphs that the batcher drops and items that the encoder
        skips.

    Raises:
        ValueError: For a backbone without attention, or arguments that do not fit.

    Reference:
        Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928; Selvaraju et al. 2017
        for the start.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> backbone = kb.models.GATBackbone({"kind": 2}, 8, num_heads=2)
    >>> task = kb.models.GraphClassifier(backbone, 2)
    >>> explanation, = attention(task, [graph])
    >>> round(float(explanation.node.sum()), 4)
    1.0
    """
    request = ExplanationRequest(task, graphs, target, index, edges=False).checked()
    # Before other work: not every backbone has weights.
    weights = attention_weights(task, request.graphs)
    read = explanations(request, HeadReading)
    residual = isinstance(task.backbone, GraphTransformerBackbone)
    return [
        None if explanation is None else _followed(explanation, layers, residual)
        for explanation, layers in zip(read, weights, strict=True)
    ]


def _followed(
    read: Explanation, layers: list[AttentionWeights], residual: bool
) -> Explanation:
    """Return the explanation by the weights of one graph.

    Args:
        read: Scores of nodes in what the head reads.
        layers: The weights of each layer, from the first.
        residual: Whether layers add their input.
    """
    count = read.graph.num_nodes
    graph = read.graph
    if not graph.num_edges:
        graph = Graph(count, read.senders, read.receivers)
    # The token of a graph is node N.
    share = np.append(read.node / max(float(read.node.sum()), 1e-12), 0.0)
    edge, between = np.zeros(graph.num_edges, np.float32), 0.0
    for weights in reversed(layers):
        flow = weights.weights.mean(axis=1) * share[weights.receivers]
        if residual:
            flow = flow / 2
        share = share / 2 if residual else np.zeros_like(share)
        np.add.at(share, weights.senders, flow)
        pair = weights.senders != weights.receivers
        pair &= np.maximum(weights.senders, weights.receivers) < count
        senders, receivers = weights.senders[pair], weights.receivers[pair]
        between += float(flow[pair].sum())
        if graph.num_edges:
            kinds = {"type": np.zeros(len(senders), np.int32)}
            edge += edge_places(graph, senders, receivers, kinds).to_caller(flow[pair])
    return dataclasses.replace(
        read,
        node=share[:count].astype(np.float32),
        node_features={},
        edge=edge,
        rest=between - float(edge.sum()),
    )
