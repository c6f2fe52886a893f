"""`RadiusGraph`: atoms closer than a cutoff are neighbours."""

import math
import numbers

import keras

from keras_bandgnn.checks import positive_int
from keras_bandgnn.preprocessing.atoms import Atoms
from keras_bandgnn.preprocessing.geometry_layer import GeometryLayer
from keras_bandgnn.preprocessing.neighbours import Pairs, nearest_of, within


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class RadiusGraph(GeometryLayer):
    """Connects each atom with all atoms at most a cutoff away, both ways.

    In periodic structures images of atoms in other cells are neighbours, too; with a
    cutoff beyond the cell there are several edges between two atoms, and edges from an
    atom to itself. Such structures need `pip install "keras-bandgnn[chem]"`.

    Edges have the types 0 and the features `displacement` float32 [E, 3] (Angstrom,
    position[sender] + shift @ cell - position[receiver], from the atom to its
    neighbour), `distance` float32 [E] (Angstrom) and, for graphs with a cell, `shift`
    int32 [E, 3], the cell that the sender lies in. They are sorted by receiver, sender
    and shift. Earlier edges, their types and features are dropped.

    Args:
        cutoff: Largest distance of neighbours, Angstrom.
        max_neighbours: Keep so many of the nearest neighbours of each atom; then an
            edge may lack its reverse. Ties as in `KNearestGraph`. None keeps all.

    Raises:
        ValueError: If the cutoff is not a positive number. When applied: for missing
            positions, wrong shapes, NaN, or a periodic graph with a flat cell.
        ImportError: When applied to a periodic graph, if matscipy is not installed.

    Example:
    >>> from keras_bandgnn import Graph
    >>> water = [[0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]]
    >>> graph = RadiusGraph(1.2)(Graph(3, [], [], node={"position": water}))
    >>> graph.senders.tolist(), graph.receivers.tolist()
    ([1, 2, 0, 0], [0, 0, 1, 2])
    >>> graph.edge["displacement"].shape
    (4, 3)
    """

    def __init__(self, cutoff: float, max_neighbours: int | None = None, **kwargs):
        super().__init__(**kwargs)
        real = isinstance(cutoff, numbers.Real) and not isinstance(cutoff, bool)
        if not real or not 0 < cutoff < math.inf:
            raise ValueError(
                "Expected `cutoff` to be a positive number of Angstrom. "
                f"Received: cutoff={cutoff!r}. For all pairs use FullyConnectedGraph."
            )
        self.cutoff = float(cutoff)
        self.max_neighbours = max_neighbours
        if max_neighbours is not None:
            self.max_neighbours = positive_int("max_neighbours", max_neighbours)

    def find(self, atoms: Atoms) -> Pairs:
        """Returns the neighbours within the cutoff."""
        pairs = within(atoms, self.cutoff)
        if self.max_neighbours is None:
            return pairs
        return nearest_of(pairs, self.max_neighbours)

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "cutoff": self.cutoff,
            "max_neighbours": self.max_neighbours,
        }
