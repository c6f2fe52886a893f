"""Plans: which algorithm sums over which edges, and the algorithms (primitives)."""

from keras_bandgnn.primitives import (
    Banded,
    BlockSparse,
    Dense,
    Grouped,
    Plan,
    Primitive,
    ReceptiveField,
    Segment,
    Supernode,
    prepare,
    propagate,
)

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
