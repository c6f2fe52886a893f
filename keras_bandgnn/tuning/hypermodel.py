"""`GraphHyperModel`, the base of the hypermodels, and the `Objective` of a search."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from keras_bandgnn import models
from keras_bandgnn.checks import (
    boolean,
    number,
    one_of,
    optional,
    positive_int,
    positive_ints,
    positive_number,
    seed_number,
)
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.graph import Graph
from keras_bandgnn.preprocessing.graph_layer import applied_layers
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.training.time_to_accuracy import (
    TimeLimit,
    TimeToAccuracy,
    direction_of,
)
from keras_bandgnn.tuning.dataset_spec import DatasetSpec
from keras_bandgnn.tuning.extra import keras_tuner
from keras_bandgnn.tuning.failures import StopDiverged, failed_trials

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, Graphs, Values
    from keras_bandgnn.models.backbone import Backbone
    from keras_bandgnn.models.task import Task

OBJECTIVES = ("accuracy", "time-to-accuracy", "accuracy-in-time")


@dataclasses.dataclass(frozen=True)
class Objective:
    """The objective of a search, which scores the trials.

    - `"accuracy"`: the best value of the metric within `epochs` epochs.
    - `"time-to-accuracy"`: seconds of training until the smoothed metric reaches
      `target`, see `TimeToAccuracy`. A trial trains for at most `seconds`. A trial that
      misses the target has not failed: it scores between 2 and 3 times `seconds`,
      growing with the distance between its best smoothed value and the target. So it
      ranks below all trials that reach the target, and its score is finite.
    - `"accuracy-in-time"`: the value of the metric after `seconds` of training.

    Seconds are measured by `TrainingClock`, which excludes validation and the first
    step, which compiles. The wall-clock time of a trial is longer.

    Args:
        objective: One of the objectives above.
        metric: Name of the metric in the logs of `fit`.
        target: Value of the metric to reach.
        seconds: Seconds of training.
        epochs: Maximum number of epochs; if omitted, unlimited with `seconds`, else 10.
        window: Number of epochs over which the metric is averaged.
    """

    objective: str
    metric: str
    target: float | None = None
    seconds: float | None = None
    epochs: int | None = None
    window: int = 3

    def __post_init__(self):
        one_of("objective", self.objective, OBJECTIVES)
        positive_int("window", self.window)
        if self.epochs is not None:
            positive_int("epochs", self.epochs)
        optional(number, "target", self.target)
        if self.seconds is not None:
            positive_number("seconds", self.seconds)
        elif self.timed:
            raise ValueError(
                "Expected `seconds`, the time limit of a trial, with objective="
                f"{self.objective!r}. Received: seconds=None. Pass `seconds`."
            )
        if self.objective == "time-to-accuracy" and self.target is None:
            raise ValueError(
                f"Expected `target`, a value of {self.metric}, with "
                "objective='time-to-accuracy'. Received: target=None. Pass `target`."
            )

    @property
    def timed(self) -> bool:
        """Whether the score depends on the time of steps."""
        return self.objective != "accuracy"

    @property
    def direction(self) -> str:
        """`"max"` or `"min"`, the direction of the metric."""
        return direction_of(self.metric)

    @property
    def max_epochs(self) -> int:
        """Maximum number of epochs; practically unlimited with a time limit."""
        return self.epochs or (10 if self.seconds is None else 100_000)

    def to_keras_tuner(self) -> keras_tuner.Objective:
        """Return the objective for keras-tuner."""
        if self.objective == "time-to-accuracy":
            return keras_tuner.Objective("time_to_accuracy", "min")
        return keras_tuner.Objective(self.metric, self.direction)

    def watch(self) -> TimeToAccuracy:
        """Return the callback that measures a trial."""
        stop = self.objective == "time-to-accuracy"
        target = self.target
        if target is None:
            # A target that is never reached.
            target = math.copysign(1e300, 1 if self.direction == "max" else -1)
        return TimeToAccuracy(
            target, self.metric, self.window, self.direction, stop=stop
        )

    def results(self, watch: TimeToAccuracy) -> dict[str, float]:
        """Return the metrics of a trial, including the objective."""
        values = [row["value"] for row in watch.curve]
        best = max if self.direction == "max" else min
        value = values[-1] if self.objective == "accuracy-in-time" else best(values)
        metrics = {self.metric: value, "seconds": watch.seconds, "steps": watch.steps}
        if self.objective == "time-to-accuracy":
            metrics["time_to_accuracy"] = self._time(watch)
        return {name: float(value) for name, value in metrics.items()}

    def _time(self, watch: TimeToAccuracy) -> float:
        if watch.reached:
            return watch.crossing["seconds"]
        scale = max(abs(self.target), abs(watch.best), 1e-9)
        gap = abs(self.target - watch.best) / scale
        gap = 1.0 if math.isnan(gap) else min(gap, 1.0)
        return self.seconds * (2.0 + gap)


# Number of cached data sets with layers applied: training and validation graphs for two
# sets of layers.
_CACHE_SIZE = 4


class GraphHyperModel(keras_tuner.HyperModel):
    """Base class of hypermodels: a search space of tasks, their training and scoring.

    `build(hp)` returns a compiled task with its preprocessor. `fit(hp, task, graphs,
    validation_data=...)` trains it and returns the objective, seconds and steps. All
    trials use the same seed. Subclasses declare the search space (`space`) and build
    the parts of a task from its values (`backbone`, `preprocessor`, `compile`).

    A trial *fails*, and the search continues, if memory runs out, if the graphs do not
    fit the batcher, the plan or the model (a ValueError), or if the loss is not finite.

    Args:
        graphs: The training graphs, in any form that `fit` of a task accepts. Their
            features and labels determine the sizes of the model.
        validation_data: The validation graphs, used for the same purpose.
        objective: `"accuracy"`, `"time-to-accuracy"` or `"accuracy-in-time"`, see
            `Objective`. Regression uses the RMSE in place of the accuracy.
        target: Value to reach, which may be negative, for `"time-to-accuracy"`.
        seconds: Seconds of training per trial, for the objectives with time.
        epochs: Maximum number of epochs; if omitted, unlimited with `seconds`, else 10.
        system: Whether to also search how the model runs, such as the batcher.
        batch_size: Graphs per supergraph, or several values
            to search. If omitted, 32, or 8 to 64 with `system`.
        seed: Seed of weights, shuffling and dropout.

    Attributes:
        objective: The objective for keras-tuner.
        search_objective: The `Objective`.
        spec: The `DatasetSpec` of the graphs.
    """

    # Attributes of a subclass that identify the search; see `fixed`.
    settings: tuple[str, ...] = ()

    def __init__(
        self,
        graphs: Graphs,
        validation_data: Graphs | None = None,
        objective: str = "accuracy",
        target: float | None = None,
        seconds: float | None = None,
        epochs: int | None = None,
        system: bool = False,
        batch_size: int | Iterable[int] | None = None,
        seed: int = 0,
    ):
        super().__init__()
        sources = [graphs] if validation_data is None else [graphs, validation_data]
        self.spec = DatasetSpec.of(*sources)
        metric = "val_rmse" if self.spec.label == "number" else "val_accuracy"
        self.search_objective = Objective(objective, metric, target, seconds, epochs)
        self.objective = self.search_objective.to_keras_tuner()
        self.system = boolean("system", system)
        self.batch_size = optional(positive_ints, "batch_size", batch_size)
        self.seed = seed_number("seed", seed)
        self._compiled: dict[tuple, tuple] = {}

    # === Implemented by subclasses ===

    def space(self, hp: keras_tuner.HyperParameters) -> Config:
        """Declare the search space; return values by name, None for inactive ones."""
        raise NotImplementedError

    def backbone(self, values: Values) -> Backbone:
        """Build the backbone."""
        raise NotImplementedError

    def preprocessor(self, values: Values, backbone: Backbone) -> GraphPreprocessor:
        """Build the preprocessor: layers, batcher and plan."""
        raise NotImplementedError

    def compile(self, task: Task, values: Values) -> None:
        """Compile the task."""
        raise NotImplementedError

    def head(self, values: Values) -> Config:
        """Return further arguments of the task."""
        return {}

    def fixed(self) -> Config:
        """Return the settings that identify the search, as JSON values.

        Trials are comparable only if these settings are equal: those of the objective,
        and the attributes that `settings` names.
        """
        objective = self.search_objective
        return {
            "class": type(self).__name__,
            "objective": objective.objective,
            "metric": objective.metric,
            "target": objective.target,
            "seconds": objective.seconds,
            "epochs": objective.max_epochs,
            "system": self.system,
            "batch_size": self.batch_size,
            "seed": self.seed,
            **{name: getattr(self, name) for name in self.settings},
        }

    # === Called by keras-tuner ===

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the whole search space without building a model."""
        self.space(hp)

    def build(self, hp: keras_tuner.HyperParameters) -> Task:
        """Return a compiled task with its preprocessor."""
        values = self.space(hp)
        with failed_trials(), _seeded(self.seed):
            backbone = self.backbone(values)
            task = self._task(backbone, self.preprocessor(values, backbone), values)
            self.compile(task, values)
            # Checkpoints include the optimizer's state.
            task.optimizer.build(task.trainable_variables)
        return task

    def fit(
        self,
        hp: keras_tuner.HyperParameters,
        model: Task,
        graphs: Graphs,
        validation_data: Graphs | None = None,
        callbacks: Iterable = (),
        epochs: int | None = None,
        **options: object,
    ) -> dict[str, float]:
        """Train a task on graphs and score it.

        Args:
            hp: The hyperparameters, unused.
            model: The task that `build(hp)` returned.
            graphs: The training graphs.
            validation_data: The validation graphs.
            callbacks: More callbacks of `fit`.
            epochs: Maximum number of epochs, overrides the hypermodel's (Hyperband).
            **options: More arguments of `fit`, such as `mask` and `validation_mask` of
                `NodeClassifier`.

        Returns:
            The metric, the seconds and steps of training, and the objective.

        Raises:
            keras_tuner.errors.FailedTrialError: If the trial fails, see the class.
            keras_tuner.errors.FatalValueError: Without validation data.
        """
        del hp
        if validation_data is None and not options.get("validation_mask"):
            raise keras_tuner.errors.FatalValueError(
                f"Expected `validation_data`, for {self.search_objective.metric}. "
                "Received: None. Pass it to `search`."
            )
        objective = self.search_objective
        watch = objective.watch()
        callbacks = [watch, StopDiverged(), *callbacks]
        if objective.seconds is not None:
            callbacks.append(TimeLimit(objective.seconds))
        with failed_trials():
            if validation_data is not None:
                validation_data = self._prepared(model.preprocessor, validation_data)
            graphs = self._prepared(model.preprocessor, graphs)
            if _drops(model.preprocessor.plan):
                graphs = model.loader(graphs, shuffle=True, seed=self.seed, adapt=True)
                # Validation uses all edges, as in the paper.
                model.preprocessor.plan = _exact(model.preprocessor.plan)
            epochs = epochs or objective.max_epochs
            model.fit(
                graphs,
                validation_data=validation_data,
                callbacks=callbacks,
                **{"verbose": 0, "epochs": epochs, "seed": self.seed, **options},
            )
        return objective.results(watch)

    def prepare(self, task: Task, graphs: Graphs) -> None:
        """Adapt the preprocessor of a task loaded from a checkpoint, to save it.

        Args:
            task: A task from `build`.
            graphs: The training graphs, to which the batcher adapts its budget.
        """
        if _drops(task.preprocessor.plan):
            task.preprocessor.plan = _exact(task.preprocessor.plan)
        task.loader(self._prepared(task.preprocessor, graphs), adapt=True)

    def _task(self, backbone, preprocessor, values):
        spec = self.spec
        arguments = self.head(values)
        if spec.label == "candidate":
            readout = "slot" if spec.slots else "candidate"
            arguments = {"readout": readout, **arguments}
            return models.NodeSelector(backbone, preprocessor, **arguments)
        if spec.label == "number":
            arguments = {"num_targets": spec.num_outputs, **arguments}
            return models.GraphRegressor(
                backbone, preprocessor=preprocessor, **arguments
            )
        kinds = {"node": models.NodeClassifier, "edge": models.EdgeClassifier}
        kind = kinds.get(spec.level, models.GraphClassifier)
        return kind(backbone, spec.num_outputs, preprocessor, **arguments)

    def _prepared(self, preprocessor: GraphPreprocessor, graphs):
        """Return graphs with the preprocessor's layers applied, and cache them.

        Each set of layers needs a copy of the data set, so the cache holds only the
        most recently used ones. Stored graphs have been reordered already; another
        ordering starts from their original node order.
        """
        layers = preprocessor.layers_config()
        applied = applied_layers(graphs)
        if applied == layers:
            return graphs
        key = (id(graphs), json.dumps(layers))
        if key in self._compiled:
            self._compiled[key] = self._compiled.pop(key)
        else:
            if applied and without_order(applied) == without_order(layers):
                layer = preprocessor.graph_layers[-1]
                prepared = FlatGraphs.from_graphs(
                    layer(_original_order(g)) for g in graphs
                )
                prepared.metadata = {"layers": layers}
            else:
                source = [graphs] if isinstance(graphs, Graph) else graphs
                prepared = preprocessor.transform(
                    [_with_origin(graph) for graph in source]
                )
            while len(self._compiled) >= _CACHE_SIZE:
                del self._compiled[next(iter(self._compiled))]
            # The reference to the source keeps its id unique.
            self._compiled[key] = (prepared, graphs)
        return self._compiled[key][0]


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the weights that Keras creates; restore the caller's `random` state."""
    # Keras' `set_random_seed` would import TensorFlow on every backend.
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def without_order(layers: Iterable[dict]) -> list[dict]:
    """Return configurations of layers without a final layer that orders the nodes."""
    layers = list(layers)
    last = layers[-1]["class_name"] if layers else None
    return layers[:-1] if last == "RCMKCompile" else layers


def _original_order(graph: Graph) -> Graph:
    """Return the graph in its node order before reordering."""
    if graph.origin is None:
        return graph
    return graph.subgraph(np.argsort(graph.origin))


def _with_origin(graph: Graph) -> Graph:
    """Return the graph with an origin; layers may set one for some graphs only."""
    if graph.origin is not None:
        return graph
    return graph.replace(origin=np.arange(graph.num_nodes, dtype=np.int32))


def _drops(plan) -> bool:
    return type(plan) is Plan and plan.rest is None


def _exact(plan: Plan) -> Plan:
    return Plan(*plan.primitives, rest="segment")
