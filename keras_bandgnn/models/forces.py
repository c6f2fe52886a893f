"""Forces: the negative gradient of a predicted energy."""

from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers.edge_geometry import forces_on_nodes
from keras_bandgnn.models.task import Task


def energies_and_slopes(task, batch, training=False):
    """Compute the energies of a regressor and their gradient by the edges.

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
    """Compute the energies of a regressor and the forces on the nodes.

    Args:
        task: A `GraphRegressor` with one target, in energy units.
        batch: A batch with `batch["edge"]["displacement"]` float [G, E, 3].
        training: As for the task.

    Returns:
        float [G, B, 1], and float [G, N, 3] in energy units per angstrom.
    """
    values, slopes = energies_and_slopes(task, batch, training)
    num_nodes = ops.shape(batch["node"]["mask"])[1]
    return values, forces_on_nodes(slopes, batch["edge"], num_nodes)


class ForceModel(Task):
    """The forces of a trained regressor, for `predict`.

    Args:
        task: The regressor.
    """

    output_level = "node"

    def __init__(self, task):
        super().__init__(task.backbone, task.preprocessor)
        self.distribution = task.distribution
        self.task = task
        self.build()
        self.compile()

    def build(self, input_shape=None):
        """All weights are the regressor's."""
        self.built = True

    def call(self, batch, training=False):
        """Return forces float [G, N, 3]."""
        return energies_and_forces(self.task, batch)[1]

    def compute_output_shape(self, input_shape):
        """[G, N, 3]."""
        return (*input_shape["node"]["mask"], 3)

    def check(self, loader) -> None:
        """Raise a ValueError if edges have no displacements."""
        self.task.check(loader)
        check_displacements(loader)


def check_displacements(loader) -> None:
    """Raise a ValueError if edges have no displacements, which forces require."""
    for part in loader.parts:
        if "displacement" not in part.edge:
            raise ValueError(
                "Expected the edge feature 'displacement' for forces. Received: edge "
                f"features {sorted(part.edge)}. Put a RadiusGraph, KNearestGraph or "
                "FullyConnectedGraph into the preprocessor."
            )


def check_energy(task) -> None:
    """Raise a ValueError unless a task has exactly one target."""
    if task.num_targets != 1:
        raise ValueError(
            "Expected one target, the energy, for forces. Received: "
            f"num_targets={task.num_targets}."
        )


def force_loss(predicted, target, mask, node_weight=None):
    """Compute the mean squared error over the components of known forces.

    Args:
        predicted: float [G, N, 3].
        target: float [G, N, 3]; NaN where missing.
        mask: bool [G, N], real nodes.
        node_weight: float [G, N], factors of the squares; 1 if omitted.

    Returns:
        The loss, the mean absolute difference, and the number of known components.
    """
    target = ops.cast(target, predicted.dtype)
    known = ops.logical_and(
        ops.expand_dims(mask, -1), ops.logical_not(ops.isnan(target))
    )
    weight = ops.cast(known, predicted.dtype)
    difference = (predicted - ops.where(known, target, 0.0)) * weight
    known = ops.sum(weight)
    count = ops.maximum(known, 1.0)
    squares = ops.square(difference)
    if node_weight is not None:
        squares = squares * ops.expand_dims(node_weight, -1)
    loss = ops.sum(squares) / count
    return loss, ops.sum(ops.abs(difference)) / count, known
