"""`GraphSegments`: sums and means over the nodes of each graph of a batch."""

import numpy as np
from keras import ops

from keras_bandgnn.ops.batched import batched_gather, batched_segment_sum
from keras_bandgnn.ops.sequence import over_devices

_LONG, _RUN = 2048, 64


class GraphSegments:
    """The graphs of a batch as segments of its nodes, without padding.

    Args:
        batch: A batch (see `keras_bandgnn.batch`); it reads `"node"` and `"graph"`.

    Attributes:
        num_graphs: B.
        mask: bool [G, N], whether the node is real.
        counts: int32 [G, B], nodes of the graph.
        slot: int32 [G, N], graph of the node; padding is in the last one.
        ids: int32 [G, N], the same, but B for padding.
    """

    def __init__(self, batch):
        self.counts = ops.convert_to_tensor(batch["graph"]["n_node"])
        self.num_graphs = ops.shape(self.counts)[1]
        self.mask = ops.convert_to_tensor(batch["node"]["mask"])
        self.slot = ops.cast(batch["node"]["graph_id"], "int32")
        # Padding is in an extra segment, which sums drop.
        self.ids = ops.where(self.mask, self.slot, self.num_graphs)

    def sum(self, rows):
        """Return the sums [G, B, ...] of node rows [G, N, ...].

        Graphs of thousands of nodes are summed in runs of `_RUN` nodes, whose sums are
        summed: rounding errors of one long sum grow with its length.
        """
        nodes, graphs = self.mask.shape[1], self.num_graphs
        is_static = isinstance(nodes, int) and isinstance(graphs, int)
        if not is_static or nodes < _LONG or graphs > _RUN:
            return over_devices(batched_segment_sum(rows, self.ids, graphs))
        runs = -(-nodes // _RUN)
        # Segments of padding are dropped for each run.
        first = np.repeat(graphs * np.arange(runs), _RUN)[None, :nodes]
        ids = self.ids + ops.convert_to_tensor(first, "int32")
        ids = ops.where(self.mask, ids, runs * graphs)
        sums = batched_segment_sum(rows, ids, runs * graphs)
        shape = (ops.shape(rows)[0], runs, graphs, *ops.shape(rows)[2:])
        sums = ops.sum(ops.reshape(sums, shape), axis=1)
        return over_devices(sums)

    def mean(self, rows):
        """Return the means [G, B, C] of node rows [G, N, C]; 0 without nodes."""
        sums = self.sum(rows)
        counts = ops.cast(ops.maximum(self.counts, 1), sums.dtype)
        return sums / ops.expand_dims(counts, axis=-1)

    def gather(self, values):
        """Gather values [G, B, ...] of the graph of each node, [G, N, ...]."""
        return batched_gather(values, self.slot)
