"""`VirtualNode`: a state of each graph that message passing reads and updates."""

from keras import ops

from keras_bandgnn.ops.graph_segments import GraphSegments


class VirtualNode:
    """The state [G, B, H] of each graph's virtual node."""

    def __init__(self, backbone, batch):
        self.backbone = backbone
        self.pool(batch)
        state = ops.cast(backbone.virtual_state, backbone.compute_dtype)
        shape = (*ops.shape(self.graphs.counts), backbone.hidden_dim)
        self.state = ops.broadcast_to(state, shape)

    def pool(self, batch):
        """Take the nodes of a batch as those of the graphs."""
        self.graphs = GraphSegments(batch)

    def added(self, states):
        """Add the state of each graph to its node states [G, N, H]."""
        return states + self.graphs.gather(self.state)

    def update(self, number: int, states, training):
        """Update the state with the sum of node states after a layer."""
        backbone = self.backbone
        sums = self.graphs.sum(states) + self.state
        rows = backbone.activation(backbone.virtual_inner[number](sums))
        rows = backbone.activation(backbone.virtual_outer[number](rows))
        rows = backbone.dropout_layer(rows, training=training)
        self.state = ops.add(self.state, rows) if backbone.residual else rows
