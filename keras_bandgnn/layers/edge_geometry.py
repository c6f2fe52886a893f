"""Lengths and directions of edges, in-degrees, forces on nodes, and stresses."""

from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.layers.batch_layer import edge_factor, whole_degree

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
"""Rows and columns of the six components of a stress: xx, yy, zz, yz, xz, xy."""

# Smallest volume that cell vectors of length 1 may span.
_FLAT = 1e-6


def edge_distances(edge):
    """Return edge lengths, from displacements or, without them, from distances.

    Args:
        edge: `batch["edge"]`: `displacement` float [G, E, 3] or `distance` [G, E],
            in angstrom.

    Returns:
        float [G, E], angstrom. The gradient at length 0 is 0.

    Raises:
        ValueError: If the batch has neither.

    Example:
    >>> import numpy as np
    >>> float(edge_distances({"displacement": np.array([[[3.0, 0.0, 4.0]]])})[0, 0])
    5.0
    """
    if "displacement" not in edge:
        if "distance" not in edge:
            raise ValueError(
                "Expected edge features 'displacement' or 'distance'. Received: "
                f"{sorted(edge)}. Compute the edges from the positions first."
            )
        return ops.convert_to_tensor(edge["distance"])
    displacement = ops.convert_to_tensor(edge["displacement"])
    squares = ops.sum(displacement * displacement, axis=-1)
    # The root has no gradient at 0, and 0 times infinity is NaN. NaN stays NaN.
    apart = squares != 0
    return ops.where(apart, ops.sqrt(ops.where(apart, squares, 1.0)), 0.0)


def edge_directions(edge, distances):
    """Return unit vectors from each receiver to its sender.

    Args:
        edge: `batch["edge"]` with `displacement` float [G, E, 3].
        distances: float [G, E], from `edge_distances`.

    Returns:
        float [G, E, 3]; 0 for edges of length 0.

    Raises:
        ValueError: If the batch has no displacements.

    Example:
    >>> import keras, numpy as np
    >>> edge = {"displacement": np.array([[[0.0, 2.0, 0.0]]])}
    >>> keras.ops.convert_to_numpy(edge_directions(edge, edge_distances(edge))).tolist()
    [[[0.0, 1.0, 0.0]]]
    """
    if "displacement" not in edge:
        raise ValueError(
            "Expected the edge feature 'displacement'. Received: "
            f"{sorted(edge)}. Lengths have no direction: compute the edges from the "
            "positions."
        )
    length = ops.where(distances > 0, distances, 1.0)
    return ops.convert_to_tensor(edge["displacement"]) / ops.expand_dims(length, -1)


def message_factors(batch, factor=None):
    """Return the factors of messages: those of a cutoff, and those of the edges.

    Explanations and samplers give edges factors.

    Args:
        batch: A batch.
        factor: float [G, E], or None for 1.

    Returns:
        float [G, E], or None for 1.

    Example:
    >>> message_factors({"edge": {}}) is None
    True
    """
    weight = edge_factor(batch)
    if weight is None or factor is None:
        return factor if weight is None else weight
    return factor * ops.cast(weight, factor.dtype)


def in_degrees(edge, num_nodes, weight=None):
    """Return the in-degree of each node, at least 1.

    Args:
        edge: `batch["edge"]` with `receiver` int32 [G, E].
        num_nodes: N.
        weight: float [G, E], how often each edge counts; once if None.

    Returns:
        float32 [G, N].

    Example:
    >>> import keras
    >>> keras.ops.convert_to_numpy(in_degrees({"receiver": [[0, 0, 2]]}, 2)).tolist()
    [[2.0, 1.0]]
    """
    receiver = ops.convert_to_tensor(edge["receiver"])
    if weight is None:
        weight = ops.ones(ops.shape(receiver), "int32")
    counts = graph_ops.batched_segment_sum(weight, receiver, num_nodes, is_sorted=True)
    return ops.cast(ops.maximum(counts, 1), "float32")


def message_counts(batch, num_nodes):
    """Return the divisors of mean messages, at least 1.

    In sampled batches with factors they are degrees in the whole graph.

    Args:
        batch: A batch.
        num_nodes: N.

    Returns:
        float32 [G, N].

    Example:
    >>> import keras
    >>> batch = {"edge": {"receiver": [[0, 0, 2]]}}
    >>> keras.ops.convert_to_numpy(message_counts(batch, 2)).tolist()
    [[2.0, 1.0]]
    """
    factor, degree = edge_factor(batch), whole_degree(batch, num_nodes)
    if factor is None or degree is None:
        return in_degrees(batch["edge"], num_nodes, factor)
    return ops.maximum(degree, 1.0)


def forces_on_nodes(slopes, edge, num_nodes):
    """Compute forces on nodes from the gradient of an energy by edge displacements.

    With d_e = r_sender - r_receiver, F_i = -dE/dr_i is the sum of dE/d(d_e) over the
    edges into i minus the sum over the edges out of i.

    Args:
        slopes: float [G, E, 3], dE/d(d_e); 0 for padded edges.
        edge: `batch["edge"]` with `sender` and `receiver` int32 [G, E].
        num_nodes: N.

    Returns:
        float [G, N, 3], energy per angstrom.

    Example:
    >>> import numpy as np
    >>> edge = {"sender": np.array([[1]]), "receiver": np.array([[0]])}
    >>> forces = forces_on_nodes(np.array([[[1.0, 0.0, 0.0]]]), edge, 2)
    >>> float(forces[0, 0, 0]), float(forces[0, 1, 0])
    (1.0, -1.0)
    """
    ends = {name: ops.convert_to_tensor(edge[name]) for name in ("sender", "receiver")}
    slopes = ops.convert_to_tensor(slopes)
    into = graph_ops.batched_segment_sum(
        slopes, ends["receiver"], num_nodes, is_sorted=True
    )
    return into - graph_ops.batched_segment_sum(slopes, ends["sender"], num_nodes)


def cell_volumes(cell):
    """Return the volumes of cells.

    Args:
        cell: float [..., 3, 3], one vector per row, angstrom.

    Returns:
        float [...], cubic angstrom; 0 for vectors that are missing or not independent.

    Example:
    >>> import numpy as np
    >>> float(cell_volumes(np.diag([1.0, 2.0, 3.0])))
    6.0
    """
    cell = ops.convert_to_tensor(cell)
    (a, b, c), (d, e, f), (g, h, i) = (
        [cell[..., row, column] for column in range(3)] for row in range(3)
    )
    volume = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    volume = ops.abs(volume)
    lengths = ops.sum(ops.square(cell), axis=-1)
    # Of the squares: roots have no gradient at 0.
    bound = ops.prod(lengths, axis=-1)
    return ops.where(ops.square(volume) > _FLAT**2 * bound, volume, 0.0)


def stresses_of_graphs(slopes, batch):
    """Compute stresses from the gradient of energies by the displacements of edges.

    A strain e turns a displacement d into d + d e, so that, with the volume V,

        stress = dE/de / V = sum over edges of (d g^T + g d^T) / (2 V),   g = dE/dd

    Args:
        slopes: float [G, E, 3], dE/dd, energy per angstrom; 0 for padded edges.
        batch: A batch with `edge["displacement"]` float [G, E, 3], angstrom, and
            `graph["cell"]` float [G, B, 3, 3], angstrom.

    Returns:
        float [G, B, 6], energy per cubic angstrom, xx, yy, zz, yz, xz, xy, positive
        under tension, as in ASE; 0 for cells without a volume. And the volumes, float
        [G, B].

    Example:
    >>> import numpy as np
    >>> one = np.ones((1, 1), np.int32)
    >>> batch = {
    ...     "edge": {"displacement": [[[2.0, 0, 0]]], "receiver": 0 * one},
    ...     "node": {"mask": one == 1, "graph_id": 0 * one},
    ...     "graph": {"mask": one == 1, "cell": np.diag([2.0, 1, 1])[None, None]},
    ... }
    >>> stress, volume = stresses_of_graphs(np.array([[[3.0, 0, 0]]]), batch)
    >>> float(stress[0, 0, 0]), float(volume[0, 0])
    (3.0, 2.0)
    """
    slopes = ops.convert_to_tensor(slopes)
    displacement = ops.convert_to_tensor(batch["edge"]["displacement"])
    displacement = ops.cast(displacement, slopes.dtype)
    products = [
        (displacement[..., a] * slopes[..., b] + displacement[..., b] * slopes[..., a])
        / 2
        for a, b in VOIGT
    ]
    ids = ops.convert_to_tensor(batch["node"]["graph_id"])
    receiver = ops.convert_to_tensor(batch["edge"]["receiver"])
    # By nodes first: the receivers of padded edges are none.
    nodes = graph_ops.batched_segment_sum(
        ops.stack(products, axis=-1), receiver, ops.shape(ids)[1], is_sorted=True
    )
    graphs = ops.shape(batch["graph"]["mask"])[1]
    derivative = graph_ops.batched_segment_sum(nodes, ids, graphs)
    cell = ops.convert_to_tensor(batch["graph"]["cell"])
    volume = cell_volumes(ops.cast(cell, slopes.dtype))
    solid = volume > 0
    factor = ops.where(solid, 1.0 / ops.where(solid, volume, 1.0), 0.0)
    return derivative * ops.expand_dims(factor, -1), volume
