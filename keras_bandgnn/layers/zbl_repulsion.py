"""`ZBLRepulsion`: the repulsion of nuclei that are close to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.data.flat import FlatGraphs
from keras_bandgnn.layers.batch_layer import batch_part
from keras_bandgnn.layers.edge_geometry import edge_distances, message_factors
from keras_bandgnn.ops.graph_segments import GraphSegments

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, LayerOptions, Shape, Tensor

# Square of the elementary charge over 4 pi epsilon_0, eV Angstrom.
_COULOMB = 14.399645
# Ziegler, Biersack, Littmark 1985: the universal screening function and its length.
_SCREENING = (
    (0.18175, 3.19980),
    (0.50986, 0.94229),
    (0.28022, 0.40290),
    (0.02817, 0.20162),
)
_LENGTH, _POWER = 0.46850, 0.23
# Taylor coefficients of (1 - x)^-3: their product with (1 - x)^3 is 1 - O(x^6).
_SWITCH = (1.0, 3.0, 6.0, 10.0, 15.0, 21.0)
COVALENT_RADII = np.array(
    """
    0.31 0.28 1.28 0.96 0.84 0.76 0.71 0.66 0.57 0.58 1.66 1.41 1.21 1.11 1.07 1.05
    1.02 1.06 2.03 1.76 1.70 1.60 1.53 1.39 1.39 1.32 1.26 1.24 1.32 1.22 1.22 1.20
    1.19 1.20 1.20 1.16 2.20 1.95 1.90 1.75 1.64 1.54 1.47 1.46 1.42 1.39 1.45 1.44
    1.42 1.39 1.39 1.38 1.39 1.40 2.44 2.15 2.07 2.04 2.03 2.01 1.99 1.98 1.98 1.96
    1.94 1.92 1.92 1.89 1.90 1.87 1.87 1.75 1.70 1.62 1.51 1.44 1.41 1.36 1.36 1.32
    1.45 1.46 1.48 1.40 1.50 1.50 2.60 2.21 2.15 2.06 2.00 1.96 1.90 1.87 1.80 1.69
    """.split(),
    float,
)
"""Of the elements 1 to 96, Angstrom; of Mn, Fe and Co with low spin."""


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ZBLRepulsion(keras_bases.Layer):
    """Energy of the screened repulsion between the nuclei of each graph.

        E = 1/2 sum over the edges of V(d) s(d / R)
        V(d) = k Z_1 Z_2 / d  phi(d / a),  a = 0.46850 / (Z_1^0.23 + Z_2^0.23)
        phi(x) = 0.18175 e^(-3.1998 x) + 0.50986 e^(-0.94229 x)
                 + 0.28022 e^(-0.4029 x) + 0.02817 e^(-0.20162 x)
        s(t) = 1 - 28 t^6 + 48 t^7 - 21 t^8  for t < 1, else 0

    with k = 14.399645 eV Angstrom and R the sum of the covalent radii of the two atoms,
    at which the energy and its first two derivatives are 0. It has no weights. Pairs
    are edges both ways; those of atoms in one place have no energy.

    Energies are float32, under mixed precision, too.

    Input shape:
        batch: A batch (see `keras_bandgnn.batch`) with
            `batch["node"]["atomic_number"]` int32 [G, N], from 1 to 96, and
            `batch["edge"]["displacement"]` float [G, E, 3], or `["distance"]`
            [G, E], in angstrom.

    Output shape:
        float32 [G, B, 1], eV.

    Raises:
        ValueError: For a batch without geometry.

    Reference:
        Ziegler, Biersack, Littmark 1985; radii: Cordero et al. 2008; the switch is the
        envelope of Gasteiger et al. 2020 with p = 6, as in MACE.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(
    ...     2, [1, 0], [0, 1],
    ...     node={"atomic_number": [14, 14]},
    ...     edge={"displacement": [[0.0, 0.0, 0.5], [0.0, 0.0, -0.5]]},
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> round(float(ZBLRepulsion()(batch)[0, 0, 0]))
    469
    """

    splits_sequences = False

    def __init__(self, **kwargs: Unpack[LayerOptions]):
        kwargs.setdefault("dtype", "float32")
        super().__init__(autocast=False, **kwargs)

    def build(self, batch_shape: BatchShape | None = None) -> None:
        """There are no weights."""
        self.built = True

    def call(self, batch: Batch) -> Tensor:
        """Return the energy of each graph."""
        batch_part(batch, "node", "layer(batch)")
        node, edge = batch["node"], batch["edge"]
        numbers = ops.cast(node["atomic_number"], "int32")
        receiver = ops.convert_to_tensor(edge["receiver"])
        num_nodes = ops.shape(numbers)[1]
        # The receiver of padding is no node.
        ends = (edge["sender"], ops.minimum(receiver, num_nodes - 1))
        pairs = [graph_ops.batched_gather(numbers, end) for end in ends]
        distances = ops.cast(edge_distances(edge), "float32")
        distances = ops.where(edge["mask"], distances, 0.0)
        energies = 0.5 * pair_energies(*pairs, distances)
        factors = message_factors(batch)
        if factors is not None:
            energies = energies * ops.cast(factors, "float32")
        energies = graph_ops.batched_segment_sum(
            energies, receiver, num_nodes, is_sorted=True
        )
        return ops.expand_dims(GraphSegments(batch).sum(energies), -1)

    def compute_output_shape(self, batch_shape: BatchShape) -> Shape:
        """[G, B, 1]."""
        return (*batch_shape["graph"]["n_node"], 1)

    def energies_of(self, graphs: FlatGraphs) -> np.ndarray:
        """Return the energies of graphs with edges, float64 [n], eV.

        Args:
            graphs: Graphs with the features of a batch.
        """
        offset = np.repeat(graphs.node_ptr[:-1], graphs.num_edges)
        numbers = graphs.node["atomic_number"]
        pairs = [numbers[ids + offset] for ids in (graphs.senders, graphs.receivers)]
        if "displacement" in graphs.edge:
            distances = np.linalg.norm(
                graphs.edge["displacement"].astype(float), axis=1
            )
        else:
            distances = graphs.edge["distance"].astype(float)
        energies = 0.5 * pair_energies(*pairs, distances, room=np)
        graph = np.repeat(np.arange(len(graphs)), graphs.num_edges)
        return np.bincount(graph, energies, len(graphs))


def pair_energies(first, second, distances, room=ops):
    """Return the energies of pairs of atoms, eV.

    Args:
        first: int [...], atomic numbers.
        second: int [...].
        distances: float [...], angstrom.
        room: `keras.ops` or `numpy`, which computes.
    """
    numbers = np.arange(len(COVALENT_RADII) + 1)
    # Padding has the number 0, and must not divide by 0.
    tables = [numbers, numbers**_POWER, np.append(1.0, COVALENT_RADII)]
    ends = [room.clip(end, 0, len(COVALENT_RADII)) for end in (first, second)]
    (one, other), powers, radii = (
        [room.take(table.astype("float32"), end, axis=0) for end in ends]
        for table in tables
    )
    # NaN stays NaN.
    apart = distances != 0
    distances = room.where(apart, distances, 1.0)
    scaled = distances * (sum(powers) / _LENGTH)
    screening = sum(c * room.exp(-b * scaled) for c, b in _SCREENING)
    ratio = distances / sum(radii)
    series = 0.0
    for coefficient in reversed(_SWITCH):
        series = series * ratio + coefficient
    # Factored, so that nothing cancels near the outer radius.
    margin = room.maximum(1.0 - ratio, 0.0)
    energies = _COULOMB * one * other / distances * screening
    return room.where(apart, energies * margin * margin * margin * series, 0.0)
