"""`auto_plan`: the plan for this machine."""

from keras_bandgnn import ops as kernels
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.grouped import Grouped
from keras_bandgnn.primitives.plan import Plan
from keras_bandgnn.primitives.segment import Segment


def auto_plan(num_edge_types: int, block_size: int = 128) -> Plan:
    """Dense blocks on accelerators, lists of edges on CPUs; always lossless.

    Args:
        num_edge_types: P.
        block_size: S of the banded plan.
    """
    rest = Grouped() if num_edge_types > 1 else Segment()
    if kernels.has_accelerator():
        return Plan(Banded(block_size), rest=rest)
    return Plan(rest=rest)
