"""`gnn_explainer`: masks of edges and features, trained to keep a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import non_negative_number, positive_int, positive_number
from keras_bandgnn.explain.explanation import Explanation
from keras_bandgnn.explain.gradients import by_name
from keras_bandgnn.explain.probe import EDGE, Probe, output_kind
from keras_bandgnn.explain.request import ExplanationRequest, explanations
from keras_bandgnn.models.task import Task

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Data

# Weights of the loss, in this order.
_TERMS = ("edge_size", "edge_entropy", "feature_size", "feature_entropy")
# Logit of all masks before training: close to the whole graph, whose prediction they
# are to keep. A model that needs a whole motif has no gradient where half of each edge
# is missing.
_START = 3.0
_BETA = (0.9, 0.999)
_EPSILON = 1e-8
# Gradients that are smaller, relative to the largest of the graph, are rounding errors.
_ROUNDING = 1e-6


class MaskTraining(Probe):
    """Trains masks of edges and features through a batch, by Adam.

    A graph's masks change no other graph's prediction, and Adam treats each number on
    its own: training a batch at once is training each graph alone.

    Args:
        task: The task.
        features: Whether node features are masked.
        edges: Whether edges are masked.
        steps: Steps of Adam.
    """

    method = "gnn_explainer"

    def __init__(self, task, features=True, edges=True, steps=200):
        super().__init__(task, features, edges)
        self.steps = steps

    def compute(self, batch) -> dict:
        """Return the trained masks, 0 where the output does not depend on the input."""
        inputs = self.inputs(batch)
        rows = self.rows(batch, inputs)
        column = self.columns(rows, batch)
        whole = self.scores(rows, column, batch)
        nothing = {name: ops.zeros_like(values) for name, values in inputs.items()}
        # The scale of differences between numbers.
        empty = self.scores(self.rows(batch, nothing), column, batch)
        scale = ops.maximum(ops.square(whole - empty), 1e-12)
        constants = {
            "batch": batch,
            "inputs": inputs,
            "column": column,
            "whole": whole,
            "scale": scale,
            "pulls": self._pulls(batch, inputs),
        }
        zeros = {name: self._logits(name, values) for name, values in inputs.items()}
        start = {name: values + _START for name, values in zeros.items()}
        state = [start, dict(zeros), dict(zeros), dict(zeros)]
        logits, _, _, used = self.repeated("train", self.steps, state, constants)
        masks = {name: ops.sigmoid(logits[name]) * used[name] for name in logits}
        for name in masks:
            if self.is_embedded(name):
                masks[name] = ops.squeeze(masks[name], axis=-1)
        return {"rows": rows, "column": column, **by_name(masks)}

    def train(self, step, state, constants):
        """Return logits, Adam's means and which inputs matter after another step."""
        batch, inputs = constants["batch"], constants["inputs"]
        column, whole, scale = (constants[n] for n in ("column", "whole", "scale"))

        def loss(logits):
            masks = {name: ops.sigmoid(values) for name, values in logits.items()}
            varied = {name: inputs[name] * masks[name] for name in inputs}
            return self._loss(self.rows(batch, varied), column, whole, scale, batch)

        logits, means, squares, used = state
        slopes = self.slopes(loss, logits)
        count = ops.cast(step + 1, "float32")
        bias = [1.0 - ops.power(beta, count) for beta in _BETA]
        new: list[dict] = [{}, {}, {}, {}]
        for name, slope in slopes.items():
            # The first gradient tells which inputs matter at all.
            seen = self._matters(name, slope, batch)
            new[3][name] = ops.where(step == 0, seen, used[name])
            slope = slope + self._penalty(logits[name], *constants["pulls"][name])
            if name == EDGE:
                pair = ops.convert_to_tensor(batch["request"]["pair"])
                slope = 0.5 * (slope + ops.take_along_axis(slope, pair, axis=1))
            # Adam. Keras' own would create variables of each shape of batch, which
            # compiled programs cannot.
            mean = _BETA[0] * means[name] + (1 - _BETA[0]) * slope
            square = _BETA[1] * squares[name]
            square = square + (1 - _BETA[1]) * ops.square(slope)
            size = ops.sqrt(square / bias[1]) + _EPSILON
            change = batch["request"]["rate"][0] * mean / bias[0] / size
            new[0][name] = logits[name] - change
            new[1][name], new[2][name] = mean, square
        return new

    def _logits(self, name: str, values):
        """Return zeros of the shape of an input's mask: ids have one for each node."""
        zeros = ops.zeros_like(values)
        return zeros[..., :1] if self.is_embedded(name) else zeros

    def _loss(self, rows, column, whole, scale, batch):
        """Return how far the masked output is from the whole one, float [G, B].

        Args:
            rows: Output of the masked input, float [G, B, C].
            column: int32 [G, B].
            whole: The explained numbers of the whole input, float [G, B].
            scale: Squared differences that count as 1, float [G, B].
            batch: The batch.
        """
        kind = output_kind(self.task)
        if kind == "class":
            top = ops.stop_gradient(ops.max(rows, axis=-1, keepdims=True))
            rows = rows - top
            total = ops.log(ops.sum(ops.exp(rows), axis=-1))
            real = ops.convert_to_tensor(batch["graph"]["mask"])
            return ops.where(real, total, 0.0) - self.scores(rows, column, batch)
        masked = self.scores(rows, column, batch)
        if kind == "binary":
            return ops.softplus(-ops.sign(whole) * masked)
        return ops.square(masked - whole) / scale

    def _matters(self, name: str, slope, batch):
        """Return 1 where a gradient is no rounding error, else 0."""
        size = ops.abs(slope)
        axes = tuple(range(2, len(size.shape)))
        rows = ops.max(size, axis=axes) if axes else size
        ids = self.graph_of(name, batch)
        slots = ops.shape(batch["graph"]["mask"])[1]
        top = graph_ops.batched_segment_max(ops.expand_dims(rows, -1), ids, slots)
        top = graph_ops.batched_gather(top[..., 0], ids)
        top = ops.reshape(top, (*ops.shape(top), *(1,) * len(axes)))
        return ops.cast(size > _ROUNDING * top, "float32")

    def _pulls(self, batch, inputs) -> dict:
        """Return the weights of size and entropy of each mask's numbers.

        As in the paper, sizes of edges add up, and entropies and sizes of features are
        means over the graph.
        """
        terms = dict(zip(_TERMS, ops.unstack(batch["request"]["terms"]), strict=True))
        counts = {
            name: ops.maximum(ops.cast(batch["graph"][name], "float32"), 1.0)
            for name in ("n_node", "n_edge")
        }
        widths = {
            name: 1 if self.is_embedded(name) else int(np.prod(values.shape[2:]))
            for name, values in inputs.items()
            if name != EDGE
        }
        pulls = {}
        for name, values in inputs.items():
            graph = self.graph_of(name, batch)
            if name == EDGE:
                share = 1.0 / graph_ops.batched_gather(counts["n_edge"], graph)
                pulls[name] = terms["edge_size"], terms["edge_entropy"] * share
            else:
                share = 1.0 / graph_ops.batched_gather(counts["n_node"], graph)
                share = share / sum(widths.values())
                axes = (1,) * (len(values.shape) - 2)
                share = ops.reshape(share, (*ops.shape(share), *axes))
                pulls[name] = (
                    terms["feature_size"] * share,
                    terms["feature_entropy"] * share,
                )
        return pulls

    @staticmethod
    def _penalty(logits, size, entropy):
        """Return the gradient of size s(x) and entropy H(s(x)) of masks s(x)."""
        mask = ops.sigmoid(logits)
        return mask * (1.0 - mask) * (size - entropy * logits)


def gnn_explainer(
    task: Task,
    graphs: Data,
    target: int | Sequence[int] | None = None,
    index: int | Sequence[int] | None = None,
    steps: int = 200,
    learning_rate: float = 0.05,
    edge_size: float = 0.02,
    edge_entropy: float = 0.1,
    feature_size: float = 1.0,
    feature_entropy: float = 0.1,
    features: bool = True,
    edges: bool = True,
) -> list[Explanation | None]:
    """Explain predictions by masks, trained so that a small part of the graph suffices.

        minimise  -log p(target | masked graph)
                  + edge_size * sum over edges of m + edge_entropy * mean of H(m)
                  + feature_size * mean over features of f + feature_entropy * ...

    with masks m of edges and f of node features (of ids one for each node and feature)
    in (0, 1) and their entropy H. Masks start close to 1. Both directions of an edge
    have one mask, where the graph has both with the same type. For numbers the first
    term is the squared difference from the prediction, relative to that of an empty
    graph. The masks of all graphs of a batch are trained at once, in one compiled loop:
    graphs do not see each other, so each mask is as if trained alone. Nothing is
    random.

    Args:
        task: The trained task.
        graphs: Graphs, in any form that `predict` takes.
        target: Class, candidate or number to explain, from 0, one for all or one each;
            None for the predicted class, or the only number.
        index: The node to explain, one for all graphs or one each, for tasks over
            nodes; None otherwise.
        steps: Steps of Adam.
        learning_rate: Its learning rate.
        edge_size: See above; at least 0.
        edge_entropy: See above; at least 0.
        feature_size: See above; at least 0.
        feature_entropy: See above; at least 0.
        features: Whether to mask node features.
        edges: Whether to mask edges.

    Returns:
        An `Explanation` per graph, in their order, with scores from 0 to 1; 0 for what
        the output does not depend on. None for graphs that the batcher drops and items
        that the encoder skips.

    Raises:
        ValueError: For arguments that do not fit, or a backbone that does not weigh
            edges.

    Reference:
        Ying et al. 2019, https://arxiv.org/abs/1903.03894.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> explanation, = gnn_explainer(task, [graph], steps=5)
    >>> bool(explanation.edge.max() < 1)
    True
    """
    steps = positive_int("steps", steps)
    rate = positive_number("learning_rate", learning_rate)
    terms = (edge_size, edge_entropy, feature_size, feature_entropy)
    terms = [
        non_negative_number(name, value)
        for name, value in zip(_TERMS, terms, strict=True)
    ]
    return explanations(
        ExplanationRequest(task, graphs, target, index, features, edges),
        MaskTraining,
        steps,
        rate=np.array([rate], np.float32),
        terms=np.array(terms, np.float32),
    )
