"""`BatchingForecast`: the cost of training steps under each batching algorithm."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.checks import one_of, positive_int, refuse, strings
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.preprocessing.batching.batcher import PER_GRAPH, Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.forecast.step_timer import StepTimer
from keras_bandgnn.preprocessing.loading.graph_loader import GraphComposer, GraphLoader
from keras_bandgnn.preprocessing.loading.loader import Loader
from keras_bandgnn.progress import progress_bar

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Graphs, Model
    from keras_bandgnn.primitives.plan import Plan

ALGORITHMS = ("dynamic", "constant", "64", "power_of_two")
"""The algorithms of Speckhard et al. 2025."""
# Epochs that suffice where every supergraph of a budget has one shape.
_FIXED_EPOCHS = 2
_ROUNDS, _READ = 7, 16
_FEWEST_SHAPES = 3
# Shapes of an algorithm that are timed, by their place among its steps.
_QUANTILES = (0.5, 0.1, 0.9)
# Steps of a sample of the data: enough to hide how an epoch begins.
_FEWEST_STEPS, _SAMPLE_STEPS = 4, 64
_EPOCH_SECONDS, _VISIT_SECONDS, _LEAST_SECONDS = 0.7, 0.15, 2.0


@dataclasses.dataclass(frozen=True)
class AlgorithmForecast:
    """The cost of training under one algorithm.

    Attributes:
        algorithm: `"dynamic"`, `"constant"`, `"64"` or `"power_of_two"`.
        shapes: Distinct padded shapes over the planned steps.
        exact: Whether `shapes` is exact, rather than a lower bound.
        compilations: Programs that the backend compiles for them.
        node_waste: Share of the padded nodes that is padding.
        edge_waste: Share of the padded edges that is padding.
        graphs_per_step: Real graphs per step.
        batching_ms: Milliseconds of composing and assembling a batch, in another
            thread.
        update_ms: Milliseconds of the device's work in a step, without compilations.
        steady_ms: Milliseconds of a step without compilations: the update, and what
            batching adds to it.
        compile_s: Seconds of one compilation.
        step_ms: Milliseconds per planned step, compilations included.
        graph_us: Microseconds per real graph, compilations included.
    """

    algorithm: str
    shapes: int
    exact: bool
    compilations: int
    node_waste: float
    edge_waste: float
    graphs_per_step: float
    batching_ms: float
    update_ms: float
    steady_ms: float
    compile_s: float
    step_ms: float
    graph_us: float


class TimeModel:
    """Time as a constant plus a multiple of each size, none of them negative.

    Fitted by least squares to relative errors, so that small shapes count as much as
    large ones. Sizes that are the same in all shapes, such as those of two resources
    that always agree, count once.

    Args:
        shapes: Measured shapes, name of a resource -> padded size.
        times: Milliseconds of each.

    Attributes:
        residual: Largest relative error at the measured shapes.

    Example:
    >>> model = TimeModel([{"node": 64}, {"node": 128}], [2.0, 3.0])
    >>> round(model.ms({"node": 256}), 6)
    5.0
    """

    def __init__(self, shapes: Sequence[Mapping[str, int]], times: Sequence[float]):
        from scipy.optimize import nnls

        names = [name for name in shapes[0] if name not in (*PER_GRAPH, "graph")]
        # Nodes and edges first: of equal columns the first is kept.
        names.sort(key=lambda name: (name != "node", name != "edge", name))
        table = np.array([[shape[name] for name in names] for shape in shapes], float)
        _, first = np.unique(table, axis=1, return_index=True)
        self._names = [names[i] for i in sorted(first)]
        table = table[:, sorted(first)]
        scale = table.max(axis=0).clip(1)
        rows = np.column_stack([np.ones(len(table)), table / scale])
        times = np.asarray(times, float)
        weights, _ = nnls(rows / times[:, None], np.ones(len(times)))
        self.residual = float(np.abs(rows @ weights / times - 1).max())
        self._constant, self._slopes = weights[0], weights[1:] / scale

    def ms(self, shape: Mapping[str, int]) -> float:
        """Return the milliseconds of a step on a padded shape."""
        sizes = np.array([shape[name] for name in self._names], float)
        return float(self._constant + sizes @ self._slopes)


@dataclasses.dataclass(frozen=True)
class ShapeCounts:
    """The distinct padded shapes of a training run.

    Attributes:
        steps: Number of steps examined.
        examples: A supergraph of each shape; its `budget` is the shape.
        counts: int [k], steps with each shape.
        first: int [k], the step, from 0, at which each shape first occurs.
        used: Resource -> what the real graphs of all steps need.
        graphs: Real graphs in all steps.
        exact: Whether these are all shapes of the steps that were asked for.
        compose_ms: Milliseconds per step that composing the epochs took.
    """

    steps: int
    examples: tuple[Supergraph, ...]
    counts: np.ndarray
    first: np.ndarray
    used: dict[str, int]
    graphs: int
    exact: bool
    compose_ms: float

    @property
    def graphs_per_step(self) -> float:
        """Real graphs per step, on average."""
        return self.graphs / self.steps

    def waste(self, name: str) -> float:
        """Return the share of a padded resource, such as "node", that is padding."""
        padded = sum(
            int(count) * example.budget[name]
            for count, example in zip(self.counts, self.examples, strict=True)
        )
        return 1 - self.used[name] / padded

    def after(self, steps: int) -> int:
        """Return the distinct shapes among the first `steps` steps."""
        return int((self.first < steps).sum())

    def at(self, quantiles: Sequence[float]) -> list[Supergraph]:
        """Return supergraphs at quantiles of the steps, sorted by shape."""
        sizes = np.array([[e.budget["node"], e.budget["edge"]] for e in self.examples])
        order = (sizes / sizes.mean(axis=0).clip(1)).sum(axis=1).argsort(kind="stable")
        share = self.counts[order].cumsum() / self.counts.sum()
        places = np.searchsorted(share, quantiles).clip(0, len(order) - 1)
        return [self.examples[i] for i in dict.fromkeys(order[places].tolist())]


def count_shapes(
    sizes: Mapping[str, np.ndarray],
    batcher: Batcher,
    steps: int,
    seed: int = 0,
    limit: int = 1_000_000,
) -> ShapeCounts:
    """Compose the epochs of a training run and count their shapes.

    The compositions are those of a `GraphLoader` with one replica and this seed.

    Args:
        sizes: Resource -> int [n], what each graph needs.
        batcher: An adapted batcher.
        steps: Steps of the run.
        seed: Seed of the orders.
        limit: Largest number of steps to compose; beyond it the shapes are a lower
            bound, and `exact` is False. Batchers of fixed shapes need two epochs.

    Example:
    >>> from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
    >>> sizes = {"node": np.array([30, 30, 70, 70]), "edge": np.array([8, 8, 8, 8])}
    >>> batcher = StaticBatcher(1, padding="64")
    >>> batcher.adapt(sizes)
    >>> found = count_shapes(sizes, batcher, steps=8)
    >>> sorted(zip([e.budget["node"] for e in found.examples], found.counts.tolist()))
    [(64, 4), (128, 4)]
    """
    epochs = GraphComposer(sizes, batcher, seed, per_step=1)
    limit = min(steps, limit)
    if batcher.fixed_shapes:
        limit = min(limit, _FIXED_EPOCHS * epochs.length)
    shapes: dict[tuple, list] = {}
    used = {"node": 0, "edge": 0}
    done = epoch = graphs = 0
    seconds = 0.0
    while done < limit:
        began = time.perf_counter()
        composed = epochs.composition(epoch)
        seconds += time.perf_counter() - began
        supergraphs = composed[: limit - done]
        for step, supergraph in enumerate(supergraphs, start=done):
            shape = tuple(supergraph.budget.values())
            if shape in shapes:
                shapes[shape][1] += 1
            else:
                shapes[shape] = [supergraph, 1, step]
        members = np.concatenate([supergraph.members for supergraph in supergraphs])
        graphs += len(members)
        for name in used:
            used[name] += int(np.asarray(sizes[name])[members].sum())
        done += len(supergraphs)
        epoch += 1
    examples, counts, first = zip(*shapes.values(), strict=True)
    return ShapeCounts(
        steps=done,
        examples=examples,
        counts=np.array(counts),
        first=np.array(first),
        used=used,
        graphs=graphs,
        exact=batcher.fixed_shapes or done == steps,
        compose_ms=1e3 * seconds / (epoch * epochs.length),
    )


def _key(shape: Mapping[str, int]) -> tuple:
    return tuple(sorted(shape.items()))


class BatchingForecast:
    """Shapes from sizes alone, milliseconds from a few measured steps.

    Every shape of the planned steps is known exactly, because compositions follow
    from the sizes. `measure` times a few shapes that occur on a copy of the model;
    other shapes follow from them, see `TimeModel`. What the loader adds to a step is
    measured on a loader of one shape. The first figure in milliseconds that is asked
    for calls `measure`, too.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs` or an opened store.
        model: A compiled Keras model over the batch contract.
        batch_size: Graphs per supergraph.
        steps: Steps of the planned training.
        algorithms: Some of `ALGORITHMS`.
        packing: Of the dynamic algorithm.
        plan: A `Plan` or `"auto"`.
        seed: Seed of the orders, as in `fit`.
        seconds: Seconds that measuring may take; slow compilers may take more.
        verbose: Whether to draw a bar after two seconds.
    """

    def __init__(
        self,
        graphs: Graphs,
        model: Model,
        batch_size: int = 32,
        steps: int = 100_000,
        algorithms: Sequence[str] = ALGORITHMS,
        packing: str = "best_fit",
        plan: Plan | str | None = "auto",
        seed: int = 0,
        seconds: float = 45.0,
        verbose: bool = True,
    ):
        self.steps = positive_int("steps", steps)
        batch_size = positive_int("batch_size", batch_size)
        self.batchers = {}
        for name in strings("algorithms", algorithms) or ("",):
            one_of("algorithm", name, ALGORITHMS)
            if name == "dynamic":
                self.batchers[name] = DynamicBatcher(batch_size, packing=packing)
            else:
                self.batchers[name] = StaticBatcher(batch_size, name)
        self.seconds, self.seed, self.verbose = seconds, seed, verbose
        self.timer = StepTimer(model)
        self._time_model: TimeModel | None = None
        self._loader = self._make_loader(graphs, plan, batch_size)
        self.sizes = self._loader.sizes
        self.counts: dict[str, ShapeCounts] = {}
        for name, batcher in self.batchers.items():
            batcher.adapt(self.sizes)
            self.counts[name] = count_shapes(self.sizes, batcher, self.steps, seed)

    def _make_loader(self, graphs, plan, batch_size: int) -> Loader:
        """Return a loader of the graphs as the model takes them."""
        if isinstance(graphs, Loader):
            expected = "graphs, in a list, a FlatGraphs or an opened store"
            refuse("graphs", expected, graphs, "Pass the graphs that it was made of.")
        model = self.timer.model
        preprocessor = getattr(model, "preprocessor", None)
        if preprocessor is not None:
            graphs = preprocessor.transform(graphs)
            plan = preprocessor.plan if plan == "auto" else plan
        backbone = getattr(model, "backbone", None)
        options = {"num_edge_types": getattr(backbone, "num_edge_types", None)}
        batcher = StaticBatcher(batch_size, padding="64")
        loader = GraphLoader(
            graphs, batcher, plan, seed=self.seed, prefetch=0, **options
        )
        if any(part.label is None for part in loader.parts):
            raise ValueError(
                "Expected graphs with labels, because training steps are timed. "
                "Received: graphs with label=None."
            )
        if hasattr(model, "check_labels"):
            model.loader(loader)
            model.check_labels(loader)
            model.adapt(loader)
        return loader

    def measure(self) -> BatchingForecast:
        """Train copies of the model on a few shapes, time the steps, return itself."""
        stages = len(self.batchers) + _ROUNDS
        with progress_bar("Forecasting", stages, self.verbose) as advance:
            self._measure(advance)
        return self

    def _measure(self, advance) -> None:
        began = time.monotonic()
        self._time_shapes(began + 0.55 * self.seconds)
        advance(len(self.batchers))
        timer, timed = self.timer, list(self.timer.visits)
        # Measuring for longer than training would take is pointless.
        budget_s = min(
            began + self.seconds - time.monotonic(), self.steps * timer.rough_s
        )
        budget_s = max(budget_s, _LEAST_SECONDS)
        deadline = time.monotonic() + budget_s
        visit_s = min(budget_s / (2 * _ROUNDS * len(timed)), _VISIT_SECONDS)
        epoch_s = max(_EPOCH_SECONDS, 2 * timer.epoch_s)
        steps = int(np.clip(epoch_s / timer.rough_s, _FEWEST_STEPS, _SAMPLE_STEPS))
        whole, *assembling = self._sample_loaders(steps, dict(timed[0]))
        timer.fit(whole)
        together, assembly = [], {name: [] for name in self.batchers}
        for number in range(_ROUNDS):
            if number > 1 and time.monotonic() > deadline:
                break
            for key in timed:
                timer.visit(key, visit_s)
            together.append(timer.fit_ms(whole))
            for name, loader in zip(self.batchers, assembling, strict=True):
                for index in range(min(_READ, len(loader))):
                    start = time.perf_counter()
                    loader[index]
                    assembly[name].append(1e3 * (time.perf_counter() - start))
            advance(1)
        times = [timer.ms(key) for key in timed]
        self._time_model = TimeModel([dict(key) for key in timed], times)
        usual = {name: float(np.median(values)) for name, values in assembly.items()}
        self.batching_ms = {
            name: value + self.counts[name].compose_ms for name, value in usual.items()
        }
        # Share of the batching that a step shows, though another thread does it.
        added = float(np.quantile(together, 0.25)) - timer.ms(timed[0])
        batching = float(np.mean(list(usual.values())))
        self.shown = float(np.clip(added / batching, 0.0, 10.0))

    def _sample_loaders(self, steps: int, budget: Mapping[str, int]) -> list:
        """Return loaders of a sample: one of a single shape, and one per algorithm."""
        loader, first = self._loader, next(iter(self.batchers.values()))
        number = steps * first.graphs
        rng = np.random.default_rng(self.seed)
        ids = np.sort(rng.integers(0, int(loader.starts[-1]), number))
        pieces = []
        for start, part in zip(loader.starts, loader.parts, strict=False):
            inside = ids[(ids >= start) & (ids < start + len(part))] - start
            pieces += [part.take(inside)] if inside.size else []
        sample = FlatGraphs.concatenate(pieces).take(rng.permutation(number))
        types = {"num_edge_types": loader.num_edge_types}
        whole = DynamicBatcher(first.graphs, budget, oversize="drop")
        return [
            GraphLoader(sample, whole, loader.plan, **types),
            *(
                GraphLoader(sample, batcher, loader.plan, prefetch=0, **types)
                for batcher in self.batchers.values()
            ),
        ]

    def _time_shapes(self, deadline: float) -> None:
        """Add shapes at some quantiles of each algorithm to the timer."""
        candidates = [counts.at(_QUANTILES) for counts in self.counts.values()]
        turns = range(max(map(len, candidates)))
        for example in (c[turn] for turn in turns for c in candidates if turn < len(c)):
            key, visits = _key(example.budget), self.timer.visits
            if len(visits) >= _FEWEST_SHAPES and time.monotonic() > deadline:
                break
            if key not in visits:
                batch = self._loader.build_as([example.members], example.budget)
                self.timer.add(key, batch)

    @property
    def residual(self) -> float:
        """Largest relative error of the fitted times at measured shapes."""
        return self._fitted().residual

    def _fitted(self) -> TimeModel:
        if self._time_model is None:
            self.measure()
        return self._time_model

    def update_ms(self, shape: Mapping[str, int]) -> float:
        """Return the milliseconds of a step on a padded shape, without batching."""
        model, key = self._fitted(), _key(shape)
        return self.timer.ms(key) if self.timer.visits.get(key) else model.ms(shape)

    def rows(self, steps: int | None = None) -> list[AlgorithmForecast]:
        """Return the forecast of each algorithm.

        Args:
            steps: Steps of training, up to the planned ones (default).
        """
        steps = self.steps if steps is None else steps
        self._fitted()
        compile_s = self.timer.compile_s()
        rows = []
        for name, counts in self.counts.items():
            shapes = counts.after(steps)
            times = [self.update_ms(example.budget) for example in counts.examples]
            update = float(np.average(times, weights=counts.counts))
            batching = self.batching_ms[name]
            steady = max(update + self.shown * batching, batching)
            compilations = self.timer.programs(shapes)
            step = steady + 1e3 * compilations * compile_s / steps
            rows.append(
                AlgorithmForecast(
                    algorithm=name,
                    shapes=shapes,
                    exact=counts.exact,
                    compilations=compilations,
                    node_waste=counts.waste("node"),
                    edge_waste=counts.waste("edge"),
                    graphs_per_step=counts.graphs_per_step,
                    batching_ms=batching,
                    update_ms=update,
                    steady_ms=steady,
                    compile_s=compile_s,
                    step_ms=step,
                    graph_us=1e3 * step / counts.graphs_per_step,
                )
            )
        return rows
