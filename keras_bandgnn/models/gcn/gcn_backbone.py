"""`GCNBackbone`: the graph convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import boolean, optional, positive_int
from keras_bandgnn.layers.graph_convolution import GraphConvolution
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Activation, Config, ConvolutionOptions, Layer


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GCNBackbone(MessagePassingBackbone):
    """L graph convolutions over embedded features.

        h(1) = S encode(features) + b_1
        h(l) = S r(h(l-1)) W_l + b_l,  l = 2 .. L

    with S = D^-1/2 (A + I) D^-1/2 and r the ReLU. The linear map of the features is the
    first layer's W, as in the paper; the head of a task follows the last layer without
    an activation. The plan in the batch carries the sums out, see `GraphConvolution`.

    Norm, residual connections and the other options are those of
    `MessagePassingBackbone`; with `activation_first=False` each layer ends with
    activation and dropout, also the last.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        num_edge_types: P, types of edges that graphs may have; all count alike.
        dropout: Dropout rate of the states between two layers.
        last_kernel: Whether the last layer has a W. Without one a task's head is the
            only map after the last sum.
        first_kernel: Whether the first layer has a W of its own. By default only with
            `residual` or `ego_separation`, which read the embedded features, too.
        norm: As for `MessagePassingBackbone`.
        activation: Name of the activation, or a function.
        input_dropout: Dropout rate of the features given as `{"features": F}`; None for
            that of `dropout`.
        residual: As for `MessagePassingBackbone`: True, False or `"linear"`.
        activation_first: Whether activation and dropout come before a layer, rather
            than after it.
        **kwargs: Further options of `MessagePassingBackbone`: `feed_forward,
            jumping_knowledge, virtual_node, ego_separation, remat,
            embeddings_initializer, pooling`.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"plan"`, `"edge"`
        and `"graph"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Kipf and Welling 2017, https://arxiv.org/abs/1609.02907: L = 2, H = 16, dropout
        0.5. Luo et al. 2024, https://arxiv.org/abs/2406.08993: up to 12 layers, H = 64
        to 512, `activation_first=False`, and for most graphs `norm="layer"` or
        `"batch"` and `residual="linear"`.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = GCNBackbone({"h": {"features": 2}}, hidden_dim=8)
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True
    sums_messages = True
    reads_edge_states = False

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 2,
        *,
        num_edge_types: int = 1,
        dropout: float = 0.0,
        last_kernel: bool = True,
        first_kernel: bool | None = None,
        norm: str | None = None,
        activation: Activation = "relu",
        input_dropout: float | None = None,
        residual: bool | str = False,
        activation_first: bool = True,
        **kwargs: Unpack[ConvolutionOptions],
    ):
        super().__init__(
            inputs,
            hidden_dim,
            num_layers,
            num_edge_types=positive_int("num_edge_types", num_edge_types),
            norm=norm,
            activation=activation,
            dropout=dropout,
            input_dropout=input_dropout,
            residual=residual,
            activation_first=activation_first,
            **kwargs,
        )
        # === Config ===
        self.last_kernel = boolean("last_kernel", last_kernel)
        self.first_kernel = optional(boolean, "first_kernel", first_kernel)
        self.make_layers()

    def message_layer(self, number: int) -> Layer | None:
        """Return the graph convolution of a layer."""
        first = self.first_kernel
        if first is None:
            first = bool(self.residual) or self.ego_separation
        last = self.last_kernel or number < self.num_layers - 1
        return GraphConvolution(
            self.hidden_dim,
            self.num_edge_types,
            use_kernel=last and (first or number > 0),
            dtype=self.dtype_policy,
            name=f"convolution_{number}",
        )

    @property
    def convolutions(self) -> list:
        """The graph convolutions, under their name in files."""
        return self.messages

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "last_kernel": self.last_kernel,
            "first_kernel": self.first_kernel,
        }
