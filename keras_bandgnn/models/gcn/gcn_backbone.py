"""`GCNBackbone`: the graph convolutional network."""

from collections.abc import Mapping

import keras

from keras_bandgnn.checks import boolean
from keras_bandgnn.layers.graph_convolution import GraphConvolution
from keras_bandgnn.models.layered_backbone import LayeredBackbone


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GCNBackbone(LayeredBackbone):
    """L graph convolutions over embedded features.

        h(1) = S encode(features) + b_1
        h(l) = S r(h(l-1)) W_l + b_l,  l = 2 .. L

    with S = D^-1/2 (A + I) D^-1/2 and r the ReLU. The linear map of the features is the
    first layer's W, as in the paper; the head of a task follows the last layer without
    an activation. The plan in the batch carries the sums out, see `GraphConvolution`.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        num_edge_types: P, types of edges that graphs may have; all count alike.
        dropout: Share that is dropped of the features given as `{"features": F}`, and
            of the states between two layers.
        last_kernel: Whether the last layer has a W. Without one a task's head is the
            only map after the last sum.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"plan"` and `"edge"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Kipf and Welling 2017, https://arxiv.org/abs/1609.02907: L = 2, H = 16, dropout
        0.5.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = GCNBackbone({"h": {"features": 2}}, hidden_dim=8)
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    weighs_edges = True

    activation = "relu"

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 2,
        num_edge_types: int = 1,
        dropout: float = 0.0,
        last_kernel: bool = True,
        **kwargs,
    ):
        super().__init__(
            inputs, hidden_dim, num_layers, num_edge_types, dropout, **kwargs
        )
        # === Config ===
        self.last_kernel = boolean("last_kernel", last_kernel)
        # === Layers ===
        last = self.num_layers if self.last_kernel else self.num_layers - 1
        self.convolutions = [
            GraphConvolution(
                self.hidden_dim,
                self.num_edge_types,
                use_kernel=0 < number < last,
                dtype=self.dtype_policy,
                name=f"convolution_{number}",
            )
            for number in range(self.num_layers)
        ]
        self.build()

    def prepare(self, batch):
        """Return the plan and the degrees, once per batch."""
        return self.convolutions[0].prepare(batch)

    def convolve(self, layer, states, prepared, training):
        """New states from one graph convolution."""
        return layer(states, prepared)

    def get_config(self):
        """Return the arguments of the constructor."""
        return {**super().get_config(), "last_kernel": self.last_kernel}
