"""`Tiles`: edges that attention computes as dense products."""

from keras_bandgnn.checks import positive_int
from keras_bandgnn.primitives.base import PlanPart


class Tiles(PlanPart):
    """Dense tiles of b by b nodes, and the edges outside them.

    Only attention uses tiles, not sums of messages; `AttentionPlan` lays them out.
    `x["plan"]["tiles:b"]` has `row` and `column`, int32 [G, T], the receiver and sender
    block of each tile; `edge` int32 [G, T, b, b], the edge index of each pair (row,
    column), E for pairs without an edge; `rest` int32 [G, R], the edges outside tiles,
    E where padded.

    Args:
        block_size: b.

    Resources: `"tiles:b"`, tiles; `"tiles:b.rest"`, edges outside tiles.
    """

    name = "tiles"
    sequence = "whole"
    follows_edges = False

    def __init__(self, block_size: int):
        self.block_size = positive_int("block_size", block_size)

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Raise a ValueError, as sums of messages need another plan."""
        raise ValueError(
            "Expected a plan whose primitives carry messages, such as Plan(Banded(128))"
            f". Received: {self.key()!r}, tiles of an AttentionPlan. Set plan='auto'."
        )
