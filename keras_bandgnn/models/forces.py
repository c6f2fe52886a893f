"""Forces and stresses: gradients of a predicted energy."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers.edge_geometry import forces_on_nodes, stresses_of_graphs
from keras_bandgnn.models.task_program import TaskProgram, compiled
from keras_bandgnn.preprocessing.geometry.atoms import graph_name

TOUCHING = 1e-3
"""Atoms that are nearer, in Angstrom, are taken for one that was entered twice."""


def energies_and_slopes(task, batch, training=False):
    """Compute the energies of a regressor and their gradient with respect to edges.

    Args:
        task: A `GraphRegressor` with one target, in energy units.
        batch: A batch with `batch["edge"]["displacement"]` float [G, E, 3].
        training: As for the task.

    Returns:
        float [G, B, 1], and float [G, E, 3] in energy units per angstrom.
    """

    def energies(displacement):
        edge = {**batch["edge"], "displacement": displacement}
        return task({**batch, "edge": edge}, training=training)

    displacement = ops.convert_to_tensor(batch["edge"]["displacement"], "float32")
    return graph_ops.value_and_gradient(energies, displacement)


def energies_and_forces(task, batch, training=False):
    """Compute the energies, as `energies_and_slopes`, and the forces on the nodes.

    Returns:
        float [G, B, 1], and float [G, N, 3] in energy units per angstrom.
    """
    values, slopes = energies_and_slopes(task, batch, training)
    num_nodes = ops.shape(batch["node"]["mask"])[1]
    return values, forces_on_nodes(slopes, batch["edge"], num_nodes)


def force_program(task) -> TaskProgram:
    """Return the program of the forces of a `GraphRegressor` or an `Ensemble`.

    Its outputs are float [G, N, 3]; of an ensemble [G, N, 3, M].
    """
    return compiled(task, _forces, level="node", check=check_displacements)


def stress_program(task) -> TaskProgram:
    """Return the program of the stresses of a `GraphRegressor` or an `Ensemble`.

    Its outputs are float [G, B, 6], NaN for cells without a volume; of an ensemble
    [G, B, 6, M].
    """
    return compiled(task, _stresses, level="graph", check=check_cells)


def _forces(task, batch):
    return energies_and_forces(task, batch)[1]


def _stresses(task, batch):
    _, slopes = energies_and_slopes(task, batch)
    stress, volume = stresses_of_graphs(slopes, batch)
    return ops.where(ops.expand_dims(volume > 0, -1), stress, float("nan"))


def check_cells(loader) -> None:
    """Raise a ValueError if graphs have no cells or edges no displacements."""
    check_displacements(loader)
    for part in loader.parts:
        if "cell" not in part.context:
            raise ValueError(
                "Expected the context feature 'cell' [3, 3] for stresses. "
                f"Received: context features {sorted(part.context)}. Set "
                "Graph(..., context={'cell': ..., 'pbc': ...})."
            )


def check_displacements(loader) -> None:
    """Raise a ValueError if edges have no displacements, which forces require."""
    for part in loader.parts:
        if "displacement" not in part.edge:
            raise ValueError(
                "Expected the edge feature 'displacement' for forces. Received: edge "
                f"features {sorted(part.edge)}. Put a RadiusGraph, KNearestGraph or "
                "FullyConnectedGraph into the preprocessor."
            )


def check_apart(part) -> None:
    """Raise a ValueError if atoms of a graph coincide.

    Args:
        part: `FlatGraphs` with displacements of the edges.
    """
    displacement = part.edge["displacement"]
    squares = np.einsum("ei,ei->e", displacement, displacement)
    touching = np.flatnonzero(squares < TOUCHING**2)
    if len(touching):
        edge = int(touching[0])
        graph = int(np.searchsorted(part.edge_ptr, edge, "right")) - 1
        raise ValueError(
            f"Expected atoms at least {TOUCHING} Angstrom apart. Received: in "
            f"{graph_name(graph, part.info)} atoms {int(part.receivers[edge])} and "
            f"{int(part.senders[edge])} at a distance of {np.sqrt(squares[edge]):.2g} "
            "Angstrom. Remove one of them, or leave the graph out."
        )


def check_energy(task) -> None:
    """Raise a ValueError unless a task has exactly one target."""
    if task.num_targets != 1:
        raise ValueError(
            "Expected one target, the energy, for forces. Received: "
            f"num_targets={task.num_targets}."
        )


class ComponentErrors(NamedTuple):
    """Errors over the known components of vectors, such as forces.

    Args:
        loss: Mean of the squares times their weights.
        absolute: Mean of the absolute differences.
        squares: Mean of the squares.
        count: Number of known components.
    """

    loss: object
    absolute: object
    squares: object
    count: object


def component_errors(predicted, target, mask, weight=None) -> ComponentErrors:
    """Compare predicted with known components of vectors.

    Args:
        predicted: float [G, M, C]: forces on nodes with C = 3, stresses of graphs with
            C = 6.
        target: float [G, M, C]; NaN where missing.
        mask: bool [G, M], False for padding.
        weight: float [G, M], factors of the squares in the loss; 1 if omitted.
    """
    target = ops.cast(target, predicted.dtype)
    has_label = ops.logical_and(
        ops.expand_dims(mask, -1), ops.logical_not(ops.isnan(target))
    )
    counted = ops.cast(has_label, predicted.dtype)
    difference = (predicted - ops.where(has_label, target, 0.0)) * counted
    total = ops.sum(counted)
    count = ops.maximum(total, 1.0)
    squares = ops.square(difference)
    mean = loss = ops.sum(squares) / count
    if weight is not None:
        loss = ops.sum(squares * ops.expand_dims(weight, -1)) / count
    return ComponentErrors(loss, ops.sum(ops.abs(difference)) / count, mean, total)


class RootMean(keras.metrics.Mean):
    """The square root of a mean."""

    def result(self):
        """Return the root."""
        return ops.sqrt(super().result())
