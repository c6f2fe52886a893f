"""`GPSBackbone`: message passing in parallel with attention between nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import (
    divisor,
    fraction,
    one_of,
    optional,
    positive_int,
    positive_number,
    refuse,
)
from keras_bandgnn.layers.dual_interleaved_attention import DualInterleavedAttention
from keras_bandgnn.layers.gated_graph_convolution import GatedGraphConvolution
from keras_bandgnn.layers.gin_convolution import GINConvolution
from keras_bandgnn.layers.graph_attention_v2 import GraphAttentionV2
from keras_bandgnn.layers.pna_convolution import PNAConvolution
from keras_bandgnn.layers.sage_convolution import SAGEConvolution
from keras_bandgnn.models.graph_transformer.graph_transformer_backbone import (
    check_length,
    pairs,
)
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone,
)
from keras_bandgnn.models.message_passing.pna_backbone import mean_log_degree

if TYPE_CHECKING:
    import numpy as np

    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Config,
        GPSOptions,
        Layer,
        Values,
    )
    from keras_bandgnn.data.flat import FlatGraphs

# Message passing by name, as functions of a backbone and common options.
LOCAL = {
    "gine": lambda b, **o: GINConvolution(
        b.hidden_dim,
        activation=b.activation,
        train_epsilon=False,
        num_edge_types=max(b.num_edge_types, 1),
        **o,
    ),
    "gatedgcn": lambda b, **o: GatedGraphConvolution(b.hidden_dim, **o),
    "gatv2": lambda b, **o: GraphAttentionV2(
        b.hidden_dim, b.num_heads, b.attention_dropout, **o
    ),
    "sage": lambda b, **o: SAGEConvolution(
        b.hidden_dim, num_edge_types=max(b.num_edge_types, 1), **o
    ),
    "pna": lambda b, **o: PNAConvolution(b.hidden_dim, b.delta or 1.0, **o),
}
# Fixed options of `MessagePassingBackbone`.
_FIXED = {
    "residual": True,
    "feed_forward": True,
    "ego_separation": False,
    "activation_first": False,
}
ATTENTION = ("full", "sparse", "periodic")


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GPSBackbone(MessagePassingBackbone):
    """L layers of message passing and, in parallel, attention between nodes.

        a = norm(h + dropout(message(h, e)))
        b = norm(h + dropout(attend(h)))
        h' = norm(a + b + W_2 activation(W_1 (a + b)))

    with hidden width 2 H and dropout after each map of the last line; the three norms
    have weights of their own. Messages go along the graph's own edges with their
    features. Attention is `DualInterleavedAttention`, between all nodes of a graph and
    never between graphs. Positions of nodes come from encodings among `inputs`, such as
    the random walks of `StructuralEncoding`.

    To put another layer of messages beside attention, override `message_layer`.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L.
        local: Messages: `"gine"`, `"gatedgcn"`, `"gatv2"`, `"sage"` or `"pna"`, as in
            the backbones of these names; None for attention alone.
        num_heads: K, a divisor of H.
        attention: `"full"`: between all nodes of a graph. `"sparse"`: along edges and
            to the node itself. `"periodic"`: sparse, and full in every `full_every`-th
            layer.
        full_every: See `"periodic"`.
        attention_dropout: Dropout rate of the attention weights.
        max_length: The most nodes that a graph may have. Full attention then costs its
            square for each graph of a batch. By default graphs may have any size, and
            that of the largest graph given to `fit` takes its place in batches without
            larger ones; full attention in other batches costs the square of their
            nodes.
        fused: Whether full attention uses `keras.ops.dot_product_attention`, without
            dropout.
        delta: Of `"pna"`, see `PNABackbone`.
        usual_length: Nodes of the largest graph given to `fit`, as saved; None before
            training. It changes no result.
        **kwargs: Options of `MessagePassingBackbone`: `edge_inputs, num_edge_types,
            norm, activation, dropout, input_dropout, jumping_knowledge, virtual_node,
            remat`.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`, `"graph"`, `"edge"`, and
        `"plan"` for `"gine"` and `"sage"` without edge features.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range, and graphs of more than `max_length`
            nodes.

    Reference:
        Rampášek et al. 2022, https://arxiv.org/abs/2205.12454. For molecules of ZINC:
        L = 10, H = 64, K = 4, `"gine"`, batch normalisation, random walks of 20 steps,
        attention dropout 0.5.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = GPSBackbone(
    ...     {"h": {"features": 2}}, 8, 2, edge_inputs={"bond": 4}, num_heads=2
    ... )
    >>> graph = kb.Graph(
    ...     3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3}, edge={"bond": [1, 3]}
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = False
    shares_preparation = True
    takes_pooling = False
    # Attention reads all nodes.
    is_local = False
    trims_hops = False

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        local: str | None = "gine",
        num_heads: int = 4,
        attention: str = "full",
        full_every: int = 2,
        attention_dropout: float = 0.0,
        max_length: int | None = None,
        fused: bool = False,
        delta: float | None = None,
        usual_length: int | None = None,
        **kwargs: Unpack[GPSOptions],
    ):
        for name, value in _FIXED.items():
            if (other := kwargs.pop(name, value)) != value:
                refuse(
                    name,
                    f"{value}, as layers of GPS have it",
                    other,
                    "Leave it out, or take another backbone.",
                )
        super().__init__(inputs, hidden_dim, num_layers, **_FIXED, **kwargs)
        # === Config ===
        self.local = optional(one_of, "local", local, tuple(LOCAL))
        self.num_heads = divisor("num_heads", num_heads, "hidden_dim", self.hidden_dim)
        self.attention = one_of("attention", attention, ATTENTION)
        self.full_every = positive_int("full_every", full_every)
        self.attention_dropout = fraction("attention_dropout", attention_dropout)
        self.max_length = optional(positive_int, "max_length", max_length)
        self.delta = optional(positive_number, "delta", delta)
        self.usual_length = optional(positive_int, "usual_length", usual_length)
        # === Layers ===
        self.attentions = [
            DualInterleavedAttention(
                self.num_heads,
                self.hidden_dim // self.num_heads,
                self.pattern_of(number),
                dropout=self.attention_dropout,
                max_length=self.max_length,
                fused=fused,
                usual_length=self.usual_length,
                dtype=self.dtype_policy,
                name=f"attention_{number}",
            )
            for number in range(self.num_layers)
        ]
        self.fused = self.attentions[0].fused
        norms = [
            self._norm_layer(f"attention_norm_{number}")
            for number in range(self.num_layers)
        ]
        self.attention_norms = [norm for norm in norms if norm is not None]
        self.make_layers()

    def pattern_of(self, layer: int) -> str:
        """Return the pattern of a layer's attention, `"sparse"` or `"full"`."""
        if self.attention == "periodic":
            return "sparse" if (layer + 1) % self.full_every else "full"
        return self.attention

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer; None for attention alone."""
        if self.local is None:
            return None
        options = {"dtype": self.dtype_policy, "name": f"message_{number}"}
        return LOCAL[self.local](self, **options)

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        if not self.messages and self.edge_encoder is not None:
            raise ValueError(
                "Expected no `edge_inputs` with local=None, which has no messages. "
                f"Received: {sorted(self.edge_encoder.inputs)}. Name a layer."
            )
        for layer in (*self.attentions, *self.attention_norms):
            layer.build((None, None, self.hidden_dim))
        super().build(input_shape)

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if graphs do not fit."""
        super().check(graphs)
        check_length(graphs, self.max_length)

    def adapt(self, parts: Sequence[FlatGraphs]) -> bool:
        """Set `delta` and `usual_length` from the training graphs.

        Args:
            parts: The graphs, each part a `FlatGraphs`.

        Returns:
            Whether the model's computation has changed.
        """
        before = self.variant
        if self.local == "pna" and self.delta is None:
            self.delta = mean_log_degree(parts)
            for layer in self.messages:
                layer.delta = self.delta
        largest = max((int(p.num_nodes.max()) for p in parts if len(p)), default=0)
        if largest > (self.usual_length or 0):
            self.usual_length = largest
            for layer in self.attentions:
                layer.usual_length = largest
        return self.variant != before

    @property
    def variant(self) -> tuple:
        """Degrees and largest size of the training graphs, constants of programs."""
        return self.delta, self.usual_length

    def _layer(self, number, states, edge_states, batch, training):
        """Return the states after a layer, and those of the edges."""
        total = None
        if self.messages:
            edge_inputs = () if edge_states is None else (edge_states,)
            message = self.messages[number](
                states, batch, *edge_inputs, training=training
            )
            if isinstance(message, tuple):
                message, new = message
                edge_states = edge_states + self.activation(new)
            total = self._added(self.norms, number, states, message, batch, training)
        # Attention uses all edges, without a plan.
        edges = {name: batch["edge"][name] for name in ("sender", "receiver")}
        message = self.attentions[number](
            states, {**batch, "edge": edges, "plan": {}}, training=training
        )
        seen = self._added(
            self.attention_norms, number, states, message, batch, training
        )
        total = seen if total is None else total + seen
        return self._fed_forward(number, total, batch, training), edge_states

    def _added(self, norms, number, states, message, batch, training):
        """Add the message of a branch to states, and normalise."""
        message = self.dropout_layer(message, training=training)
        return self._normalized(norms, number, states + message, batch, training)

    def _layers_of(self, number: int) -> list:
        """Return the sublayers of a layer that hold state."""
        lists = (self.attentions, self.attention_norms)
        sublayers = [layers[number] for layers in lists if layers]
        return [*super()._layers_of(number), *sublayers]

    def attention_terms(self, batch: Batch) -> list:
        """Return queries and keys of all nodes per layer, float32 [G, N, H]."""
        out = []
        inputs = [states for states, _ in self.steps(batch)][1:]
        for layer, states in zip(self.attentions, inputs, strict=True):
            rows = layer.query_dense(states), layer.key_dense(states)
            query, key = (ops.cast(tensor, "float32") for tensor in rows)
            out.append({"query": query, "key": key})
        return out

    def attention_pairs(
        self, number: int, terms: Values, graph: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `GraphTransformerBackbone.attention_pairs`; terms are [n, H]."""
        return pairs(self.attentions[number], terms, graph._replace(edge={}))

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        config = super().get_config()
        for name in _FIXED:
            del config[name]
        names = (
            "local",
            "num_heads",
            "attention",
            "full_every",
            "attention_dropout",
            "max_length",
            "fused",
            "delta",
            "usual_length",
        )
        return {**config, **{name: getattr(self, name) for name in names}}
