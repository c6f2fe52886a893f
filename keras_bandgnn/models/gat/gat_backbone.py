"""`GATBackbone`: the graph attention network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn.checks import (
    boolean,
    divisor,
    fraction,
    one_of,
    optional,
    positive_int,
)
from keras_bandgnn.layers.graph_attention import GraphAttention
from keras_bandgnn.layers.typed_edges import TYPE_REDUCTIONS
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Activation,
        Batch,
        Config,
        ConvolutionOptions,
        Layer,
        Values,
    )


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GATBackbone(MessagePassingBackbone):
    """L layers of attention to neighbours, over embedded features.

        h(1) = attend_1(encode(features))
        h(l) = attend_l(r(h(l-1))),  l = 2 .. L

    with r the ELU; see `GraphAttention`. The linear map of the features is the first
    layer's W, as in the paper; the head of a task follows the last layer without an
    activation. The heads of every layer lie side by side, also those of the last one.
    `batch["plan"]` is not read, and neither are types of edges, unless `type_reduce` is
    set. Then a node does not attend to itself: `residual=True`, `residual="linear"` or
    `ego_separation=True` add its own state.

    Norm, residual connections and the other options are those of
    `MessagePassingBackbone`; with `activation_first=False` each layer ends with
    activation and dropout, also the last.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H, all heads together.
        num_heads: K, a divisor of H.
        num_layers: L, the distance in edges that a node sees.
        num_edge_types: P, types of edges that graphs may have.
        dropout: Dropout rate of the states between two layers.
        attention_dropout: Dropout rate of the attention weights.
        first_kernel: Whether the first layer has a W of its own. By default only with
            `residual` or `ego_separation`, which read the embedded features, too, and
            always with `type_reduce`.
        norm: As for `MessagePassingBackbone`.
        activation: Name of the activation, or a function.
        input_dropout: Dropout rate of the features given as `{"features": F}`; None for
            that of `dropout`.
        residual: As for `MessagePassingBackbone`: True, False or `"linear"`.
        activation_first: Whether activation and dropout come before a layer, rather
            than after it.
        type_reduce: `"sum"` or `"mean"` of the types of edges, which then have weights
            and a softmax of their own. None if types count alike.
        **kwargs: Further options of `MessagePassingBackbone`: `feed_forward,
            jumping_knowledge, virtual_node, ego_separation, remat,
            embeddings_initializer, pooling`.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"edge"` and
        `"graph"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Velickovic et al. 2018, https://arxiv.org/abs/1710.10903: L = 2, H = 64, K = 8,
        dropout and attention_dropout 0.6. Luo et al. 2024,
        https://arxiv.org/abs/2406.08993: as for `GCNBackbone`, and with ReLUs.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = GATBackbone({"h": {"features": 2}}, hidden_dim=8, num_heads=2)
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True
    # A node attends to itself, too: its share depends on the number of messages.
    sums_messages = True
    reads_edge_states = False

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_heads: int = 8,
        num_layers: int = 2,
        *,
        num_edge_types: int = 1,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        first_kernel: bool | None = None,
        norm: str | None = None,
        activation: Activation = "elu",
        input_dropout: float | None = None,
        residual: bool | str = False,
        activation_first: bool = True,
        type_reduce: str | None = None,
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
        self.num_heads = divisor("num_heads", num_heads, "hidden_dim", self.hidden_dim)
        self.attention_dropout = fraction("attention_dropout", attention_dropout)
        self.first_kernel = optional(boolean, "first_kernel", first_kernel)
        self.type_reduce = optional(one_of, "type_reduce", type_reduce, TYPE_REDUCTIONS)
        if self.type_reduce is not None and self.first_kernel is False:
            raise ValueError(
                "Expected `first_kernel` to be None or True with `type_reduce`, as "
                "types of edges differ in W. Received: first_kernel=False, "
                f"type_reduce={type_reduce!r}. Leave one of them out."
            )
        self.make_layers()

    @property
    def means_by_type(self) -> bool:
        """Return whether sums are divided by the number of types."""
        return self.type_reduce == "mean"

    def message_layer(self, number: int) -> Layer | None:
        """Return the attention of a layer."""
        first = self.first_kernel
        if first is None:
            first = bool(self.residual) or self.ego_separation
            first = first or self.type_reduce is not None
        return GraphAttention(
            self.hidden_dim,
            self.num_heads,
            self.attention_dropout,
            use_kernel=first or number > 0,
            num_edge_types=self.num_edge_types,
            type_reduce=self.type_reduce,
            dtype=self.dtype_policy,
            name=f"attention_{number}",
        )

    @property
    def convolutions(self) -> list:
        """The layers of attention, under their name in files."""
        return self.messages

    def attention_terms(self, batch: Batch) -> list:
        """Return, per layer, the scores of senders and receivers, float32 [G, N, K]."""
        if self.type_reduce is not None:
            raise ValueError(
                "Expected a GATBackbone with one softmax per node. Received: "
                f"type_reduce={self.type_reduce!r}, with one for each type of edge. "
                "Use keras_bandgnn.explain.saliency or gnn_explainer instead."
            )
        out = []
        inputs = [states for states, _ in self.steps(batch)][1:]
        for number, states in enumerate(inputs):
            read = self.read(number, states)
            _, *scores = self.messages[number].scores(read)
            sender, receiver = (ops.cast(score, "float32") for score in scores)
            out.append({"sender": sender, "receiver": receiver})
        return out

    def attention_pairs(
        self, number: int, terms: Values, graph: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `GraphTransformerBackbone.attention_pairs`; terms are [n, K]."""
        senders, receivers = graph.senders, graph.receivers
        others = senders != receivers
        nodes = np.arange(graph.num_nodes)
        # A node attends to itself once, with or without a self-loop in the data.
        senders = np.append(senders[others], nodes)
        receivers = np.append(receivers[others], nodes)
        logits = terms["sender"][senders] + terms["receiver"][receivers]
        slope = self.messages[number].negative_slope
        return senders, receivers, np.where(logits < 0, slope * logits, logits)

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "attention_dropout": self.attention_dropout,
            "first_kernel": self.first_kernel,
            "type_reduce": self.type_reduce,
        }
