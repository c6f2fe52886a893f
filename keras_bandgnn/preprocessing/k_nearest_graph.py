"""`KNearestGraph`: the k nearest atoms or images are neighbours."""

import keras

from keras_bandgnn.checks import positive_int
from keras_bandgnn.preprocessing.atoms import Atoms
from keras_bandgnn.preprocessing.geometry_layer import GeometryLayer
from keras_bandgnn.preprocessing.neighbours import Pairs, nearest


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class KNearestGraph(GeometryLayer):
    """Connects each atom with its k nearest neighbours.

    An edge leads from the neighbour to the atom; its reverse may be missing. In
    periodic structures images in other cells count as neighbours, those of the atom
    itself, too, so every atom has k. Otherwise an atom has all others if they are
    fewer than k: none in a graph of one atom. Periodic structures need
    `pip install "keras-bandgnn[chem]"`.

    Distances that differ by less than 1e-5 Angstrom are ties: the neighbour with the
    lower id wins, then the image with the lower shift.

    Edges have the types 0 and the features `displacement` float32 [E, 3] (Angstrom,
    position[sender] + shift @ cell - position[receiver], from the atom to its
    neighbour), `distance` float32 [E] (Angstrom) and, for graphs with a cell, `shift`
    int32 [E, 3], the cell that the sender lies in. They are sorted by receiver, sender
    and shift. Earlier edges, their types and features are dropped.

    Args:
        k: Neighbours of each atom.

    Raises:
        ValueError: If `k` is not positive. When applied: for missing positions, wrong
            shapes, NaN, or a periodic graph with a flat cell.
        ImportError: When applied to a periodic graph, if matscipy is not installed.

    Example:
    >>> from keras_bandgnn import Graph
    >>> line = [[0, 0, 0], [1, 0, 0], [3, 0, 0]]
    >>> graph = KNearestGraph(1)(Graph(3, [], [], node={"position": line}))
    >>> graph.senders.tolist(), graph.edge["distance"].tolist()
    ([1, 0, 1], [1.0, 1.0, 2.0])
    """

    def __init__(self, k: int, **kwargs):
        super().__init__(**kwargs)
        self.k = positive_int("k", k)

    def find(self, atoms: Atoms) -> Pairs:
        """Returns the k nearest neighbours of each atom."""
        return nearest(atoms, self.k)

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "k": self.k}
