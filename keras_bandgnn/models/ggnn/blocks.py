"""Steps of a GGNN that update the active blocks of nodes only."""

from keras import ops

from keras_bandgnn import ops as kernels
from keras_bandgnn.primitives.active_blocks import prepare_steps
from keras_bandgnn.primitives.propagation import scheduled_steps


def update_blocks(
    states, plan, num_steps: int, message_passing, update, training: bool = False
):
    """Node states after T steps under a `ReceptiveField` with order="blocks".

    Args:
        states: [G, N, H].
        plan: `x["plan"]`.
        num_steps: T.
        message_passing: A `BandedMessagePassing`.
        update: A `GRUUpdate`.
        training: Whether to drop out.

    Returns:
        [G, N, H]; right in the rows of the nodes that are read.
    """
    steps = scheduled_steps(plan, num_steps)
    prepared = prepare_steps(
        plan, steps, message_passing.num_edge_types, message_passing.compute_dtype
    )
    order, place = plan["blocks"]["order"], plan["blocks"]["place"]
    groups, num_nodes, width = ops.shape(states)
    num_blocks = ops.shape(order)[1]
    (size,) = {int(key.split(":")[1]) for key in plan if key.startswith("banded:")}

    def moved(x, ids):
        x = ops.reshape(x, (groups, num_blocks, size, width))
        x = kernels.batched_gather(x, ids)
        return ops.reshape(x, (groups, num_blocks * size, width))

    states = ops.pad(states, ((0, 0), (0, num_blocks * size - num_nodes), (0, 0)))
    states = moved(states, order)
    for step, own in zip(steps, prepared, strict=True):
        rows = ops.shape(step["block"])[1] * size
        sums = message_passing.prepare(own, rows)
        messages = message_passing(states, sums, training=training)
        new = update(messages, states[:, :rows], training=training)
        states = ops.concatenate([new, states[:, rows:]], axis=1)
    return moved(states, place)[:, :num_nodes]
