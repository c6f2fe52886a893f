"""The ways to carry out a sum over edges, and the plan that chooses among them."""

from keras_bandgnn.primitives.banded import Banded as Banded
from keras_bandgnn.primitives.base import Edges as Edges
from keras_bandgnn.primitives.base import Primitive as Primitive
from keras_bandgnn.primitives.grouped import Grouped as Grouped
from keras_bandgnn.primitives.plan import Plan as Plan
from keras_bandgnn.primitives.plan import is_prepared as is_prepared
from keras_bandgnn.primitives.plan import prepare as prepare
from keras_bandgnn.primitives.plan import propagate as propagate
from keras_bandgnn.primitives.segment import Segment as Segment

__all__ = [
    "Banded",
    "Edges",
    "Grouped",
    "Plan",
    "Primitive",
    "Segment",
    "is_prepared",
    "prepare",
    "propagate",
]
