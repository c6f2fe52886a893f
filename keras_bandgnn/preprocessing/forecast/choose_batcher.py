"""`choose_batcher`: the batching algorithm that will be fastest, before training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_bandgnn.checks import one_of, seed_number
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.forecast.batching_forecast import (
    ALGORITHMS,
    AlgorithmForecast,
    BatchingForecast,
)
from keras_bandgnn.primitives.plan import Plan

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Graphs, Model

# Forecasts this close are equal; the one with fewer compilations is chosen.
_EQUAL = 0.02
# Column of the table -> figure of an `AlgorithmForecast`.
_COLUMNS = {
    "algorithm": "{row.algorithm}",
    "shapes": "{least}{row.shapes}",
    "compiled": "{least}{row.compilations}",
    "waste nodes": "{row.node_waste:.1%}",
    "edges": "{row.edge_waste:.1%}",
    "graphs/step": "{row.graphs_per_step:.1f}",
    "batching ms": "{row.batching_ms:.2f}",
    "update ms": "{row.update_ms:.2f}",
    "steady ms": "{row.steady_ms:.2f}",
    "compile s": "{row.compile_s:.2f}",
    "ms/step": "{row.step_ms:.2f}",
    "us/graph": "{row.graph_us:.1f}",
}
_CRITERIA = {"step": "step_ms", "graph": "graph_us"}


def fastest(rows: Sequence[AlgorithmForecast], criterion: str) -> AlgorithmForecast:
    """Return the row to choose: the fastest, or one as fast that compiles less.

    Args:
        rows: Forecasts.
        criterion: `"step"` or `"graph"`.
    """
    name = _CRITERIA[one_of("criterion", criterion, tuple(_CRITERIA))]
    best = min(getattr(row, name) for row in rows)
    equal = [row for row in rows if getattr(row, name) <= (1 + _EQUAL) * best]
    return min(equal, key=lambda row: (row.compilations, getattr(row, name)))


@dataclasses.dataclass(frozen=True)
class BatcherChoice:
    """A batcher and why it was chosen.

    Attributes:
        batcher: The batcher, adapted to the graphs and ready for a loader.
        algorithm: Name of its algorithm.
        table: A forecast per algorithm.
        criterion: `"step"` or `"graph"`.
        steps: Planned steps.
        residual: Largest relative error of the fitted times at measured shapes.
    """

    batcher: Batcher
    algorithm: str
    table: tuple[AlgorithmForecast, ...]
    criterion: str
    steps: int
    residual: float

    def __getitem__(self, algorithm: str) -> AlgorithmForecast:
        """Return the forecast of an algorithm."""
        names = tuple(row.algorithm for row in self.table)
        return self.table[names.index(one_of("algorithm", algorithm, names))]

    def summary(self) -> str:
        """Return the table as text, with a sentence that explains the choice."""
        lines = [list(_COLUMNS)]
        for row in self.table:
            least = "" if row.exact else ">="
            lines.append([c.format(row=row, least=least) for c in _COLUMNS.values()])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = []
        for first, *others in lines:
            cells = [first.ljust(widths[0])]
            cells += [c.rjust(w) for c, w in zip(others, widths[1:], strict=True)]
            text.append("  ".join(cells).rstrip())
        return "\n".join([*text, self.explanation()])

    def explanation(self) -> str:
        """Return the choice in a sentence."""
        row, name = self[self.algorithm], _CRITERIA[self.criterion]
        unit = {"step_ms": "ms", "graph_us": "us"}[name]
        cost = getattr(row, name)
        text = f"{row.algorithm} is chosen for {self.steps:,} steps: "
        text += f"{cost:.2f} {unit} per {self.criterion}"
        others = [other for other in self.table if other is not row]
        if others:
            second = min(others, key=lambda other: getattr(other, name))
            ratio = getattr(second, name) / cost
            text += f"; {second.algorithm} would take {ratio:.2f} times as long"
            if ratio <= 1 + _EQUAL and second.compilations > row.compilations:
                text += " and compile more often"
        return f"{text}."


def choose_batcher(
    graphs: Graphs,
    model: Model,
    batch_size: int = 32,
    steps: int = 100_000,
    algorithms: Sequence[str] = ALGORITHMS,
    packing: str = "best_fit",
    plan: Plan | str = "auto",
    criterion: str = "step",
    seed: int = 0,
    verbose: bool = True,
) -> BatcherChoice:
    """Forecast which batching algorithm trains fastest, and return its batcher.

    What is padded and how often a model compiles follows exactly from the sizes of
    the graphs. What a step costs is measured on a copy of the model, for a few shapes
    that occur. Nothing is trained and nothing that is passed in changes. It takes
    less than a minute, unless compiling takes long.

    The forecast is for one device and for `fit` with this `seed`. Experimental: it may
    change in any release.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs` or an opened store, with labels. The
            layers of a task's preprocessor are applied to them.
        model: A compiled task, or any compiled Keras model over the batch contract.
        batch_size: Graphs per supergraph.
        steps: Steps of the planned training. Compilations count the less the more
            there are.
        algorithms: Those to compare: `"dynamic"` (`DynamicBatcher`), `"constant"`,
            `"64"` and `"power_of_two"` (`StaticBatcher`).
        packing: Of the dynamic algorithm, `"best_fit"` or `"sequential"` (the paper).
        plan: A `Plan`, or `"auto"`: that of the task's preprocessor, or the one that
            `GraphLoader` takes.
        criterion: `"step"` for the least time per step, as Speckhard et al. compare;
            `"graph"` for the least time per real graph, hence per epoch.
        seed: Seed of the orders.
        verbose: Whether to draw a progress bar after two seconds.

    Returns:
        A `BatcherChoice`; print its `summary()`.

    Raises:
        ValueError: If the graphs lack labels or do not fit the model, or the model is
            not compiled or cannot be copied.

    Reference:
        Speckhard et al. 2025, Section 9, which names this as future work.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(n, [0], [n - 1], node={"kind": [1] * n}, label=1.0)
    ...     for n in (3, 4, 5, 6) * 8
    ... ]
    >>> backbone = kb.models.GGNNBackbone(
    ...     {"kind": 2}, hidden_dim=4, num_steps=1, num_edge_types=1
    ... )
    >>> task = kb.models.GraphRegressor(backbone)
    >>> choice = choose_batcher(
    ...     graphs, task, batch_size=4, steps=100, algorithms=["dynamic", "constant"]
    ... )
    >>> choice["constant"].shapes
    1
    >>> loader = kb.preprocessing.GraphLoader(graphs, choice.batcher)
    """
    one_of("criterion", criterion, tuple(_CRITERIA))
    seed_number("seed", seed)
    batching = BatchingForecast(
        graphs,
        model,
        batch_size=batch_size,
        steps=steps,
        algorithms=algorithms,
        packing=packing,
        plan=plan,
        seed=seed,
        verbose=verbose,
    )
    rows = tuple(batching.rows())
    name = fastest(rows, criterion).algorithm
    return BatcherChoice(
        batcher=batching.batchers[name],
        algorithm=name,
        table=rows,
        criterion=criterion,
        steps=batching.steps,
        residual=batching.residual,
    )
