"""`FullyConnectedGraph`: all atoms of a molecule are neighbours."""

import keras
import numpy as np

from keras_bandgnn.preprocessing.atoms import Atoms
from keras_bandgnn.preprocessing.geometry_layer import GeometryLayer
from keras_bandgnn.preprocessing.neighbours import Pairs, everyone


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class FullyConnectedGraph(GeometryLayer):
    """Connects each atom with all others of its graph, both ways.

    N atoms have N (N - 1) edges: for small molecules. Periodic graphs are refused. One
    edge to the nearest image of each atom would leave out an atom's own images, and
    the same crystal in a larger cell would have other neighbours.

    Edges have the types 0 and the features `displacement` float32 [E, 3] (Angstrom,
    position[sender] - position[receiver], from the atom to its neighbour), `distance`
    float32 [E] (Angstrom) and, for graphs with a cell, `shift` int32 [E, 3], all 0.
    They are sorted by receiver and sender. Earlier edges, their types and features are
    dropped.

    Raises:
        ValueError: When applied: for periodic graphs, missing positions, wrong shapes
            or NaN.

    Example:
    >>> from keras_bandgnn import Graph
    >>> corner = [[0, 0, 0], [3, 0, 0], [0, 4, 0]]
    >>> graph = FullyConnectedGraph()(Graph(3, [], [], node={"position": corner}))
    >>> graph.edge["distance"].tolist()
    [3.0, 4.0, 3.0, 5.0, 4.0, 5.0]
    """

    def find(self, atoms: Atoms) -> Pairs:
        """Returns all pairs."""
        return everyone(atoms)

    def check(self, atoms: Atoms, first: int) -> None:
        """Raises a ValueError for periodic graphs."""
        repeats = np.flatnonzero(atoms.periodic.any(axis=1))
        if repeats.size:
            raise ValueError(
                "Expected graphs without periods for FullyConnectedGraph. Received: "
                f"graph {first + int(repeats[0])} is periodic. Use RadiusGraph or "
                "KNearestGraph, or set context['pbc'] to 0 for a molecule in a box."
            )
