"""Plans: which algorithm sums over which edges, and the algorithms (primitives)."""

from keras_bandgnn.primitives import Banded as Banded
from keras_bandgnn.primitives import BlockSparse as BlockSparse
from keras_bandgnn.primitives import Dense as Dense
from keras_bandgnn.primitives import Grouped as Grouped
from keras_bandgnn.primitives import Plan as Plan
from keras_bandgnn.primitives import Primitive as Primitive
from keras_bandgnn.primitives import ReceptiveField as ReceptiveField
from keras_bandgnn.primitives import Segment as Segment
from keras_bandgnn.primitives import Supernode as Supernode
from keras_bandgnn.primitives import prepare as prepare
from keras_bandgnn.primitives import propagate as propagate

__all__ = [
    "Banded",
    "BlockSparse",
    "Dense",
    "Grouped",
    "Plan",
    "Primitive",
    "ReceptiveField",
    "Segment",
    "Supernode",
    "prepare",
    "propagate",
]
