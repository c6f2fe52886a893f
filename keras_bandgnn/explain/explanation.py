"""`Explanation`: scores of the nodes and edges behind a prediction for one graph."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bandgnn.checks import fraction, one_of
from keras_bandgnn.explain.drawing import draw, source_text
from keras_bandgnn.graph import Graph

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

LEVELS = ("edge", "node")


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
    """Scores of the nodes, features and edges of a graph for one of its predictions.

    Nodes and edges are the caller's: preprocessing that reorders nodes, sorts edges or
    joins parallel ones does not show. What preprocessing drops has the score 0.

    Attributes:
        method: Name of the function that made it.
        graph: The `Graph` that was explained.
        source: What the caller passed, such as a `ProgramGraph`; mostly `graph` itself.
        index: The node whose prediction is explained; None for predictions of graphs.
        target: The class, candidate or number that is explained: a column of the
            output.
        prediction: float32 [C], the output of the model, logits for classes.
        output: `prediction[target]`.
        node: float32 [N], scores of nodes, the sums of their features' scores.
        node_features: Scores by feature: float32 [N, ...] for numbers, as the feature;
            [N] for ids, which are explained as a whole.
        edge: float32 [E], scores of edges; zeros where edges are not explained.
        senders: int32 [E], those of the graph; of the model's edges, if the caller's
            graph has none (such as molecules whose edges follow from positions).
        receivers: int32 [E].
        rest: Sum of the scores of edges that preprocessing added to the graph's own.
        baseline: Output of the model for the inputs that integrated gradients start
            from; None for other methods.
    """

    method: str
    graph: Graph
    source: Any
    index: int | None
    target: int
    prediction: np.ndarray
    output: float
    node: np.ndarray
    node_features: dict[str, np.ndarray]
    edge: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    rest: float = 0.0
    baseline: float | None = None

    @property
    def residual(self) -> float | None:
        """Error of integrated gradients of `output - baseline`; None for others."""
        if self.baseline is None:
            return None
        total = float(self.node.sum()) + float(self.edge.sum()) + self.rest
        return self.output - self.baseline - total

    def scores(self, level: str = "edge") -> np.ndarray:
        """Return `edge` or `node`.

        Args:
            level: `"edge"` or `"node"`.
        """
        return getattr(self, one_of("level", level, LEVELS))

    def selection(self, share: float = 0.2, level: str = "edge") -> np.ndarray:
        """Return which edges or nodes are the most important.

        Scores count by their size; edges or nodes without any influence are not
        selected.

        Args:
            share: Share of the edges or nodes to select, rounded up.
            level: `"edge"` or `"node"`.

        Returns:
            bool [E] or [N].
        """
        fraction("share", share)
        size = np.abs(self.scores(level))
        out = np.zeros(len(size), bool)
        # A stable sort: equal scores are taken in the caller's order.
        out[np.argsort(-size, kind="stable")[: int(np.ceil(share * len(size)))]] = True
        return out & (size > 0)

    def plot(
        self, kind: str = "auto", share: float | None = None
    ) -> matplotlib.figure.Figure:
        """Draw the graph with the scores of its nodes and edges.

        Args:
            kind: `"molecule"`, drawn by RDKit, of the molecule that the caller passed
                or the SMILES string in `graph.info["smiles"]`; `"graph"`, laid out by
                networkx; `"auto"` for a molecule if its atoms and bonds are, in order,
                those of the graph.
            share: Share of the edges to draw, those with the largest scores; None for
                all. Molecules are always drawn whole.

        Returns:
            A `matplotlib.figure.Figure`; `savefig` writes it. Orange is for the
            prediction, blue against it.

        Raises:
            ImportError: If matplotlib, and RDKit or networkx, are not installed.
            ValueError: For a molecule whose atoms are not the nodes.
        """
        return draw(self, kind, share)

    def to_html(self) -> str:
        """Return the tokens of a program as HTML, shaded by the scores of their nodes.

        Raises:
            ValueError: If `source` is no `ProgramGraph`.
        """
        return source_text(self)

    def __repr__(self) -> str:
        where = "" if self.index is None else f", index={self.index}"
        return (
            f"Explanation({self.method!r}, nodes={len(self.node)}, "
            f"edges={len(self.edge)}{where}, target={self.target}, "
            f"output={self.output:.4g})"
        )
