"""The files of `kb.plans`: primitives, which sum over edges, and plans of them."""

from keras_bandgnn.primitives import active_blocks as _active_blocks  # noqa: F401
from keras_bandgnn.primitives import tiles as _tiles  # noqa: F401
from keras_bandgnn.primitives.banded import Banded as Banded
from keras_bandgnn.primitives.base import Primitive as Primitive
from keras_bandgnn.primitives.block_sparse import BlockSparse as BlockSparse
from keras_bandgnn.primitives.dense import Dense as Dense
from keras_bandgnn.primitives.edges import Edges as Edges
from keras_bandgnn.primitives.grouped import Grouped as Grouped
from keras_bandgnn.primitives.plan import Plan as Plan
from keras_bandgnn.primitives.plan import prepare as prepare
from keras_bandgnn.primitives.plan import propagate as propagate
from keras_bandgnn.primitives.receptive_field import ReceptiveField as ReceptiveField
from keras_bandgnn.primitives.segment import Segment as Segment
from keras_bandgnn.primitives.supernode import Supernode as Supernode

__all__ = [
    "Banded",
    "BlockSparse",
    "Dense",
    "Edges",
    "Grouped",
    "Plan",
    "Primitive",
    "ReceptiveField",
    "Segment",
    "Supernode",
    "prepare",
    "propagate",
]
