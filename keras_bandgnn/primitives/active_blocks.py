"""`ActiveBlocks`: the blocks of `Banded` that a step of a schedule updates."""

from collections.abc import Mapping

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import positive_int
from keras_bandgnn.host_keras import ops
from keras_bandgnn.primitives.banded import Banded, neighbours_matmul
from keras_bandgnn.primitives.base import PlanPart, part_of


class ActiveBlocks(PlanPart):
    """`Banded` for the first A blocks of receivers; the senders are all K blocks.

    Blocks are in order of their last active step, so each step uses a prefix of the
    dense blocks without copying. `prepare_steps` computes its arrays on the device, so
    a plan cannot assign edges to it.

    Args:
        block_size: S.
    """

    name = "active"

    def __init__(self, block_size: int):
        self.block_size = positive_int("block_size", block_size)

    def prepare(self, arrays: dict, num_nodes: int, num_types: int, dtype: str) -> dict:
        """Keep the `num_nodes` = A * S rows that the step updates."""
        count = num_nodes // self.block_size
        return {
            **arrays,
            "blocks": arrays["blocks"][:, :count],
            "degree": arrays["degree"][:, :num_nodes],
        }

    def degree(self, prepared: dict, num_nodes: int, num_types: int):
        """Sum the weights of each receiver's edges per type, [G, A * S, P]."""
        return prepared["degree"]

    def typed_sum(self, prepared: dict, x, num_types: int):
        """Sum the senders' states per receiver and type.

        Args:
            prepared: Result of `prepare`.
            x: [G, K * S, H], in the order of the blocks.
            num_types: P.

        Returns:
            [G, A * S, P * H].
        """
        size = self.block_size
        groups, rows, width = ops.shape(x)
        x = ops.reshape(x, (groups, rows // size, size, width))
        count = ops.shape(prepared["preceding"])[1]
        ends = (prepared["preceding"], prepared["following"])
        before, after = (graph_ops.batched_gather(x, ids) for ids in ends)
        neighbours = (before, x[:, :count], after)
        return neighbours_matmul(prepared["blocks"], neighbours, num_types)


def has_blocks(plan: Mapping) -> bool:
    """Return whether `x["plan"]` has a `ReceptiveField` with order="blocks"."""
    return "blocks" in plan


def prepare_steps(plan: Mapping, steps, num_types: int, dtype: str) -> list[dict]:
    """Compute the dense blocks, once for all steps.

    Args:
        plan: `x["plan"]`.
        steps: Its steps, see `scheduled_steps`.
        num_types: P.
        dtype: Compute dtype.

    Returns:
        For each step a plan of the first A blocks, for `primitives.prepare`.
    """
    banded, edges = part_of(plan, Banded)
    size, place = banded.block_size, plan["blocks"]["place"]
    num_blocks = ops.shape(place)[1]
    # Move the senders along with the receiver's block, so that they stay in the same,
    # the preceding or the following block.
    block = edges["receiver"] // size
    shift = (graph_ops.batched_gather(place, block) - block) * size
    moved = {name: edges[name] + shift for name in ("sender", "receiver")}
    num_nodes = num_blocks * size
    arrays = banded.prepare({**edges, **moved}, num_nodes, num_types, dtype)
    whole = {
        "blocks": arrays["blocks"],
        "degree": banded.degree(arrays, num_nodes, num_types),
    }
    plans = []
    for step in steps:
        # The dense blocks are zero beyond the first and the last block.
        before = ops.maximum(step["block"] - 1, 0)
        after = ops.minimum(step["block"] + 1, num_blocks - 1)
        active = {
            **whole,
            "preceding": graph_ops.batched_gather(place, before),
            "following": graph_ops.batched_gather(place, after),
        }
        others = {name: values for name, values in step.items() if name != "block"}
        plans.append({ActiveBlocks(size).key(): active, **others})
    return plans
