"""`EdgeMessages`: rows of edges from rows of nodes, and back, without a plan."""

from typing import NamedTuple

from keras import ops

from keras_bandgnn.batch import MESSAGE_WEIGHT
from keras_bandgnn.layers.batch_layer import (
    batch_part,
    edge_factor,
    receiver_rows,
    whole_degree,
)
from keras_bandgnn.layers.typed_edges import type_count, typed_receivers
from keras_bandgnn.ops.batched import (
    batched_gather,
    batched_segment_max,
    batched_segment_sum,
)

# Below every message, and finite in half precision.
_LOWEST = -6e4


def _scaled(messages, factor):
    """Return messages [G, E, ...] times the factor of each edge [G, E]."""
    if factor is None:
        return messages
    axes = (1,) * (len(messages.shape) - 2)
    factor = ops.reshape(factor, (*ops.shape(factor), *axes))
    return messages * ops.cast(factor, messages.dtype)


class EdgeMessages(NamedTuple):
    """The edges of a batch, for layers whose messages depend on the edge.

    Attributes:
        sender: int32 [G, E].
        receiver: int32 [G, E]; N for padding.
        num_nodes: N.
        factor: float32 [G, E], how often each edge counts; None for once.
        in_degree: float32 [G, N], edges into each node of the whole graph in sampled
            batches; None for those of the batch.
        weight: float32 [G, E], factor of each message in sums, which does not change
            how often its edge counts; None for 1.
        is_sorted: Whether `receiver` is sorted.
    """

    sender: object
    receiver: object
    num_nodes: int
    factor: object = None
    in_degree: object = None
    weight: object = None
    is_sorted: bool = True

    @classmethod
    def of(cls, batch, states, weighted: bool = False) -> "EdgeMessages":
        """Return the edges of a batch.

        Args:
            batch: A batch.
            states: [G, M, ...], rows of its nodes; M = N but in a hop of a sampled
                batch, where the first N of them receive messages.
            weighted: Whether sums have the weights of a loader with `edge_weight`.
        """
        edge = batch_part(batch, "edge")
        num_nodes = ops.shape(receiver_rows(states, batch))[1]
        return cls(
            ops.convert_to_tensor(edge["sender"]),
            ops.convert_to_tensor(edge["receiver"]),
            num_nodes,
            edge_factor(batch),
            whole_degree(batch, num_nodes),
            edge.get(MESSAGE_WEIGHT) if weighted else None,
        )

    def by_type(self, batch, num_types: int) -> "EdgeMessages":
        """Return the edges with a receiver for each node and type of edge.

        Args:
            batch: The batch.
            num_types: P; the receiver of an edge of type p into node n is n P + p.
        """
        num_rows, degree = self.num_nodes * num_types, None
        if self.factor is not None:
            degree = type_count(batch, self.num_nodes, num_types)
            degree = ops.reshape(degree, (-1, num_rows))
        return self._replace(
            receiver=typed_receivers(batch, self.num_nodes, num_types),
            num_nodes=num_rows,
            in_degree=degree,
            is_sorted=False,
        )

    def sent(self, rows):
        """Return the rows [G, E, ...] of the senders, of [G, N, ...]."""
        return batched_gather(rows, self.sender)

    def received(self, rows):
        """Return the rows [G, E, ...] of the receivers, of [G, N, ...]."""
        return batched_gather(rows, ops.minimum(self.receiver, self.num_nodes - 1))

    def fused(self, operation, *arguments):
        """Return an operation of `ops.edges` for these edges, or None.

        Args:
            operation: The operation, which takes sender and receiver last.
            *arguments: Its other arguments.
        """
        if self.factor is not None or self.weight is not None:
            return None
        return operation(*arguments, self.sender, self.receiver)

    def fused_sum(self, operation, *arguments):
        """Run `fused` for operations whose result has rows of nodes."""
        total = self.fused(operation, *arguments)
        return None if total is None else total[:, : self.num_nodes]

    def total(self, messages):
        """Return the sum [G, N, ...] of messages [G, E, ...] at their receivers."""
        return self._sum(_scaled(messages, self.weight))

    def _sum(self, messages):
        messages = _scaled(messages, self.factor)
        return batched_segment_sum(
            messages, self.receiver, self.num_nodes, self.is_sorted
        )

    def count(self):
        """Return the sum of the factors of the edges of each node, float32 [G, N, 1].

        Without factors it is the number of edges that the batch has.
        """
        ones = ops.ones((*ops.shape(self.receiver), 1), dtype="float32")
        return self._sum(ones)

    def degree(self):
        """Return the number of edges into each node, float32 [G, N, 1].

        In sampled batches it is that of the whole graph, of which they have a part.
        """
        if self.in_degree is None:
            return self.count()
        return ops.expand_dims(self.in_degree, -1)

    def mean(self, messages, count=None):
        """Return the mean [G, N, U] of messages [G, E, U]; 0 without any.

        In sampled batches with factors it is the sum over the degree in the whole
        graph, which is unbiased.

        Args:
            messages: The messages.
            count: What to divide their sum by instead.
        """
        return self.divided(self.total(messages), count)

    def divided(self, total, count=None):
        """Return the mean [G, N, U] of messages, from their sum; see `mean`."""
        if count is None:
            count = self.count() if self.factor is None else self.degree()
        count = ops.where(count > 0, count, 1.0)
        return total / ops.cast(count, total.dtype)

    def largest(self, messages):
        """Return the maximum [G, N, U] of messages [G, E, U]; 0 without any."""
        if self.factor is not None:
            seen = ops.expand_dims(self.factor > 0, -1)
            messages = ops.where(seen, messages, _LOWEST)
        top = batched_segment_max(
            messages, self.receiver, self.num_nodes, self.is_sorted
        )
        if self.factor is None:
            return top
        return ops.where(top > _LOWEST, top, ops.zeros_like(top))

    def smallest(self, messages):
        """Return the minimum [G, N, U] of messages [G, E, U]; 0 without any."""
        return -self.largest(-messages)
