"""The files of `kb.plans`: primitives, which sum over edges, and plans of them."""

from keras_bandgnn.primitives import active_blocks as _active_blocks  # noqa: F401
from keras_bandgnn.primitives import tiles as _tiles  # noqa: F401
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.base import Primitive
from keras_bandgnn.primitives.block_sparse import BlockSparse
from keras_bandgnn.primitives.dense import Dense
from keras_bandgnn.primitives.edges import Edges
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.plan import Plan, prepare, propagate
from keras_bandgnn.primitives.receptive_field import ReceptiveField
from keras_bandgnn.primitives.segment import Segment
from keras_bandgnn.primitives.supernode import Supernode

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
