"""`GraphHyperModel`: what the hypermodels share: tasks, training, scores."""

import contextlib
import dataclasses
import json
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

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
from keras_bandgnn.tuning.extra import keras_tuner
from keras_bandgnn.tuning.facts import Facts
from keras_bandgnn.tuning.failures import StopDiverged, failed_trials

# `Goal`: what a search is for, and how a trial is scored.


OBJECTIVES = ("accuracy", "time-to-accuracy", "accuracy-in-time")


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a search is for.

    - `"accuracy"`: the best value of the metric in `epochs` epochs.
    - `"time-to-accuracy"`: seconds of training until the smoothed metric reaches
      `target`, see `TimeToAccuracy`; a trial trains for `seconds` at most. One that
      does not get there is no failure: it scores twice to three times `seconds`, the
      more the further its best smoothed value is from the target. So it comes after
      all that do, and after those that get nearer, and the score is finite.
    - `"accuracy-in-time"`: the value of the metric after `seconds` of training.

    Seconds are those of `TrainingClock`: without validation, and without the first
    step, which compiles. A trial takes longer by the wall clock.

    Args:
        objective: One of these.
        metric: Name of the metric in the logs of `fit`.
        target: Value of the metric to reach.
        seconds: Seconds of training.
        epochs: Epochs at most; with `seconds` unlimited if omitted, else 10.
        window: Epochs that the smoothed value is the mean of.
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
                f"Expected `seconds`, the most that a trial trains, with objective="
                f"{self.objective!r}. Received: seconds=None."
            )
        if self.objective == "time-to-accuracy" and self.target is None:
            raise ValueError(
                f"Expected `target`, a value of {self.metric}, with "
                "objective='time-to-accuracy'. Received: target=None."
            )

    @property
    def timed(self) -> bool:
        """Whether the score depends on the time of steps."""
        return self.objective != "accuracy"

    @property
    def direction(self) -> str:
        """`"max"` or `"min"`, of the metric."""
        return direction_of(self.metric)

    @property
    def max_epochs(self) -> int:
        """Epochs at most."""
        # As many as the time allows.
        return self.epochs or (10 if self.seconds is None else 100_000)

    def to_keras_tuner(self) -> "keras_tuner.Objective":
        """The objective as keras-tuner takes it."""
        if self.objective == "time-to-accuracy":
            return keras_tuner.Objective("time_to_accuracy", "min")
        return keras_tuner.Objective(self.metric, self.direction)

    def watch(self) -> TimeToAccuracy:
        """The callback that measures a trial."""
        stops = self.objective == "time-to-accuracy"
        # Without a target there is nothing to cross.
        never = math.copysign(1e300, 1 if self.direction == "max" else -1)
        target = never if self.target is None else self.target
        return TimeToAccuracy(
            target, self.metric, self.window, self.direction, stop=stops
        )

    def results(self, watch: TimeToAccuracy) -> dict[str, float]:
        """What a trial reports, the objective among it."""
        values = [row["value"] for row in watch.curve]
        best = max if self.direction == "max" else min
        value = values[-1] if self.objective == "accuracy-in-time" else best(values)
        found = {self.metric: value, "seconds": watch.seconds, "steps": watch.steps}
        if self.objective == "time-to-accuracy":
            found["time_to_accuracy"] = self._time(watch)
        return {name: float(value) for name, value in found.items()}

    def _time(self, watch: TimeToAccuracy) -> float:
        if watch.reached:
            return watch.crossing["seconds"]
        scale = max(abs(self.target), abs(watch.best), 1e-9)
        gap = abs(self.target - watch.best) / scale
        gap = 1.0 if math.isnan(gap) else min(gap, 1.0)
        return self.seconds * (2.0 + gap)


# Data sets with layers applied that are kept: two sets of layers, to train and to
# validate on.
_COMPILED = 4


class GraphHyperModel(keras_tuner.HyperModel):
    """A search space of tasks on graphs, and how a trial is trained and scored.

    `build(hp)` returns a compiled task with its preprocessor, `fit(hp, task, graphs,
    validation_data=...)` trains it and returns the objective, beside seconds and steps.
    Every trial begins with the same seed. Subclasses say what is drawn (`space`) and
    what is made of it (`backbone`, `layers`, `plan`, `compile`).

    A trial *fails*, and the search goes on, if memory runs out, if graphs do not fit
    the batcher, the plan or the model (a ValueError), or if the loss is not finite.

    Args:
        graphs: The graphs to train on, in any form that `fit` of a task takes; read
            for the sizes of features and labels.
        validation_data: Those to validate on, read for the same.
        objective: `"accuracy"`, `"time-to-accuracy"` or `"accuracy-in-time"`, see
            `Goal`. For numbers per graph the RMSE stands for the accuracy.
        target: Value to reach, for `"time-to-accuracy"`.
        seconds: Seconds of training per trial, for the objectives with time.
        epochs: Epochs at most; 10 if omitted, with `seconds` unlimited.
        system: Whether to search how the model is run, too: the batcher and others.
        batch_size: Graphs per supergraph, padding included: a number, or several to
            choose from; 32 if omitted, with `system` 8 to 64.
        seed: Of weights, order and dropout.

    Attributes:
        objective: The objective, for keras-tuner.
        goal: The `Goal`.
    """

    def __init__(
        self,
        graphs,
        validation_data=None,
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
        self.facts = Facts.of(*sources)
        metric = "val_rmse" if self.facts.label == "number" else "val_accuracy"
        self.goal = Goal(objective, metric, target, seconds, epochs)
        self.objective = self.goal.to_keras_tuner()
        self.system = boolean("system", system)
        self.batch_size = optional(positive_ints, "batch_size", batch_size)
        self.seed = seed_number("seed", seed)
        self._compiled: dict[tuple, tuple] = {}

    # === What subclasses say ===

    def space(self, hp) -> dict[str, Any]:
        """Declares what is searched; the values by name, None for inactive ones."""
        raise NotImplementedError

    def backbone(self, values: dict[str, Any]):
        """The backbone of these values."""
        raise NotImplementedError

    def preprocessor(self, values: dict[str, Any], backbone) -> GraphPreprocessor:
        """The layers, the batcher and the plan of these values."""
        raise NotImplementedError

    def compile(self, task, values: dict[str, Any]) -> None:
        """Compiles the task."""
        raise NotImplementedError

    def head(self, values: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the task beyond backbone and preprocessor."""
        return {}

    def fixed(self) -> dict[str, Any]:
        """What no trial changes, as plain facts: trials of others do not compare.

        Subclasses add their own arguments to these.
        """
        goal = self.goal
        return {
            "class": type(self).__name__,
            "objective": goal.objective,
            "metric": goal.metric,
            "target": goal.target,
            "seconds": goal.seconds,
            "epochs": goal.max_epochs,
            "system": self.system,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    # === What keras-tuner calls ===

    def declare_hyperparameters(self, hp) -> None:
        """Declares the whole space, so that no model is built for it."""
        self.space(hp)

    def build(self, hp):
        """Returns a compiled task with its preprocessor."""
        values = self.space(hp)
        with failed_trials(), _seeded(self.seed):
            backbone = self.backbone(values)
            task = self._task(backbone, self.preprocessor(values, backbone), values)
            self.compile(task, values)
            # Checkpoints hold its state, too.
            task.optimizer.build(task.trainable_variables)
        return task

    def fit(
        self,
        hp,
        model,
        graphs,
        validation_data=None,
        callbacks: Iterable = (),
        epochs: int | None = None,
        **options,
    ) -> dict[str, float]:
        """Trains a task on graphs and scores it.

        Args:
            hp: The hyperparameters, not read.
            model: What `build(hp)` returned.
            graphs: The graphs to train on.
            validation_data: Those to validate on.
            callbacks: More callbacks of `fit`.
            epochs: Epochs at most, in the place of the hypermodel's own (Hyperband).
            **options: More arguments of `fit`, such as `mask` and `validation_mask` of
                `NodeClassifier`.

        Returns:
            The metric, the seconds and steps of training, and the objective.

        Raises:
            keras_tuner.errors.FailedTrialError: See above.
            keras_tuner.errors.FatalValueError: Without anything to validate on.
        """
        del hp
        if validation_data is None and not options.get("validation_mask"):
            raise keras_tuner.errors.FatalValueError(
                f"Expected `validation_data`, for {self.goal.metric}. Received: None. "
                "Pass it to `search`."
            )
        goal = self.goal
        watch = goal.watch()
        callbacks = [watch, StopDiverged(), *callbacks]
        if goal.seconds is not None:
            callbacks.append(TimeLimit(goal.seconds))
        with failed_trials():
            if validation_data is not None:
                validation_data = self._prepared(model.preprocessor, validation_data)
            graphs = self._prepared(model.preprocessor, graphs)
            if _drops(model.preprocessor.plan):
                graphs = model.loader(graphs, shuffle=True, seed=self.seed, adapt=True)
                # What is left out of training is still predicted, as in the paper.
                model.preprocessor.plan = _exact(model.preprocessor.plan)
            model.fit(
                graphs,
                validation_data=validation_data,
                seed=self.seed,
                callbacks=callbacks,
                **{"verbose": 0, "epochs": epochs or goal.max_epochs, **options},
            )
        return goal.results(watch)

    def prepare(self, task, graphs) -> None:
        """Adapts a task that was read from a checkpoint, so that it can be saved.

        Args:
            task: A task from `build`.
            graphs: The graphs that it was trained on, whose sizes its batcher keeps.
        """
        if _drops(task.preprocessor.plan):
            task.preprocessor.plan = _exact(task.preprocessor.plan)
        task.loader(self._prepared(task.preprocessor, graphs), adapt=True)

    def _task(self, backbone, preprocessor, values):
        facts = self.facts
        given = self.head(values)
        if facts.label == "candidate":
            readout = "slot" if facts.slots else "candidate"
            given = {"readout": readout, **given}
            return models.NodeSelector(backbone, preprocessor, **given)
        if facts.label == "number":
            given = {"num_targets": facts.num_outputs, **given}
            return models.GraphRegressor(backbone, preprocessor=preprocessor, **given)
        kind = (
            models.NodeClassifier if facts.level == "node" else models.GraphClassifier
        )
        return kind(backbone, facts.num_outputs, preprocessor, **given)

    def _prepared(self, preprocessor: GraphPreprocessor, graphs):
        """Graphs with the preprocessor's layers applied, kept for the next trials.

        The data set is copied for each set of layers, so only those that were used last
        are kept.

        Stored graphs have been reordered already; another order is made from theirs.
        """
        wanted = preprocessor.layers_config()
        applied = applied_layers(graphs)
        if applied == wanted:
            return graphs
        key = (id(graphs), json.dumps(wanted))
        if key in self._compiled:
            self._compiled[key] = self._compiled.pop(key)
        else:
            if applied and without_order(applied) == without_order(wanted):
                layer = preprocessor.graph_layers[-1]
                made = FlatGraphs.from_graphs(layer(_as_given(g)) for g in graphs)
                made.metadata = {"layers": wanted}
            else:
                given = [graphs] if isinstance(graphs, Graph) else graphs
                made = preprocessor.compile([_numbered(graph) for graph in given])
            while len(self._compiled) >= _COMPILED:
                del self._compiled[next(iter(self._compiled))]
            # The source is kept, so that its id stays its own.
            self._compiled[key] = (made, graphs)
        return self._compiled[key][0]


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Keras draws the seeds of weights alike; the caller's `random` stays as it is."""
    # Keras' `set_random_seed` would import TensorFlow, whatever the backend.
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def without_order(layers: Iterable[dict]) -> list[dict]:
    """Configurations of layers but the last one's, if that only orders the nodes."""
    layers = list(layers)
    last = layers[-1]["class_name"] if layers else None
    return layers[:-1] if last == "RCMKCompile" else layers


def _as_given(graph: Graph) -> Graph:
    """The graph in the order that it had before it was reordered."""
    if graph.origin is None:
        return graph
    return graph.subgraph(np.argsort(graph.origin))


def _numbered(graph: Graph) -> Graph:
    """The graph with its own order as origin: a layer may set it for some graphs."""
    if graph.origin is not None:
        return graph
    return graph.replace(origin=np.arange(graph.num_nodes, dtype=np.int32))


def _drops(plan) -> bool:
    return type(plan) is Plan and plan.rest is None


def _exact(plan: Plan) -> Plan:
    return Plan(*plan.primitives, rest="segment")
