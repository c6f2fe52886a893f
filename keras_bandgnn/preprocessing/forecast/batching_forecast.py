"""`BatchingForecast`: what training steps will cost under each batching algorithm."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from keras_bandgnn.assembly.assembler import Supergraph
from keras_bandgnn.checks import one_of, positive_int, strings
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.preprocessing.batching.batcher import PER_GRAPH, Batcher
from keras_bandgnn.preprocessing.batching.dynamic_batcher import DynamicBatcher
from keras_bandgnn.preprocessing.batching.static_batcher import StaticBatcher
from keras_bandgnn.preprocessing.forecast.algorithms import (
    ALGORITHMS,
    AlgorithmForecast,
    make_batcher,
)
from keras_bandgnn.preprocessing.forecast.step_timer import StepTimer
from keras_bandgnn.preprocessing.loading.epochs import Epochs
from keras_bandgnn.preprocessing.loading.graph_loader import GraphLoader
from keras_bandgnn.progress import progress_bar


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


# `ShapeCounts`: which padded shapes a training run meets, from sizes alone.


# Epochs that suffice where every supergraph of a budget has one shape.
_FIXED_EPOCHS = 2


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
    >>> batcher = StaticBatcher(2, padding="64")
    >>> batcher.adapt(sizes)
    >>> found = count_shapes(sizes, batcher, steps=8)
    >>> sorted(zip([e.budget["node"] for e in found.examples], found.counts.tolist()))
    [(64, 4), (128, 4)]
    """
    epochs = Epochs(sizes, batcher, seed, per_step=1)
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


_ROUNDS = 7
_FEWEST_SHAPES = 3
# Shapes of an algorithm that are timed, by their place among its steps.
_QUANTILES = (0.5, 0.1, 0.9)
_MORE_QUANTILES = (0.3, 0.7)
_BAD_RESIDUAL = 0.1
# Steps of a sample of the data: enough to hide how an epoch begins.
_FEWEST_STEPS, _SAMPLE_STEPS = 4, 64
_EPOCH_SECONDS = 0.7
_READ = 16
_VISIT_SECONDS = 0.15
_LEAST_SECONDS = 2.0
_MOST_SHOWN = 10.0


def _key(shape: Mapping[str, int]) -> tuple:
    return tuple(sorted(shape.items()))


def forecast(graphs, model: keras.Model, **options) -> "BatchingForecast":
    """Count the shapes of a training run, time a few steps, and return the forecast.

    It trains a copy of the model for `seconds`; the model itself stays as it is.

    Args:
        graphs: A list of `Graph`, a `FlatGraphs` or an opened store.
        model: A compiled Keras model over the batch contract.
        **options: Other arguments of `BatchingForecast`.
    """
    return BatchingForecast(graphs, model, **options).measure()


class BatchingForecast:
    """Shapes from sizes alone, milliseconds from a few measured steps.

    Every shape of the planned steps is known exactly, because compositions follow
    from the sizes. `measure` times a few shapes that occur; other shapes follow from
    them, see `TimeModel`. What the loader adds to a step is measured on two loaders,
    one whose shapes never change and one whose shapes do. Use `forecast` to do it all
    at once; the first figure in milliseconds that is asked for calls `measure`, too.

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
        packing: str = "best_fit",
        plan="auto",
        seed: int = 0,
        seconds: float = 45.0,
        verbose: bool = True,
    ):
        self.steps = positive_int("steps", steps)
        one_of("packing", packing, ("sequential", "best_fit"))
        algorithms = strings("algorithms", algorithms)
        if not algorithms:
            raise ValueError(
                f"Expected `algorithms` to be a list of some of {ALGORITHMS}. "
                f"Received: algorithms={algorithms!r}."
            )
        self.batchers = {
            name: make_batcher(name, batch_size, packing) for name in algorithms
        }
        self.seconds, self.verbose = seconds, verbose
        self.timer = StepTimer(model)
        self._time_model: TimeModel | None = None
        self._loader = self._sized(graphs, plan, batch_size, seed)
        self.sizes = self._loader.sizes
        self._batch_size, self._seed = batch_size, seed
        self.counts: dict[str, ShapeCounts] = {}
        for name, batcher in self.batchers.items():
            batcher.adapt(self.sizes)
            self.counts[name] = count_shapes(self.sizes, batcher, self.steps, seed)

    def measure(self) -> "BatchingForecast":
        """Train copies of the model on a few shapes and time the steps.

        Returns:
            The forecast itself.
        """
        stages = 3 * len(self.batchers) + _ROUNDS
        with progress_bar("Forecasting", stages, self.verbose) as advance:
            self._measure(advance)
        return self

    def _sized(self, graphs, plan, batch_size: int, seed: int) -> GraphLoader:
        """Return a loader of the graphs as the model takes them, with their sizes."""
        if isinstance(graphs, GraphLoader):
            raise ValueError(
                "Expected graphs: a list of Graph, a FlatGraphs or an opened store. "
                "Received: a GraphLoader. Pass the graphs that it was made of."
            )
        model = self.timer.model
        preprocessor = getattr(model, "preprocessor", None)
        if preprocessor is not None:
            graphs = preprocessor.transform(graphs)
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

    def _take(self, ids: np.ndarray) -> FlatGraphs:
        """Copy graphs, in this order; ids may repeat."""
        order = np.argsort(ids, kind="stable")
        pieces = []
        for start, part in zip(self._loader.starts, self._loader.parts, strict=False):
            inside = ids[order] - start
            inside = inside[(inside >= 0) & (inside < len(part))]
            if inside.size:
                pieces.append(part.take(inside))
        flat = pieces[0] if len(pieces) == 1 else FlatGraphs.concatenate(pieces)
        return flat.take(np.argsort(order))

    def _sample_loader(self, sample, batcher, **options) -> GraphLoader:
        return GraphLoader(
            sample,
            batcher,
            self._loader.plan,
            num_edge_types=self._loader.num_edge_types,
            **options,
        )

    def _measure(self, advance) -> None:
        batch_size, seed, seconds = self._batch_size, self._seed, self.seconds
        began = time.monotonic()
        timed = self._time_shapes(_QUANTILES, began + 0.55 * seconds)
        advance(3 * len(self.batchers))
        # Measuring for longer than training would take is pointless.
        step_s = self.timer.rough_s
        left = min(began + seconds - time.monotonic(), self.steps * step_s)
        deadline = time.monotonic() + max(left, _LEAST_SECONDS)
        visit_s = max(left, _LEAST_SECONDS) / (2 * _ROUNDS * len(timed))
        visit_s = min(visit_s, _VISIT_SECONDS)
        epoch_s = max(_EPOCH_SECONDS, 2 * self.timer.epoch_s)
        steps = int(np.clip(epoch_s / step_s, _FEWEST_STEPS, _SAMPLE_STEPS))
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, int(self._loader.starts[-1]), steps * (batch_size - 1))
        sample = self._take(ids)
        assembling = {
            name: self._sample_loader(sample, batcher, prefetch=0)
            for name, batcher in self.batchers.items()
        }
        whole = DynamicBatcher(batch_size, dict(timed[0]), oversize="drop")
        pipelines = {True: (self._sample_loader(sample, whole), {timed[0]: 1})}
        pipelines |= self._varying_pipeline(steps, rng)
        for loader, _ in pipelines.values():
            self.timer.fit(loader)
        together = {fixed: [] for fixed in pipelines}
        assembly = {name: [] for name in assembling}
        for number in range(_ROUNDS):
            if number > 1 and time.monotonic() > deadline:
                break
            for key in timed:
                self.timer.visit(key, visit_s)
            for fixed, (loader, _) in pipelines.items():
                together[fixed].append(self.timer.fit_ms(loader))
            for name, loader in assembling.items():
                for index in range(min(_READ, len(loader))):
                    loader[index]
                assembly[name] += loader.stats.assembly_ms
                loader.stats.assembly_ms = []
            advance(1)
        self._fit()
        if self._time_model.residual > _BAD_RESIDUAL and time.monotonic() < deadline:
            for key in self._time_shapes(_MORE_QUANTILES, deadline):
                for _ in range(_ROUNDS):
                    self.timer.visit(key, visit_s)
            self._fit()
        self.batching_ms = {
            name: float(np.median(values)) + self.counts[name].compose_ms
            for name, values in assembly.items()
        }
        batching = float(np.mean([np.median(values) for values in assembly.values()]))
        # Share of the batching that a step shows, for fixed shapes and for others.
        self.shown = {}
        for fixed, (_, keys) in pipelines.items():
            times = [self.timer.ms(key) for key in keys]
            update = np.average(times, weights=list(keys.values()))
            added = float(np.quantile(together[fixed], 0.25)) - update
            self.shown[fixed] = float(np.clip(added / batching, 0.0, _MOST_SHOWN))
        self.shown.setdefault(False, self.shown[True])

    def _varying_pipeline(self, steps: int, rng: np.random.Generator) -> dict:
        """Return a loader of changing, compiled shapes, and how often each occurs."""
        for name, batcher in self.batchers.items():
            # Others than whole supergraphs would shift those after them.
            examples = [
                example
                for example in self.counts[name].examples
                if _key(example.budget) in self.timer.visits
                and len(example.members) == batcher.batch_size - 1
            ]
            if batcher.fixed_shapes or len(examples) < 2:
                continue
            turns = rng.permutation(np.arange(steps) % len(examples))
            ids = np.concatenate([examples[turn].members for turn in turns])
            loader = self._sample_loader(self._take(ids), batcher, shuffle=False)
            counts = np.bincount(turns).tolist()
            keys = [_key(example.budget) for example in examples]
            return {False: (loader, dict(zip(keys, counts, strict=True)))}
        return {}

    def _time_shapes(self, quantiles: Sequence[float], deadline: float) -> list[tuple]:
        """Add shapes at these quantiles of each algorithm to the timer."""
        candidates = [counts.at(quantiles) for counts in self.counts.values()]
        turns = max(map(len, candidates))
        examples = [
            w[turn] for turn in range(turns) for w in candidates if turn < len(w)
        ]
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
        """Fit the times of other shapes to those of the measured ones."""
        keys = list(self.timer.visits)
        times = [self.timer.ms(key) for key in keys]
        self._time_model = TimeModel([dict(key) for key in keys], times)

    @property
    def residual(self) -> float:
        """Largest relative error of the fitted times at measured shapes."""
        return self._measured().residual

    def _measured(self) -> TimeModel:
        if self._time_model is None:
            self.measure()
        return self._time_model

    def update_ms(self, shape: Mapping[str, int]) -> float:
        """Return the milliseconds of a step on a padded shape, without batching."""
        model = self._measured()
        if self.timer.visits.get(_key(shape)):
            return self.timer.ms(_key(shape))
        return model.ms(shape)

    def rows(self, steps: int | None = None) -> list[AlgorithmForecast]:
        """Return the forecast of each algorithm.

        Args:
            steps: Steps of training, up to the planned ones (default).
        """
        steps = self.steps if steps is None else steps
        self._measured()
        compile_s = self.timer.compile_s()
        rows = []
        for name, counts in self.counts.items():
            shapes = counts.after(steps)
            times = [self.update_ms(example.budget) for example in counts.examples]
            update = float(np.average(times, weights=counts.counts))
            batching = self.batching_ms[name]
            shown = self.shown[self.batchers[name].fixed_shapes]
            steady = max(update + shown * batching, batching)
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
