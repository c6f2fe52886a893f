"""`MessagePassingBackbone`: base class of stacks of message passing layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import (
    boolean,
    fraction,
    mapping,
    one_of,
    optional,
    positive_int,
    refuse,
    shown,
)
from keras_bandgnn.layers.batch_layer import (
    hop_batch,
    is_symbolic,
    receiver_rows,
    takes_lookups,
)
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.layers.node_encoder import NodeEncoder, edge_encoder
from keras_bandgnn.models.backbone import Backbone, check_inputs, names_read
from keras_bandgnn.ops.lookup import first_of
from keras_bandgnn.ops.remat import checkpoint
from keras_bandgnn.registration import layer_entry

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Activation,
        Batch,
        BatchShape,
        Config,
        Initializer,
        Layer,
        ModuleOptions,
        Tensor,
    )
    from keras_bandgnn.data.flat import FlatGraphs

NORMS = ("batch", "layer", "graph", "pair")
JUMPS = ("concat", "max", "sum")
RESIDUALS = (True, False, "linear")


class MessagePassingBackbone(Backbone):
    """Layers of message passing, each with norm, activation, dropout and residual.

        h(0) = encode(node features),  e = encode(edge features)
        m(l) = message(l)(h(l-1), e)
        h(l) = h(l-1) + dropout(activation(norm(m(l))))
        h(l) = norm(h(l) + dropout(W_2 activation(W_1 h(l)))), if feed_forward

    With `activation_first` activation and dropout come before each layer but the
    first, instead of after each layer:

        h(l) = h(l-1) + norm(message(l)(dropout(activation(h(l-1))), e))

    Subclasses override `message_layer`, and list the arguments that they add in
    `get_config`.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L, the distance in edges that a node sees.
        edge_inputs: Edge features to embed, as for `NodeEncoder`; `"type"` is the type
            of the edge. None for messages without edge states.
        num_edge_types: P, types of edges that graphs may have. They count alike, unless
            `edge_inputs` has `"type"`. 0 for any, which are not read; by default 1, or
            with `edge_inputs` the size of `"type"` there, 0 without it.
        norm: `"batch"`, `"layer"`, `"graph"`, `"pair"` or None, as
            `MaskedBatchNormalization`, `LayerNormalization`,
            `GraphNormalization` and `PairNormalization`.
        activation: Name of the activation, or a function.
        dropout: Dropout rate of the states that each layer adds.
        input_dropout: Dropout rate of the features given as `{"features": F}`; None for
            that of `dropout`.
        residual: Whether layers add to the states before them, or replace them.
            `"linear"` replaces them, but adds a linear map of the states that a layer
            reads to its messages, before the norm.
        feed_forward: Whether a network with one hidden layer of width 2 H follows each
            layer.
        jumping_knowledge: Whether the output is a map of the concatenation of all
            layers' states (`"concat"`), their maximum or their sum; by default it is
            the states of the last layer.
        virtual_node: Whether each graph has a state that is added to those of its
            nodes before a layer, and updated with their sum after it.
        ego_separation: Whether a node's own state is concatenated with its message
            before the norm, and mapped to H, for graphs in which neighbours differ.
        activation_first: Whether activation and dropout come before a layer, rather
            than after it.
        remat: Whether training computes the layers again for gradients, so that memory
            is that of one layer and the states between layers.
        embeddings_initializer: Initial values of the embeddings of node features that
            are ids, see `NodeEncoder`.
        pooling: `TopKPooling` or `SAGPooling`, which keep some nodes of each graph,
            after each layer but the last, each with weights of its own; or a list of
            L - 1 such layers and None. For tasks over graphs.
    """

    splits_sequences = False
    weighs_edges = True
    trims_hops = True
    # Whether layers return new edge states.
    updates_edge_states = False
    # Whether messages can read edge states.
    reads_edge_states = True
    # Whether layers without edge states share what the first one prepares.
    shares_preparation = False
    # Whether layers read no more of a batch than `pooled_batch` changes.
    takes_pooling = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        edge_inputs: Mapping | None = None,
        num_edge_types: int | None = None,
        norm: str | None = "batch",
        activation: Activation = "relu",
        dropout: float = 0.0,
        input_dropout: float | None = 0.0,
        residual: bool | str = True,
        feed_forward: bool = False,
        jumping_knowledge: str | None = None,
        virtual_node: bool = False,
        ego_separation: bool = False,
        activation_first: bool = False,
        remat: bool = False,
        embeddings_initializer: Initializer = "uniform",
        pooling: Layer | Config | Sequence[Layer | Config | None] | None = None,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.num_layers = positive_int("num_layers", num_layers)
        self.num_edge_types = optional(
            positive_int, "num_edge_types", num_edge_types, 0
        )
        self.norm = optional(one_of, "norm", norm, NORMS)
        self.activation = keras.activations.get(activation)
        self.dropout = fraction("dropout", dropout)
        self.input_dropout = optional(fraction, "input_dropout", input_dropout)
        self.residual = one_of("residual", residual, RESIDUALS)
        self.feed_forward = boolean("feed_forward", feed_forward)
        self.jumping_knowledge = optional(
            one_of, "jumping_knowledge", jumping_knowledge, JUMPS
        )
        self.virtual_node = boolean("virtual_node", virtual_node)
        self.ego_separation = boolean("ego_separation", ego_separation)
        self.activation_first = boolean("activation_first", activation_first)
        self.remat = boolean("remat", remat)
        if pooling is not None and not self.takes_pooling:
            advice = "Use GINEBackbone, SAGEBackbone or GCNBackbone, for example."
            expected = f"None, which is all that {type(self).__name__} supports"
            refuse("pooling", expected, pooling, advice)
        # === Layers ===
        width, policy = self.hidden_dim, self.dtype_policy
        self.encoder = NodeEncoder(
            width, inputs, embeddings_initializer, dtype=policy, name="node_encoder"
        )
        edge_inputs = optional(mapping, "edge_inputs", edge_inputs)
        if edge_inputs and not self.reads_edge_states:
            raise ValueError(
                "Expected `edge_inputs` to be None, as messages of a "
                f"{type(self).__name__} have no edge states. Received: "
                f"edge_inputs={shown(edge_inputs)}. Use GINEBackbone or "
                "GATv2Backbone for graphs with edge features."
            )
        self.edge_encoder = edge_encoder(width, edge_inputs, dtype=policy)
        if not self.num_edge_types:
            inputs = {} if self.edge_encoder is None else self.edge_encoder.inputs
            read = inputs.get("type", {}).get("ids", 0)
            default = 1 if self.edge_encoder is None else 0
            self.num_edge_types = read or (default if num_edge_types is None else 0)
        self.poolings = [None] * (self.num_layers - 1)
        if pooling is not None:
            from keras_bandgnn.models.message_passing.pooling import pooling_layers

            self.poolings = pooling_layers(pooling, self.num_layers, policy)
        self.dropout_layer = Dropout(self.dropout, dtype=policy)
        self.input_dropout_layer = self.dropout_layer
        if self.input_dropout is not None:
            self.input_dropout_layer = Dropout(self.input_dropout, dtype=policy)

    @property
    def pools(self) -> bool:
        """Return whether some nodes do not reach the output."""
        return any(layer is not None for layer in self.poolings)

    @property
    def is_local(self) -> bool:
        """Return whether no norm, virtual node or pooling reads the rest of a graph."""
        return not self._options_of_graphs()

    def _options_of_graphs(self) -> list[str]:
        options = []
        if self.virtual_node:
            options.append("virtual_node=True")
        if self.norm in ("graph", "pair"):
            options.append(f"norm={self.norm!r}")
        if self.pools:
            options.append("pooling")
        return options

    def not_local(self) -> str:
        """Return the options that read more than neighbours; empty if none do."""
        options = self._options_of_graphs()
        if not options:
            return super().not_local()
        return f"{type(self).__name__} with {' and '.join(options)}"

    # === Methods to override ===

    def message_layer(self, number: int) -> Layer | None:
        """Create the message passing of a layer.

        It is called as `layer(states, batch, edge_states, training=)` and returns new
        states [G, N, H], or also new edge states [G, E, H].

        Args:
            number: Index of the layer.
        """
        raise NotImplementedError

    def prepare(self, batch: Batch) -> Batch:
        """Return the inputs that all message passing layers share, from a batch."""
        shared = self.shares_preparation and self.edge_encoder is None
        if not (shared and self.messages):
            return batch
        return {**batch, **self.messages[0].prepare(batch)}

    # === Implementation ===

    def _norm_layer(self, name: str):
        from keras_bandgnn.models.message_passing.norms import norm_layer

        return norm_layer(self.norm, dtype=self.dtype_policy, name=name)

    def make_layers(self) -> None:
        """Create all layers and build their weights; subclasses call it."""
        numbers = range(self.num_layers)

        def layers(name, make):
            candidates = [make(f"{name}_{number}") for number in numbers]
            return [layer for layer in candidates if layer is not None]

        def dense(units, name, **options):
            return FlatDense(units, dtype=self.dtype_policy, name=name, **options)

        width = self.hidden_dim
        messages = [self.message_layer(number) for number in numbers]
        self.messages = [layer for layer in messages if layer is not None]
        self.norms = layers("norm", self._norm_layer) if self.messages else []
        self.inner, self.outer, self.outer_norms = [], [], []
        if self.feed_forward:
            self.inner = layers("inner", lambda name: dense(2 * width, name))
            self.outer = layers("outer", lambda name: dense(width, name))
            self.outer_norms = layers("outer_norm", self._norm_layer)
        self.ego = []
        if self.ego_separation:
            self.ego = layers("ego", lambda name: dense(width, name))
        self.linear = []
        if self.residual == "linear":
            self.linear = layers("linear", lambda name: dense(width, name))
        self.virtual_inner, self.virtual_outer = [], []
        if self.virtual_node:
            # The state after the last layer is not read.
            self.virtual_inner, self.virtual_outer = (
                layers(name, lambda name: dense(width, name))[:-1]
                for name in ("virtual_inner", "virtual_outer")
            )
        self.jump = None
        if self.jumping_knowledge == "concat":
            self.jump = dense(width, "jump")
        self.build()

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        width = self.hidden_dim
        rows = (None, None, width)
        self.encoder.build()
        edges = ()
        if self.edge_encoder is not None:
            self.edge_encoder.build()
            edges = (rows,)
        for layer in self.messages:
            layer.build(rows, None, *edges)
        for layer in (
            *self.norms,
            *self.outer_norms,
            *self.inner,
            *self.linear,
            *self.virtual_inner,
            *self.virtual_outer,
            *filter(None, self.poolings),
        ):
            layer.build(rows)
        for layer in (*self.outer, *self.ego):
            layer.build((None, None, 2 * width))
        if self.jump is not None:
            self.jump.build((None, None, (self.num_layers + 1) * width))
        if self.virtual_node:
            self.virtual_state = self.add_weight(
                name="virtual_state", shape=(width,), initializer="zeros"
            )
        self.built = True

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the inputs of the encoders."""
        return names_read(self.encoder, self.edge_encoder)

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if the features of a `FlatGraphs` do not fit."""
        check_inputs(graphs, self.encoder, self.edge_encoder)

    def _normalized(self, norms, number, states, batch, training):
        """Apply the norm of a layer, if there are norms."""
        if not norms:
            return states
        if self.norm == "layer":
            return norms[number](states)
        if self.norm == "batch":
            return norms[number](states, batch, training=training)
        return norms[number](states, batch)

    def edge_states(self, batch: Batch) -> Tensor | None:
        """Return the embedded edge features [G, E, H], or None."""
        if self.edge_encoder is None:
            return None
        return self.edge_encoder(batch["edge"])

    def _looked_up_edges(self, batch):
        """Return the edge states as a `LookedUp`, or None."""
        if type(self.edge_encoder) is not NodeEncoder or is_symbolic(batch):
            return None
        base = MessagePassingBackbone.edge_states
        if self.updates_edge_states or type(self).edge_states is not base:
            return None
        if self.pools or not all(map(takes_lookups, self.messages)):
            return None
        return self.edge_encoder.looked_up(batch["edge"])

    def read(self, number: int, states: Tensor, training: bool = False) -> Tensor:
        """Return the inputs of message passing from the states [G, N, H] of a layer."""
        if not self.activation_first or number == 0:
            return states
        return self.dropout_layer(self.activation(states), training=training)

    def _layer(self, number, states, edge_states, batch, training):
        """Return the states after a layer, and those of the edges."""
        read = self.read(number, states, training)
        edge_inputs = () if edge_states is None else (edge_states,)
        message = self.messages[number](read, batch, *edge_inputs, training=training)
        if isinstance(message, tuple):
            message, new = message
            edge_states = edge_states + self.activation(new)
        if self.ego:
            receiver_states = receiver_rows(read, batch)
            message = self.ego[number](
                ops.concatenate([receiver_states, message], axis=-1)
            )
        if self.linear:
            message = message + self.linear[number](receiver_rows(read, batch))
        message = self._normalized(self.norms, number, message, batch, training)
        if not self.activation_first:
            message = self.dropout_layer(self.activation(message), training=training)
        states = receiver_rows(states, batch)
        states = states + message if self.residual is True else message
        if self.inner:
            states = self._fed_forward(number, states, batch, training)
        return states, edge_states

    def layer(
        self, number: int, states: Tensor, edge_states: Tensor | None, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        """Return the states after one layer, and those of the edges, for predictions.

        Args:
            number: Index of the layer.
            states: float [G, M, H].
            edge_states: float [G, E, H], or None.
            batch: Result of `prepare`, of a batch or of a hop of one.
        """
        return self._layer(number, states, edge_states, batch, training=False)

    def _fed_forward(self, number, states, batch, training):
        """Return the states after the feed-forward network of a layer."""
        rows = self.activation(self.inner[number](states))
        rows = self.dropout_layer(rows, training=training)
        rows = self.dropout_layer(self.outer[number](rows), training=training)
        return self._normalized(
            self.outer_norms, number, states + rows, batch, training
        )

    def _checkpointed_layer(self, number, states, edge_states, batch, training):
        """Run `_layer` with gradient checkpointing."""
        # Edge states are an argument of the step, so that they get gradients.
        inputs = (states,) if edge_states is None else (states, edge_states)
        unread = (None,) * (2 - len(inputs))

        def step(rows):
            rows = self._layer(number, *rows, *unread, batch, training)
            return rows[: len(inputs)]

        return (*checkpoint(step, inputs, self._layers_of(number)), *unread)

    def _layers_of(self, number: int) -> list:
        """Return the sublayers of a layer that hold state."""
        lists = (self.messages, self.norms, self.outer_norms)
        sublayers = [layers[number] for layers in lists if layers]
        return [*sublayers, self.dropout_layer]

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield the embedded features and the states after each layer.

        With `jumping_knowledge` the last ones are those that it joins.
        """
        for _, states in self.steps(batch, training):
            yield states

    def steps(self, batch: Batch, training: bool = False) -> Iterator[tuple]:
        """Yield the states before and after each layer.

        The first pair is None and the embedded features.
        """
        for before, states, _ in self._steps(batch, training):
            yield before, states

    def _steps(self, batch, training):
        """Yield the states before and after each layer, and the batch of its nodes."""
        states = self._embedded(batch, training)
        yield None, states, batch
        again = self.remat and training
        edge_states = None if again else self._looked_up_edges(batch)
        if edge_states is None:
            edge_states = self.edge_states(batch)
        trimmed, pooled = "hops" in batch, False
        prepared = batch if trimmed else self._prepared(batch)
        virtual = self._virtual_node(batch)
        seen = [states]
        for number in range(self.num_layers):
            last = number == self.num_layers - 1
            inputs = states if virtual is None else virtual.added(states)
            if trimmed:
                prepared = self.prepare(hop_batch(batch, number))
                if edge_states is not None:
                    count = ops.shape(prepared["edge"]["sender"])[1]
                    edge_states = first_of(edge_states, count)
            layer = self._checkpointed_layer if again else self._layer
            states, edge_states = layer(number, inputs, edge_states, prepared, training)
            if virtual is not None and not last:
                virtual.update(number, states, training)
            seen.append(states)
            if last and self.jumping_knowledge is not None:
                states = self.joined(seen)
            if pooled:
                mask = ops.expand_dims(batch["node"]["mask"], -1)
                states = ops.where(mask, states, 0.0)
            yield inputs, states, batch
            if not last and self.poolings[number] is not None:
                states, edge_states, batch = self._pooled(
                    number, states, edge_states, batch
                )
                prepared, pooled = self._prepared(batch), True
                if virtual is not None:
                    virtual.pool(batch)

    def _prepared(self, batch):
        """Return the batch with its plan prepared for all layers."""
        return batch if is_symbolic(batch) else self.prepare(batch)

    def _virtual_node(self, batch):
        """Return the `VirtualNode` of a batch, or None."""
        from keras_bandgnn.models.message_passing.virtual_node import VirtualNode

        return VirtualNode(self, batch) if self.virtual_node else None

    def _pooled(self, number, states, edge_states, batch):
        """Return the states, the edge states and the batch after pooling."""
        from keras_bandgnn.models.message_passing.pooling import pool

        types = max(self.num_edge_types, 1)
        return pool(self.poolings[number], states, edge_states, batch, types)

    def _embedded(self, batch, training):
        """Return the embedded features of nodes [G, N, H]."""
        node = dict(batch["node"])
        for name, spec in self.encoder.inputs.items():
            if "features" in spec and name in node:
                node[name] = self.input_dropout_layer(node[name], training=training)
        return self.encoder({**batch, "node": node})

    def joined(self, seen: Sequence[Tensor]) -> Tensor:
        """Join the states [G, N, H] of all layers to the output."""
        from keras_bandgnn.models.message_passing.jumping_knowledge import joined_states

        return joined_states(seen, self.jumping_knowledge, self.jump)

    def call(
        self, batch: Batch, training: bool = False, return_batch: bool = False
    ) -> Tensor | tuple[Tensor, Batch]:
        """Return the node states.

        Args:
            batch: A batch.
            training: Whether dropout is active.
            return_batch: Whether to return the batch of the states, too, which has the
                nodes that stay with `pooling`.
        """
        for step in self._steps(batch, training):
            last = step
        return last[1:] if return_batch else last[1]

    def readout_inputs(
        self, batch: Batch, training: bool = False
    ) -> tuple[Tensor, Batch]:
        """Return the states and the batch of the nodes that a readout reads."""
        if not self.pools:
            return super().readout_inputs(batch, training)
        return self(batch, training=training, return_batch=True)

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        edge_inputs = None if self.edge_encoder is None else self.edge_encoder.inputs
        return {
            **super().get_config(),
            "inputs": self.encoder.inputs,
            "hidden_dim": self.hidden_dim,
            "num_layers": self.num_layers,
            "edge_inputs": edge_inputs,
            "num_edge_types": self.num_edge_types,
            "norm": self.norm,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "input_dropout": self.input_dropout,
            "residual": self.residual,
            "feed_forward": self.feed_forward,
            "jumping_knowledge": self.jumping_knowledge,
            "virtual_node": self.virtual_node,
            "ego_separation": self.ego_separation,
            "activation_first": self.activation_first,
            "remat": self.remat,
            "embeddings_initializer": self.encoder.embeddings_initializer,
            "pooling": [layer and layer_entry(layer) for layer in self.poolings]
            if self.pools
            else None,
        }
