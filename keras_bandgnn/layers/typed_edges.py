"""Rows of edge types: their counts, receivers per type, and maps of senders by type."""

import keras
from keras import ops

from keras_bandgnn.batch import explained
from keras_bandgnn.layers.batch_layer import batch_part, edge_factor, whole_degree
from keras_bandgnn.ops.batched import batched_gather, batched_segment_sum
from keras_bandgnn.ops.context import is_portable

TYPE_REDUCTIONS = ("sum", "mean")
# Rows of a block, all mapped by the matrix of one type, are a multiple of it.
_BLOCK = 64


def type_kernel(layer, name: str, shape: tuple[int, int]):
    """Add a weight [P, H, U] with initial values for the fans of one matrix.

    Args:
        layer: A layer with `num_edge_types`.
        name: Name of the weight.
        shape: H and U.
    """
    limit = (6.0 / sum(shape)) ** 0.5
    return layer.add_weight(
        name=name,
        shape=(layer.num_edge_types, *shape),
        initializer=keras.initializers.RandomUniform(-limit, limit),
    )


def typed_receivers(batch, num_nodes, num_types: int):
    """Return a row per receiver and type for each edge, int32 [G, E].

    Args:
        batch: A batch, or a hop of one.
        num_nodes: N, nodes that receive messages.
        num_types: P.

    Returns:
        n P + p for an edge of type p into n, and N P for padding; not sorted.
    """
    edge = batch_part(batch, "edge")
    receiver, kind = (
        ops.convert_to_tensor(edge[name]) for name in ("receiver", "type")
    )
    row = receiver * num_types + kind
    return ops.where(receiver < num_nodes, row, num_nodes * num_types)


def type_count(batch, num_nodes, num_types: int):
    """Return the number of edges of each type into each node, float32 [G, N, P].

    In batches of a sampler whose edges have weights it is that of the whole graph, if
    the batch has it. In explanations an edge counts as often as its factor says.

    Args:
        batch: A batch, or a hop of one.
        num_nodes: N, nodes that receive messages.
        num_types: P.
    """
    factor = edge_factor(batch)
    if factor is not None and explained(batch, "edge") is None:
        sampled = batch["sampled"]
        if "type_degree" in sampled:
            return ops.convert_to_tensor(sampled["type_degree"])[:, :num_nodes]
        if num_types == 1 and "degree" in sampled:
            return ops.expand_dims(whole_degree(batch, num_nodes), -1)
    # An edge of the factor 0 is as if it were not there.
    row = typed_receivers(batch, num_nodes, num_types)
    if factor is None:
        factor = ops.ones_like(row, dtype="float32")
    factor = ops.cast(factor, "float32")
    count = batched_segment_sum(factor, row, num_nodes * num_types)
    return ops.reshape(count, (-1, num_nodes, num_types))


def types_into(count):
    """Return the number of types with an edge into each node, or 1 without any.

    Args:
        count: float32 [G, N, P], edges per receiver and type.

    Returns:
        float32 [G, N, 1].
    """
    some = ops.cast(count > 0, "float32")
    return ops.maximum(ops.sum(some, axis=-1, keepdims=True), 1.0)


def block_rows(num_edges, num_types: int, width: int) -> tuple[int, int]:
    """Return the rows of a block of senders, and the number of blocks that may occur.

    Args:
        num_edges: E.
        num_types: P.
        width: d, the rows of a matrix.
    """
    size = -(-width // _BLOCK) * _BLOCK
    return size, -(-num_edges // size) + num_types


def typed_senders(edge, num_nodes, num_types: int, width: int) -> dict:
    """Return the rows of senders that are mapped by the matrices of a type.

    A matrix [d, u] per edge would take E d u numbers. Instead there are R rows, the
    fewer of

    - N P, each node mapped for each type, and
    - E + P B at most, the senders of edges in the order of types, in blocks of B rows
      of one type. A block reads as many numbers of matrices as B = d rows have.

    Args:
        edge: Edges of a batch.
        num_nodes: N, senders.
        num_types: P.
        width: d, the rows of a matrix.

    Returns:
        `row` int32 [G, E], the row of each edge; in the second case also the node of
        each row, `sender` int32 [G, R], and the type of each block, `type` [G, R / B].
    """
    sender, kind = (ops.convert_to_tensor(edge[name]) for name in ("sender", "type"))
    num_edges = ops.shape(kind)[1]
    size, blocks = block_rows(num_edges, num_types, width)
    # Other runtimes may have no sort, and TensorFlow may trace without sizes.
    fixed = isinstance(num_nodes, int) and isinstance(num_edges, int)
    if is_portable() or not fixed or num_nodes * num_types <= blocks * size:
        return {"row": sender * num_types + kind}
    order = ops.cast(ops.argsort(kind, axis=1), "int32")
    kind = ops.take_along_axis(kind, order, axis=1)
    count = batched_segment_sum(ops.ones_like(kind), kind, num_types, is_sorted=True)
    last = ops.cumsum((count + size - 1) // size, axis=1)
    first = last - (count + size - 1) // size
    shift = first * size - (ops.cumsum(count, axis=1) - count)
    place = ops.arange(num_edges, dtype="int32") + batched_gather(shift, kind)
    number = ops.reshape(ops.arange(blocks, dtype="int32"), (1, -1, 1))
    block_kind = ops.sum(ops.cast(number >= ops.expand_dims(last, 1), "int32"), axis=-1)
    return {
        "row": batched_segment_sum(place, order, num_edges),
        "sender": batched_segment_sum(
            ops.take_along_axis(sender, order, axis=1), place, blocks * size
        ),
        "type": ops.minimum(block_kind, num_types - 1),
    }


def map_senders(rows, kernel, typed):
    """Return rows of senders times the matrices of types.

    Args:
        rows: float [G, M, K d], heads concatenated.
        kernel: float [P, K, d, u].
        typed: Result of `typed_senders`.

    Returns:
        float [G, R, K u].
    """
    types, heads, width, units = kernel.shape
    groups, count = ops.shape(rows)[:2]
    if "type" not in typed:
        # All nodes with the matrices of all types: per head [M, d] @ [d, P u].
        rows = ops.reshape(rows, (-1, heads, width))
        kernel = ops.reshape(
            ops.transpose(kernel, (1, 2, 0, 3)), (heads, width, types * units)
        )
        rows = ops.matmul(ops.transpose(rows, (1, 0, 2)), kernel)
        rows = ops.reshape(rows, (heads, groups * count * types, units))
        rows = ops.transpose(rows, (1, 0, 2))
        return ops.reshape(rows, (groups, count * types, heads * units))
    kind, sender = typed["type"], typed["sender"]
    blocks, length = ops.shape(kind)[1], ops.shape(sender)[1]
    rows = batched_gather(rows, sender)
    rows = ops.reshape(rows, (groups, blocks, length // blocks, heads, width))
    rows = ops.matmul(
        ops.transpose(rows, (0, 1, 3, 2, 4)), ops.take(kernel, kind, axis=0)
    )
    rows = ops.transpose(rows, (0, 1, 3, 2, 4))
    return ops.reshape(rows, (groups, length, heads * units))
