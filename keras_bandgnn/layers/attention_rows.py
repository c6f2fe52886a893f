"""`AttentionRows`: where nodes lie in the sequences of full attention."""

from keras import ops

from keras_bandgnn import ops as kernels


class AttentionRows:
    """Where the nodes of a batch lie in the sequences of full attention.

    Args:
        x: A batch.
        length: L, nodes of a sequence, which is a graph; None for whole supergraphs.
    """

    def __init__(self, x, length: int | None):
        self.graph = ops.convert_to_tensor(x["node"]["graph_id"])
        real = ops.convert_to_tensor(x["node"]["mask"])
        self.groups, self.nodes = ops.shape(self.graph)
        self.length = length
        counts = ops.convert_to_tensor(x["graph"]["n_node"])
        self.first = ops.cumsum(counts, axis=1) - counts
        self.slots = ops.shape(counts)[1]
        place = ops.broadcast_to(
            ops.arange(self.nodes, dtype="int32"), ops.shape(self.graph)
        )
        if length is None:
            # Rows see those of the same graph.
            self.mask = ops.where(real, self.graph + 1, 0)
            self.place = place
            return
        within = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
        self.node = ops.expand_dims(self.first, -1) + within
        inside = within < ops.expand_dims(counts, -1)
        self.node = ops.reshape(
            ops.where(inside, self.node, 0), (self.groups, self.slots * length)
        )
        self.mask = ops.reshape(ops.cast(inside, "int32"), (-1, length))
        # Padding nodes come behind the real ones and read any row.
        place = place - kernels.batched_gather(self.first, self.graph)
        self.place = ops.clip(place, 0, length - 1) + self.graph * length

    def spread(self, values):
        """[G, N, C] as sequences [R, L, C]."""
        if self.length is None:
            return values
        out = kernels.batched_gather(values, self.node)
        return ops.reshape(out, (-1, self.length, ops.shape(values)[-1]))

    def collect(self, values):
        """Sequences [R, L, C] as [G, N, C]."""
        if self.length is None:
            return values
        rows = (self.groups, self.slots * self.length, ops.shape(values)[-1])
        return kernels.batched_gather(ops.reshape(values, rows), self.place)

    def pairs(self, edge, edge_bias, self_bias, num_heads: int):
        """Positions and biases of edges and of nodes with themselves.

        Returns:
            Sequence, row and column, int32 [P] each, and biases, float [P, K].
        """
        sender, receiver = (
            ops.convert_to_tensor(edge[name]) for name in ("sender", "receiver")
        )
        real = receiver < self.nodes
        receiver = ops.minimum(receiver, self.nodes - 1)
        node = ops.broadcast_to(
            ops.arange(self.nodes, dtype="int32"), ops.shape(self.graph)
        )
        if edge_bias is None or len(edge_bias.shape) == 1:
            shape = (*ops.shape(sender), num_heads)
            start = 0.0 if edge_bias is None else edge_bias
            edge_bias = ops.broadcast_to(ops.cast(start, "float32"), shape)
        columns = [(sender, receiver, real, ops.cast(edge_bias, "float32"))]
        if self_bias is not None:
            own = ops.broadcast_to(
                ops.cast(self_bias, "float32"), (*ops.shape(node), num_heads)
            )
            columns.append((node, node, ops.ones_like(node) > 0, own))
        sender, receiver, real, bias = (
            ops.concatenate(parts, axis=1) for parts in zip(*columns, strict=True)
        )
        bias = ops.reshape(bias, (-1, num_heads))
        group = ops.expand_dims(ops.arange(self.groups, dtype="int32"), 1)
        if self.length is None:
            sequence = ops.broadcast_to(group, ops.shape(receiver))
            row, column, end = receiver, sender, self.nodes
        else:
            place = kernels.batched_gather(self.place, receiver)
            sequence = group * self.slots + place // self.length
            row, end = place % self.length, self.length
            column = kernels.batched_gather(self.place, sender) % self.length
        row = ops.where(real, row, end)
        return [ops.reshape(ids, (-1,)) for ids in (sequence, row, column)], bias
