"""`saliency` and `integrated_gradients`: explanations from gradients of the output."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, positive_int, positive_number
from keras_bandgnn.explain.explanation import Explanation
from keras_bandgnn.explain.probe import EDGE, Probe
from keras_bandgnn.explain.request import ExplanationRequest, explanations, run_program
from keras_bandgnn.models.task import Task
from keras_bandgnn.models.task_program import TaskProgram

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Data

# Pieces of the path that are tried before an error of the sum is accepted. Each kink
# (ReLU) that a piece has costs a share of its length, so errors fall as pieces do.
_MOST_PIECES = 64
# A point of the path so close to its beginning that only a jump lies between.
_START = 1e-6


def by_name(scores: dict) -> dict:
    """Return scores of inputs as results of a probe: "node" by feature, and "edge"."""
    out = {"node": {name: values for name, values in scores.items() if name != EDGE}}
    return {**out, "edge": scores[EDGE]} if EDGE in scores else out


class Saliency(Probe):
    """Sizes of the gradient of the output.

    Args:
        task: The task.
        features: Whether node features are varied.
        edges: Whether edges are varied.
        times_input: Whether gradients are multiplied by the inputs.
    """

    method = "saliency"

    def __init__(self, task, features=True, edges=True, times_input=False):
        super().__init__(task, features, edges)
        self.times_input = times_input

    def compute(self, batch) -> dict:
        """Return the sizes of the gradient, of embedded ids one for each node."""
        inputs = self.inputs(batch)
        rows = self.rows(batch, inputs)
        column = self.columns(rows, batch)
        slopes = self.slopes(
            lambda varied: self.scores(self.rows(batch, varied), column, batch), inputs
        )
        sizes = {}
        for name, slope in slopes.items():
            if self.times_input:
                slope = slope * inputs[name]
            if not self.is_embedded(name):
                sizes[name] = ops.abs(slope)
            elif self.times_input:
                sizes[name] = ops.abs(ops.sum(slope, axis=-1))
            else:
                sizes[name] = ops.sqrt(ops.sum(ops.square(slope), axis=-1))
        return {"rows": rows, "column": column, **by_name(sizes)}


class IntegratedGradients(Probe):
    """Gradients along a straight path to the inputs, times the inputs."""

    method = "integrated_gradients"

    def compute(self, batch) -> dict:
        """Return the attributions, of embedded ids one for each node."""
        inputs = self.inputs(batch)
        rows = self.rows(batch, inputs)
        column = self.columns(rows, batch)
        totals = {name: ops.zeros_like(values) for name, values in inputs.items()}
        totals = self.repeated(
            "add",
            batch["request"]["place"].shape[0],
            totals,
            {"batch": batch, "inputs": inputs, "column": column},
        )
        scores = {}
        for name, total in totals.items():
            product = total * inputs[name]
            embedded = self.is_embedded(name)
            scores[name] = ops.sum(product, axis=-1) if embedded else product
        nothing = {name: ops.zeros_like(values) for name, values in inputs.items()}
        start = {name: _START * values for name, values in inputs.items()}
        return {
            "rows": rows,
            "column": column,
            "output": self.scores(rows, column, batch),
            "baseline": self._output(nothing, column, batch),
            "start": self._output(start, column, batch),
            "sum": self._sums(scores, batch),
            **by_name(scores),
        }

    def _output(self, varied, column, batch):
        return self.scores(self.rows(batch, varied), column, batch)

    def add(self, step, totals, constants):
        """Return the sums of gradients after another point of the path."""
        batch, column = constants["batch"], constants["column"]
        place, weight = (
            ops.take(ops.convert_to_tensor(batch["request"][name]), step, axis=0)
            for name in ("place", "weight")
        )
        inputs = {n: place * values for n, values in constants["inputs"].items()}
        slopes = self.slopes(lambda varied: self._output(varied, column, batch), inputs)
        return {name: totals[name] + weight * slopes[name] for name in totals}

    def _sums(self, scores, batch):
        """Return the sum of the scores of each graph, float32 [G, B]."""
        slots = ops.shape(batch["graph"]["mask"])[1]
        total = 0.0
        for name, values in scores.items():
            ids = self.graph_of(name, batch)
            axes = tuple(range(2, len(values.shape)))
            values = ops.sum(values, axis=axes) if axes else values
            total = total + graph_ops.batched_segment_sum(values, ids, slots)
        return total


def saliency(
    task: Task,
    graphs: Data,
    target: int | Sequence[int] | None = None,
    index: int | Sequence[int] | None = None,
    times_input: bool = False,
    features: bool = True,
    edges: bool = True,
) -> list[Explanation | None]:
    """Explain predictions by the size of the gradient of the output.

    The gradient of each feature is that of its number; of ids it is the norm of the
    gradient of their embedding. That of an edge is by a factor of the edge, which is 1
    in the graph and 0 without the edge. One forward and one backward pass.

    Args:
        task: The trained task.
        graphs: Graphs, in any form that `predict` takes.
        target: Class, candidate or number to explain, from 0, one for all or one each;
            None for the predicted class, or the only number.
        index: The node to explain, one for all graphs or one each, for tasks over
            nodes; None otherwise. To explain several nodes of a graph, pass the graph
            several times.
        times_input: Whether gradients are multiplied by the inputs.
        features: Whether to explain node features.
        edges: Whether to explain edges.

    Returns:
        An `Explanation` per graph, in their order, with scores of at least 0; None for
        graphs that the batcher drops and items that the encoder skips.

    Raises:
        ValueError: For arguments that do not fit, or a backbone that does not weigh
            edges.

    Reference:
        Simonyan et al. 2014, https://arxiv.org/abs/1312.6034.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> explanation, = saliency(task, [graph])
    >>> explanation.node.shape, explanation.edge.shape
    ((3,), (2,))
    """
    boolean("times_input", times_input)
    request = ExplanationRequest(task, graphs, target, index, features, edges)
    return explanations(request, Saliency, times_input)


def integrated_gradients(
    task: Task,
    graphs: Data,
    target: int | Sequence[int] | None = None,
    index: int | Sequence[int] | None = None,
    steps: int = 64,
    tolerance: float = 1e-3,
    features: bool = True,
    edges: bool = True,
) -> list[Explanation | None]:
    """Explain predictions by gradients along a path from nothing to the graph.

        score_i = x_i * integral over a from 0 to 1 of d output / d x_i (a x)

    where x are the node features (of ids their embeddings) and factors of the edges,
    all at once. Scores add up to the output for the graph minus that for zero features
    without edges. The integral is a sum over `steps` points of the path. Where
    the scores of a graph do not add up, the path is cut into up to 64 pieces with as
    many points each; a warning says what is then left.

    A mean or a maximum over edges does not depend on a factor that all edges have: the
    output jumps where the path begins. Gradients do not see the jump, which no number
    of points recovers. A warning says so, and `residual` has the jump.

    Args:
        task: The trained task.
        graphs: Graphs, in any form that `predict` takes.
        target: Class, candidate or number to explain, from 0, one for all or one each;
            None for the predicted class, or the only number.
        index: The node to explain, one for all graphs or one each, for tasks over
            nodes; None otherwise.
        steps: Points of the sum, each with a forward and a backward pass.
        tolerance: Largest error of the sum of a graph's scores, relative to the
            difference of the outputs if that is above 1.
        features: Whether to explain node features; otherwise they stay as they are.
        edges: Whether to explain edges; otherwise they stay as they are.

    Returns:
        An `Explanation` per graph, in their order: scores have the sign of their
        contribution, and `residual` is the error of their sum. None for graphs that the
        batcher drops and items that the encoder skips.

    Raises:
        ValueError: For arguments that do not fit, or a backbone that does not weigh
            edges.

    Reference:
        Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"kind": [0, 1, 1]})
    >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 2}, 8), 2)
    >>> explanation, = integrated_gradients(task, [graph])
    >>> abs(explanation.residual) < 1e-3
    True
    """
    positive_int("steps", steps)
    positive_number("tolerance", tolerance)

    def run(program, batch):
        return _integrated(program, batch, steps, tolerance)

    request = ExplanationRequest(task, graphs, target, index, features, edges)
    return explanations(request, IntegratedGradients, run=run)


def _integrated(
    program: TaskProgram, batch: dict, steps: int, tolerance: float
) -> dict:
    """Return the results for a batch, from as many pieces of the path as it needs."""
    pieces = 1
    while True:
        parts = [
            run_program(program, {**batch, "request": {**batch["request"], **points}})
            for points in _points(steps, pieces)
        ]
        total = {
            **parts[0],
            **keras.tree.map_structure(
                lambda *scores: sum(scores),
                *({k: p[k] for k in ("node", "edge", "sum") if k in p} for p in parts),
            ),
        }
        change = total["output"] - total["baseline"]
        jump = total["start"] - total["baseline"]
        # Numbers that are not finite are refused with the number of their graph.
        missing, smooth = (
            np.nan_to_num(np.abs(change - total["sum"] - part), posinf=0.0)
            / np.maximum(np.abs(np.nan_to_num(change)), 1.0)
            for part in (0.0, jump)
        )
        worst = float(np.minimum(missing, smooth).max())
        if worst <= tolerance:
            _warn_of_jumps(float(missing.max()), tolerance)
            return total
        if pieces == _MOST_PIECES:
            warnings.warn(
                f"Scores add up to the difference of the outputs but for {worst:.1e} "
                f"of it, more than tolerance={tolerance:g}, with {steps * pieces} "
                "points. Raise `steps`, or read `residual` of each explanation.",
                stacklevel=2,
            )
            return total
        estimate = pieces * 2 ** int(np.ceil(np.log2(1.5 * worst / tolerance)))
        pieces = min(max(estimate, 2 * pieces), _MOST_PIECES)


def _warn_of_jumps(missing: float, tolerance: float) -> None:
    """Warn of scores that do not add up although the rest of the path is exact."""
    if missing > tolerance:
        warnings.warn(
            f"Scores add up to the difference of the outputs but for {missing:.1e} of "
            f"it, more than tolerance={tolerance:g}: the output jumps where the path "
            "leaves the graph without edges, as means and maxima over edges do. More "
            "`steps` cannot help. Read `residual` of each explanation, or use "
            "gnn_explainer.",
            stacklevel=2,
        )


def _points(steps: int, pieces: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield places and weights of a sum over each piece of the path, float32 [steps].

    Places are the cubes of Gauss-Legendre nodes: normalisation and softmax change most
    where inputs are small.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    for piece in range(pieces):
        place = (0.5 * (nodes + 1) + piece) / pieces
        weight = 3 * place**2 * 0.5 * weights / pieces
        points = {"place": place**3, "weight": weight}
        yield {name: values.astype(np.float32) for name, values in points.items()}
