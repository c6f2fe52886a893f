"""`choose_batcher`: the batching algorithm that will be fastest, before training."""

import dataclasses
from collections.abc import Sequence

import keras

from keras_bandgnn.checks import boolean, instance, one_of, seed_number
from keras_bandgnn.preprocessing.batching.batcher import Batcher
from keras_bandgnn.preprocessing.forecast.algorithms import (
    ALGORITHMS,
    AlgorithmForecast,
)
from keras_bandgnn.preprocessing.forecast.batching_forecast import forecast
from keras_bandgnn.primitives.plan import Plan

# Forecasts this close are equal; the one with fewer compilations is chosen.
_EQUAL = 0.02
# Above this scatter the explanation says that the machine was busy.
_BUSY = 0.25
_COLUMNS = (
    "algorithm",
    "shapes",
    "compiled",
    "waste nodes",
    "edges",
    "graphs/step",
    "batching ms",
    "update ms",
    "steady ms",
    "compile s",
    "ms/step",
    "us/graph",
)
_CRITERIA = {"step": "step_ms", "graph": "graph_us"}


def _cells(row: AlgorithmForecast) -> list[str]:
    """Return the figures of an algorithm as text, one per column of the table."""
    return [
        row.algorithm,
        f"{row.shapes}" if row.exact else f">={row.shapes}",
        f"{row.compilations}" if row.exact else f">={row.compilations}",
        f"{100 * row.node_waste:.1f} %",
        f"{100 * row.edge_waste:.1f} %",
        f"{row.graphs_per_step:.1f}",
        f"{row.batching_ms:.2f}",
        f"{row.update_ms:.2f}",
        f"{row.steady_ms:.2f}",
        f"{row.compile_s:.2f}",
        f"{row.step_ms:.2f}",
        f"{row.graph_us:.1f}",
    ]


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
        scatter: How far the slower measurements of a shape are above the quick ones,
            relatively. Much above 0.1 the machine had other work.
    """

    batcher: Batcher
    algorithm: str
    table: tuple[AlgorithmForecast, ...]
    criterion: str
    steps: int
    residual: float
    scatter: float

    def __getitem__(self, algorithm: str) -> AlgorithmForecast:
        """Return the forecast of an algorithm."""
        names = tuple(row.algorithm for row in self.table)
        return self.table[names.index(one_of("algorithm", algorithm, names))]

    def summary(self) -> str:
        """Return the table as text, with a sentence that explains the choice."""
        lines = [list(_COLUMNS), *(_cells(row) for row in self.table)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = []
        for line in lines:
            first, *rest = (
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            text.append("  ".join([first, *rest]).rstrip())
        return "\n".join([*text, self.explanation()])

    def explanation(self) -> str:
        """Return the choice in a few sentences."""
        own = self[self.algorithm]
        value, unit = f"{own.step_ms:.2f} ms", "step"
        if self.criterion == "graph":
            value, unit = f"{own.graph_us:.1f} us", "graph"
        parts = [
            f"{own.algorithm} is chosen for {self.steps:,} steps: {value} per {unit}"
        ]
        others = [row for row in self.table if row is not own]
        busy = (
            f" Times scatter by {100 * self.scatter:.0f} %: the machine had other "
            "work. Measure again when it is idle."
            if self.scatter > _BUSY
            else ""
        )
        if not others:
            return f"{parts[0]}.{busy}"
        name = _CRITERIA[self.criterion]
        next_best = min(others, key=lambda row: getattr(row, name))
        ratio = getattr(next_best, name) / getattr(own, name)
        if ratio <= 1 + _EQUAL:
            parts[0] += (
                f", within {100 * _EQUAL:.0f} % of {next_best.algorithm}; "
                "fewer compilations decide."
                if next_best.compilations > own.compilations
                else f", within {100 * _EQUAL:.0f} % of {next_best.algorithm}."
            )
        else:
            parts[0] += f"; {next_best.algorithm} would take {ratio:.2f} times as long."
        for row in (own, next_best):
            share = row.compilations * row.compile_s * 1e3 / self.steps / row.step_ms
            if share > 0.05:
                parts.append(
                    f"{row.algorithm} spends {100 * share:.0f} % of its time on "
                    f"{row.compilations} compilation{'s' * (row.compilations != 1)}."
                )
        crossing = self._crossing(own, next_best)
        if crossing:
            parts.append(crossing)
        return " ".join(parts) + busy

    def _crossing(self, own: AlgorithmForecast, other: AlgorithmForecast) -> str:
        """Return where another number of steps would turn the choice around."""
        gain = own.steady_ms - other.steady_ms
        extra = 1e3 * (
            other.compilations * other.compile_s - own.compilations * own.compile_s
        )
        if self.criterion == "graph" or not gain or extra / gain <= 0:
            return ""
        steps = extra / gain
        side = "more" if steps > self.steps else "fewer"
        steps = float(f"{steps:.2g}")
        return f"With {side} than about {steps:,.0f} steps {other.algorithm} is faster."


def choose_batcher(
    graphs,
    model: keras.Model,
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

    The forecast is for one device and for `fit` with this `seed`.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs` or an opened store, with labels. The
            layers of a task's preprocessor are applied to them.
        model: A compiled task, or any compiled Keras model over the batch contract.
        batch_size: Graphs per supergraph, the padding graph included.
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
    instance("model", model, keras.Model, "a keras.Model, compiled")
    seed_number("seed", seed)
    boolean("verbose", verbose)
    if not isinstance(plan, str) or plan != "auto":
        instance("plan", plan, Plan, "'auto' or a keras_bandgnn.primitives.Plan")
    batching = forecast(
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
    chosen = fastest(rows, criterion).algorithm
    return BatcherChoice(
        batcher=batching.batchers[chosen],
        algorithm=chosen,
        table=rows,
        criterion=criterion,
        steps=batching.steps,
        residual=batching.residual,
        scatter=batching.timer.scatter,
    )
