"""`compiled`: functions of trained tasks and a batch, compiled once per shape."""

from collections.abc import Callable
from typing import TypedDict, Unpack

import keras
from keras import ops

from keras_bandgnn import compat
from keras_bandgnn.models.graph_model import GraphModel
from keras_bandgnn.preprocessing.loading.node_order import (
    caller_rows,
    scatter_to_caller_order,
)
from keras_bandgnn.preprocessing.preprocessor import GraphPreprocessor
from keras_bandgnn.primitives.plan import Plan

# Cache size per task: each program holds compiled steps.
_MAX_PROGRAMS = 16


def task_output(task, batch):
    """Return the output of a task, for `compiled`."""
    return task(batch, training=False)


class ProgramOptions(TypedDict, total=False):
    """What a `TaskProgram` takes beyond its function.

    Attributes:
        level: Level of the rows of its outputs; by default that of the task.
        of_backbone: Whether the function takes the backbone, not the task.
        check: Function of a loader that raises an error for graphs that the function
            cannot take.
        check_labels: The same for labels.
    """

    level: str | None
    of_backbone: bool
    check: Callable | None
    check_labels: Callable | None


def compiled(
    task, function: Callable, *static, **options: Unpack[ProgramOptions]
) -> "TaskProgram":
    """Return the program of a function, cached so that it compiles once.

    Args:
        task: A task; or an `Ensemble`, for the outputs of all members in one program.
        function: See `TaskProgram`.
        *static: See `TaskProgram`; part of the cache key.
        **options: See `ProgramOptions`; the same for each call with equal other
            arguments.
    """
    tasks = getattr(task, "members", [task])
    programs = compat.model_cache(task).setdefault("programs", {})
    key = (function, *static)
    program = programs.pop(key, None)
    if program is None:
        program = TaskProgram(tasks, function, *static, **options)
        while len(programs) >= _MAX_PROGRAMS:
            del programs[next(iter(programs))]
    # Most recently used last.
    programs[key] = program
    program.sync_with_task()
    return program


class TaskProgram(GraphModel):
    """A function of a task and a batch as a model, which Keras compiles.

    Weights, devices and preprocessor are the task's. Graphs are loaded and checked as
    by the task.

    Args:
        tasks: Tasks over the same graphs; outputs of several are stacked on a last
            axis.
        function: `function(task, batch, *static)` returns nested tensors.
        *static: Hashable arguments of the function.
        **options: See `ProgramOptions`.
    """

    host_side = (*GraphModel.host_side, "tasks")
    # Instances set it to `of_backbone`: functions of the task read whole graphs.
    splits_sequences = True

    def __init__(
        self,
        tasks: list,
        function: Callable,
        *static,
        **options: Unpack[ProgramOptions],
    ):
        first, of_backbone = tasks[0], options.get("of_backbone", False)
        super().__init__(first.backbone, first.preprocessor)
        self.distribution = first.distribution
        self.tasks = tasks
        # Keras tracks their weights.
        self.parts = [task.backbone if of_backbone else task for task in tasks]
        self.function, self.static = function, static
        self.output_level = options.get("level") or first.output_level
        self.splits_sequences = self.of_backbone = of_backbone
        self.check_graphs = options.get("check")
        self.check_targets = options.get("check_labels")
        self.build_and_compile()

    def __call__(self, *args, **kwargs):
        """Return the outputs of the function, which may read other than batches."""
        return super(GraphModel, self).__call__(*args, **kwargs)

    def sync_with_task(self) -> None:
        """Use the current preprocessor and `record_steps` of the task."""
        first = self.tasks[0]
        self.record_steps = "auto" if first.record_steps else False
        self.preprocessor = preprocessor = first.preprocessor
        plan = None if preprocessor is None else preprocessor.plan
        scheduled = isinstance(plan, Plan) and plan.schedule is not None
        if scheduled and not self._is_task:
            # Functions other than the output read all nodes.
            self.preprocessor = GraphPreprocessor(
                preprocessor.graph_layers,
                preprocessor.batcher,
                plan.replace(schedule=None),
                preprocessor.edge_weight,
            )

    @property
    def _is_task(self) -> bool:
        return self.function is task_output

    def build(self, input_shape=None):
        """Mark the program as built; all weights are the task's."""
        self.built = True

    def call(self, batch, training=False):
        """Return the outputs of the function."""
        outputs = [self.function(part, batch, *self.static) for part in self.parts]
        if len(outputs) == 1:
            return outputs[0]
        return keras.tree.map_structure(
            lambda *values: ops.stack(values, axis=-1), *outputs
        )

    @property
    def program_variant(self) -> tuple:
        """See `GraphModel.program_variant`."""
        return tuple(task.program_variant for task in self.tasks)

    def receptive_field(self, training: bool):
        """Return the schedule of the task for its output, otherwise None."""
        return self.tasks[0].receptive_field(training) if self._is_task else None

    def default_preprocessor(self, graphs) -> GraphPreprocessor:
        """Return the default preprocessor of the task."""
        return self.tasks[0].default_preprocessor(graphs)

    def in_given_order(self, graphs, loader) -> Callable:
        """Return the function that restores the caller's order of rows."""
        if self._is_task:
            return self.tasks[0].in_given_order(graphs, loader)
        if self.output_level != "node":
            return super().in_given_order(graphs, loader)
        places = list(caller_rows(graphs, loader))
        return lambda graph, rows: scatter_to_caller_order(rows, *places[graph])

    def check(self, loader) -> None:
        """Raise a ValueError if the graphs do not fit the tasks or the function."""
        for task in self.tasks[1:]:
            for part in loader.parts:
                task.backbone.check(part)
            task.backbone.check_weights(loader.parts, loader.edge_weight)
        if not self.of_backbone:
            for task in self.tasks:
                task.check(loader)
        if self.check_graphs is not None:
            self.check_graphs(loader)

    def check_labels(self, loader) -> None:
        """Raise a ValueError if the labels do not fit the function."""
        if self.check_targets is not None:
            self.check_targets(loader)
