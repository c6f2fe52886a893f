"""`BatchingForecast`: what training steps will cost under each batching algorithm."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

import keras
import numpy as np
from scipy.optimize import nnls

from keras_bandgnn.checks import one_of, positive_int
from keras_bandgnn.data.datasets.progress import progress_bar
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.preprocessing.batcher import PER_GRAPH, Batcher
from keras_bandgnn.preprocessing.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.graph_loader import GraphLoader
from keras_bandgnn.preprocessing.shape_counts import ShapeCounts, count_shapes
from keras_bandgnn.preprocessing.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.step_timer import StepTimer

ALGORITHMS = ("dynamic", "constant", "64", "power_of_two")
"""The algorithms of Speckhard et al. 2025."""

_ROUNDS = 5
_FEWEST_SHAPES = 3
# Shapes of an algorithm that are timed, by their place among its steps.
_QUANTILES = (0.5, 0.1, 0.9)
_MORE_QUANTILES = (0.3, 0.7)
_BAD_RESIDUAL = 0.1
# Steps in a sample of the data: enough to hide how an epoch begins.
_SAMPLE_STEPS = 64
_READ = 16


@dataclasses.dataclass(frozen=True)
class AlgorithmForecast:
    """What training under one algorithm will cost.

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


def make_batcher(algorithm: str, batch_size: int, packing: str) -> Batcher:
    """The batcher of an algorithm.

    Args:
        algorithm: One of `ALGORITHMS`.
        batch_size: Graphs per supergraph, the padding graph included.
        packing: Of the dynamic one, see `DynamicBatcher`.
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    if algorithm == "dynamic":
        return DynamicBatcher(batch_size, packing=packing)
    return StaticBatcher(batch_size, padding=algorithm)


def _key(shape: Mapping[str, int]) -> tuple:
    return tuple(sorted(shape.items()))


def _at_quantiles(found: ShapeCounts, quantiles: Sequence[float]) -> list[int]:
    """Positions of the shapes at these places among the steps, small to large."""
    sizes = np.array([[e.budget["node"], e.budget["edge"]] for e in found.examples])
    order = (sizes / sizes.mean(axis=0).clip(1)).sum(axis=1).argsort(kind="stable")
    share = found.counts[order].cumsum() / found.counts.sum()
    places = np.searchsorted(share, quantiles).clip(0, len(order) - 1)
    return list(dict.fromkeys(order[places].tolist()))


class BatchingForecast:
    """Shapes from sizes alone, milliseconds from a few measured steps.

    Every shape of the planned steps is known exactly, because compositions follow
    from the sizes. A step takes a + sum over resources r of b_r * size_r, with
    coefficients that are not negative, fitted to a few shapes that occur; a shape
    that was measured has its measured time.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs` or an opened store.
        model: A compiled Keras model over the batch contract.
        batch_size: Graphs per supergraph, the padding graph included.
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
        graphs,
        model: keras.Model,
        batch_size: int = 32,
        steps: int = 100_000,
        algorithms: Sequence[str] = ALGORITHMS,
        packing: str = "sequential",
        plan="auto",
        seed: int = 0,
        seconds: float = 45.0,
        verbose: bool = True,
    ):
        self.steps = positive_int("steps", steps)
        if isinstance(algorithms, str) or not algorithms:
            raise ValueError(
                f"Expected `algorithms` to be a list of some of {ALGORITHMS}. "
                f"Received: algorithms={algorithms!r}."
            )
        self.batchers = {
            name: make_batcher(name, batch_size, packing) for name in algorithms
        }
        self.timer = StepTimer(model)
        self._loader = self._sized(graphs, plan, batch_size, seed)
        self.sizes = self._loader.sizes
        stages = 4 * len(self.batchers) + _ROUNDS
        with progress_bar("Forecasting", stages, verbose) as advance:
            self.counts: dict[str, ShapeCounts] = {}
            for name, batcher in self.batchers.items():
                batcher.adapt(self.sizes)
                self.counts[name] = count_shapes(self.sizes, batcher, self.steps, seed)
                advance(1)
            self._measure(batch_size, seed, seconds, advance)

    def _sized(self, graphs, plan, batch_size: int, seed: int) -> GraphLoader:
        """A loader of the graphs as the model takes them; it knows their sizes."""
        if isinstance(graphs, GraphLoader):
            raise ValueError(
                "Expected graphs: a list of Graph, a FlatGraphs or an opened store. "
                "Received: a GraphLoader. Pass the graphs that it was made of."
            )
        model = self.timer.model
        preprocessor = getattr(model, "preprocessor", None)
        if preprocessor is not None:
            graphs = preprocessor.compile(graphs)
            plan = preprocessor.plan if plan == "auto" else plan
        backbone = getattr(model, "backbone", None)
        types = getattr(backbone, "num_edge_types", None)
        batcher = StaticBatcher(batch_size, padding="64")
        loader = GraphLoader(
            graphs, batcher, plan, seed=seed, num_edge_types=types, prefetch=0
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

    def _sample(self, batch_size: int, seed: int) -> FlatGraphs:
        """Graphs for some steps, drawn with replacement."""
        total = int(self._loader.starts[-1])
        rng = np.random.default_rng(seed)
        ids = np.sort(rng.integers(0, total, _SAMPLE_STEPS * (batch_size - 1)))
        pieces = []
        for start, part in zip(self._loader.starts, self._loader.parts, strict=False):
            inside = ids[(ids >= start) & (ids < start + len(part))] - start
            if inside.size:
                pieces.append(part.take(inside))
        flat = pieces[0] if len(pieces) == 1 else FlatGraphs.concatenate(pieces)
        return flat.take(rng.permutation(len(ids)))

    def _sample_loader(self, sample, batcher, **options) -> GraphLoader:
        return GraphLoader(
            sample,
            batcher,
            self._loader.plan,
            num_edge_types=self._loader.num_edge_types,
            **options,
        )

    def _measure(self, batch_size: int, seed: int, seconds: float, advance) -> None:
        deadline = time.monotonic() + seconds
        timed = self._time_shapes(_QUANTILES, deadline - 0.45 * seconds)
        advance(3 * len(self.batchers))
        sample = self._sample(batch_size, seed)
        assembling = {
            name: self._sample_loader(sample, batcher, prefetch=0)
            for name, batcher in self.batchers.items()
        }
        # The pipeline as it will run, on a shape that is compiled already.
        budget = dict(timed[0])
        whole = DynamicBatcher(batch_size, budget=budget, oversize="drop")
        pipeline = self._sample_loader(sample, whole)
        self.timer.fit(pipeline)
        together, assembly = [], {name: [] for name in assembling}
        for number in range(_ROUNDS):
            if number > 1 and time.monotonic() > deadline:
                break
            for key in timed:
                self.timer.visit(key)
            steps = len(pipeline)
            together.append(1e3 * self.timer.fit(pipeline) / steps)
            for name, loader in assembling.items():
                for index in range(min(_READ, len(loader))):
                    loader[index]
                assembly[name] += loader.stats.assembly_ms
                loader.stats.assembly_ms = []
            advance(1)
        self._fit()
        if self.residual > _BAD_RESIDUAL and time.monotonic() < deadline:
            for key in self._time_shapes(_MORE_QUANTILES, deadline):
                for _ in range(_ROUNDS):
                    self.timer.visit(key)
            self._fit()
        self.batching_ms = {
            name: float(np.median(values)) + self.counts[name].compose_ms
            for name, values in assembly.items()
        }
        added = float(np.median(together)) - self.timer.ms(timed[0])
        # The first shape is one of the first algorithm.
        batching = float(np.median(next(iter(assembly.values()))))
        self.shown = float(np.clip(added / batching, 0.0, 2.0))

    def _time_shapes(self, quantiles: Sequence[float], deadline: float) -> list[tuple]:
        """Lets the timer know shapes at these places of each algorithm."""
        wanted = [
            [found.examples[i] for i in _at_quantiles(found, quantiles)]
            for found in self.counts.values()
        ]
        turns = max(map(len, wanted))
        examples = [w[turn] for turn in range(turns) for w in wanted if turn < len(w)]
        added = []
        for example in examples:
            key = _key(example.budget)
            if key in self.timer.visits:
                continue
            few = len(self.timer.visits) < _FEWEST_SHAPES
            if not few and time.monotonic() > deadline:
                break
            batch = self._loader.build_as([example.members], example.budget)
            self.timer.add(key, batch)
            added.append(key)
        return added

    def _fit(self) -> None:
        """Fits milliseconds to sizes; errors count relative to the time itself."""
        keys = list(self.timer.visits)
        names = [n for n in self.sizes if n not in (*PER_GRAPH, "graph")]
        table = np.array([[dict(key)[name] for name in names] for key in keys], float)
        _, chosen = np.unique(table, axis=1, return_index=True)
        self._names = [names[i] for i in sorted(chosen)]
        scale = table[:, sorted(chosen)].max(axis=0).clip(1)
        rows = np.column_stack([np.ones(len(keys)), table[:, sorted(chosen)] / scale])
        times = np.array([self.timer.ms(key) for key in keys])
        weights, _ = nnls(rows / times[:, None], np.ones(len(keys)))
        self.residual = float(np.abs(rows @ weights / times - 1).max())
        self._constant, self._slopes = weights[0], weights[1:] / scale

    def update_ms(self, shape: Mapping[str, int]) -> float:
        """Milliseconds of a step on a padded shape, without batching."""
        if self.timer.visits.get(_key(shape)):
            return self.timer.ms(_key(shape))
        sizes = np.array([shape[name] for name in self._names], float)
        return float(self._constant + sizes @ self._slopes)

    def rows(self, steps: int | None = None) -> list[AlgorithmForecast]:
        """The forecast of each algorithm.

        Args:
            steps: Steps of training, up to the planned ones (default).
        """
        steps = self.steps if steps is None else steps
        compile_s = self.timer.compile_s()
        rows = []
        for name, found in self.counts.items():
            shapes = found.after(steps)
            times = [self.update_ms(example.budget) for example in found.examples]
            update = float(np.average(times, weights=found.counts))
            batching = self.batching_ms[name]
            steady = max(update + self.shown * batching, batching)
            compilations = self.timer.programs(shapes)
            step = steady + 1e3 * compilations * compile_s / steps
            rows.append(
                AlgorithmForecast(
                    algorithm=name,
                    shapes=shapes,
                    exact=found.exact,
                    compilations=compilations,
                    node_waste=found.waste("node"),
                    edge_waste=found.waste("edge"),
                    graphs_per_step=found.graphs_per_step,
                    batching_ms=batching,
                    update_ms=update,
                    steady_ms=steady,
                    compile_s=compile_s,
                    step_ms=step,
                    graph_us=1e3 * step / found.graphs_per_step,
                )
            )
        return rows
