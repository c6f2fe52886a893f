"""`GraphTransformerBackbone`: base class of Graphormer and GT."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from keras_bandgnn.checks import (
    boolean,
    divisor,
    fraction,
    mapping,
    one_of,
    optional,
    positive_int,
    refuse,
)
from keras_bandgnn.layers.attention_bias import AttentionBias
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.layers.graph_transformer_layer import GraphTransformerLayer
from keras_bandgnn.layers.layer_normalization import LayerNormalization
from keras_bandgnn.layers.node_encoder import NodeEncoder, edge_encoder
from keras_bandgnn.models.backbone import Backbone
from keras_bandgnn.ops.attention import takes_tables
from keras_bandgnn.ops.remat import by_rows, checkpoint
from keras_bandgnn.preprocessing.attention.attention_edges import AttentionEdges
from keras_bandgnn.primitives.plan import Plan

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Config,
        ModuleOptions,
        Tensor,
        Values,
    )
    from keras_bandgnn.data.flat import FlatGraphs

# Terms of attention, and logits of pairs on the host, for `Task.attention_weights`.


def terms(steps, biases, edge) -> list[dict]:
    """Return the terms of attention, per layer, on the device.

    Args:
        steps: For each layer its `GraphTransformerLayer` and inputs: states float
            [G, N, H], and tokens [G, B, H] or None.
        biases: Result of `AttentionBias`, or three times None.
        edge: `batch["edge"]`.

    Returns:
        Queries and keys of nodes [G, N, K d] and tokens [G, B, K d], and biases of
        edges [G, E, K], of self-loops and of tokens [K]; only those that exist.
    """
    edges, loops, token = biases
    if edges is not None:
        shape = (*ops.shape(ops.convert_to_tensor(edge["sender"])), edges.shape[-1])
        edges = ops.broadcast_to(edges, shape)
    shared = {"edge_bias": edges, "loop_bias": loops, "token_bias": token}
    out = []
    for block, inputs in steps:
        entry = dict(shared)
        for name, rows in zip(("", "token_"), inputs, strict=True):
            if rows is not None:
                query, key = block.queries_and_keys(rows)
                entry |= {f"{name}query": query, f"{name}key": key}
        entry = {k: v for k, v in entry.items() if v is not None}
        out.append({k: ops.cast(v, "float32") for k, v in entry.items()})
    return out


def check_length(graphs: FlatGraphs, max_length: int | None) -> None:
    """Raise a ValueError for graphs of more than `max_length` nodes, unless None."""
    if max_length is None or not len(graphs):
        return
    largest = int(graphs.num_nodes.max())
    if largest > max_length:
        raise ValueError(
            f"Expected graphs of at most max_length={max_length} nodes. Received: one "
            f"of {largest}. Raise max_length; it changes no weights."
        )


def pairs(layer, terms, graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs that attend to each other in one graph, and their logits.

    Args:
        layer: A `DualInterleavedAttention`.
        terms: Result of `terms` for the layer, cut to the graph.
        graph: `BatchGraph`.

    Returns:
        Senders and receivers int [P], and float [P, K]; the token is node N.
    """
    nodes, heads = np.arange(graph.num_nodes), layer.num_heads
    edge_bias = terms.get("edge_bias", np.zeros((len(graph.senders), heads)))
    loop_bias = terms.get("loop_bias", np.zeros(heads))
    parts = []
    if layer.pattern == "full":
        bias = np.zeros((graph.num_nodes, graph.num_nodes, heads), np.float32)
        np.add.at(bias, (graph.receivers, graph.senders), edge_bias)
        bias[nodes, nodes] += loop_bias
        receivers, senders = np.divmod(np.arange(nodes.size**2), max(nodes.size, 1))
        parts.append((senders, receivers, bias.reshape(-1, heads)))
    else:
        seen = graph.edge.get("attend", np.ones_like(graph.senders)) > 0
        parts.append((graph.senders[seen], graph.receivers[seen], edge_bias[seen]))
        if layer.self_loops:
            parts.append(
                (nodes, nodes, np.broadcast_to(loop_bias, (nodes.size, heads)))
            )
    query, key = terms["query"], terms["key"]
    if "token_query" in terms:
        token = np.full(nodes.size, nodes.size)
        linked = terms.get("token_bias", np.zeros(heads))
        parts.append((token, nodes, np.broadcast_to(linked, (nodes.size, heads))))
        every = np.append(nodes, nodes.size)
        parts.append(
            (every, np.full_like(every, nodes.size), np.zeros((every.size, 1)))
        )
        query = np.concatenate([query, terms["token_query"][None]])
        key = np.concatenate([key, terms["token_key"][None]])
    senders, receivers = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    bias = np.concatenate([np.broadcast_to(p[2], (len(p[0]), heads)) for p in parts])
    products = (query[receivers] * key[senders]).reshape(len(senders), heads, -1)
    return senders, receivers, products.sum(-1) * layer.key_dim**-0.5 + bias


_LOG = logging.getLogger("keras_bandgnn")
ATTENTION = ("sparse", "full", "periodic", "augment", "conditions")
# Maximum number of graphs whose conditions are checked.
_CHECKED = 64
# Name of the decision among the weights.
_DECIDED = "conditions_hold"


class GraphTransformerBackbone(Backbone):
    """Embedded features through L blocks of `GraphTransformerLayer` and a last norm.

    Subclasses add their encodings to `inputs` and `graph_layers`.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L.
        num_heads: K, a divisor of H.
        ffn_dim: Width of the feed-forward networks; H if omitted.
        attention: Which pattern the layers have (`DualInterleavedAttention`):
            `"sparse"` edges and the node itself; `"full"` all nodes; `"periodic"`
            sparse, and full in every `full_every`-th layer; `"augment"` sparse, with
            the links of a path through all nodes and a token, so that TorchGT's three
            conditions hold; `"conditions"` sparse if they hold for the graphs that the
            model is trained on (64 of them are checked), else full. That is decided
            when training begins and saved with the model; before it is full.
        full_every: See `"periodic"`.
        max_distance: Largest shortest-path distance that has a bias of its own.
        use_bias: Whether attention has biases (`AttentionBias`).
        num_edge_types: P types that have a bias each, "no edge" among them; 1: types
            are not read.
        global_token: Whether each graph has a token that all its nodes attend to.
        dropout: Share of what each branch adds, and of the first states, that is
            dropped.
        attention_dropout: Share of the attention weights that are dropped.
        max_length: The most nodes that a graph has; see `DualInterleavedAttention`.
        fused: See `DualInterleavedAttention`.
        conditions_hold: Result of `"conditions"`, as saved; None before training.
        edge_inputs: Edge features to embed, as for `NodeEncoder`, to one number per
            head: a pair that is an edge of the graph has their sum as a bias, the same
            in all layers; other pairs that attend have none. A reverse that the graph
            lacks has the features of its original. `"type"` of size P is the same as
            `num_edge_types=P + 1`. None for no such biases.
        target_type: For tasks over edges: the first type of the edges to predict for, 0
            for all. They are among the pairs that attend, and `graph_layers()` keeps
            them as target edges, too, see `AttentionEdges`. No weight depends on it.
        remat: Whether the branches of blocks are computed again for gradients, so that
            memory is that of one branch and two inputs per block (JAX and torch).
    """

    weighs_edges = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int,
        num_layers: int,
        num_heads: int,
        ffn_dim: int | None = None,
        attention: str = "sparse",
        full_every: int = 2,
        max_distance: int = 1,
        use_bias: bool = True,
        num_edge_types: int = 1,
        global_token: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        max_length: int | None = None,
        fused: bool = False,
        remat: bool = False,
        conditions_hold: bool | None = None,
        edge_inputs: Mapping | None = None,
        target_type: int | None = None,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.remat = boolean("remat", remat)
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.num_layers = positive_int("num_layers", num_layers)
        self.num_heads = divisor("num_heads", num_heads, "hidden_dim", self.hidden_dim)
        ffn_dim = self.hidden_dim if ffn_dim is None else ffn_dim
        self.ffn_dim = positive_int("ffn_dim", ffn_dim)
        self.attention = one_of("attention", attention, ATTENTION)
        self.full_every = positive_int("full_every", full_every)
        self.max_distance = positive_int("max_distance", max_distance)
        self.use_bias = boolean("use_bias", use_bias)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        edge_inputs = dict(optional(mapping, "edge_inputs", edge_inputs) or {})
        if "type" in edge_inputs:
            types = NodeEncoder.spec_of("type", edge_inputs.pop("type"))
            if "ids" not in types:
                refuse("edge_inputs['type']", "the number of types", types)
            # Type 0 is "no edge".
            self.num_edge_types = max(self.num_edge_types, types["ids"] + 1)
            if not self.use_bias:
                raise ValueError(
                    "Expected use_bias=True with 'type' in `edge_inputs`. Received: "
                    "use_bias=False. Leave one of them out."
                )
        global_token = boolean("global_token", global_token)
        self.global_token = global_token or self.attention == "augment"
        self.dropout = fraction("dropout", dropout)
        self.attention_dropout = fraction("attention_dropout", attention_dropout)
        self.max_length = optional(positive_int, "max_length", max_length)
        self.fused = boolean("fused", fused)
        self.conditions_hold = optional(boolean, "conditions_hold", conditions_hold)
        if conditions_hold is not None and self.attention != "conditions":
            raise ValueError(
                "Expected `conditions_hold` with attention='conditions' only. "
                f"Received: attention={attention!r}, conditions_hold={conditions_hold}."
            )
        self.verdict = None
        self.target_type = optional(positive_int, "target_type", target_type, 0)
        # === Layers ===
        policy = self.dtype_policy
        self.encoder = NodeEncoder(
            self.hidden_dim, inputs, dtype=policy, name="node_encoder"
        )
        self.bias = None
        if self.use_bias:
            self.bias = AttentionBias(
                self.num_heads,
                self.max_distance,
                self.num_edge_types,
                self.global_token,
                dtype=policy,
                name="attention_bias",
            )
        self.edge_encoder = edge_encoder(self.num_heads, edge_inputs, dtype=policy)
        # It refuses the names of features that it writes.
        AttentionEdges(edge_features=self._edge_names())
        if self.edge_encoder is not None:
            # Devices that share a supergraph split the heads.
            self.splits_sequences = False
        self.blocks = [
            GraphTransformerLayer(
                self.num_heads,
                self.hidden_dim // self.num_heads,
                self.ffn_dim,
                self.dropout,
                self.attention_dropout,
                self.pattern_of(number),
                max_length=max_length,
                fused=self.fused,
                remat=self.remat,
                dtype=policy,
                name=f"block_{number}",
            )
            for number in range(self.num_layers)
        ]
        self.dropout_layer = Dropout(self.dropout, dtype=policy)
        self.last_norm = LayerNormalization(
            epsilon=1e-5, dtype=policy, name="last_norm"
        )
        self.build()

    def pattern_of(self, layer: int) -> str:
        """Return the pattern of a layer, `"sparse"` or `"full"`."""
        if self.attention == "periodic":
            return "sparse" if (layer + 1) % self.full_every else "full"
        sparse = self.attention in ("sparse", "augment") or self.conditions_hold
        return "sparse" if sparse else "full"

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        rows = (None, None, self.hidden_dim)
        self.encoder.build()
        if self.bias is not None:
            self.bias.build()
        if self.edge_encoder is not None:
            self.edge_encoder.build()
        if self.global_token:
            self.token = self.add_weight(
                name="token",
                shape=(self.hidden_dim,),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        for block in self.blocks:
            block.build(rows)
        self.last_norm.build(rows)
        self.built = True

    def graph_layers(self) -> list:
        """Return the preprocessing layers that graphs need for this model, in order."""
        pairs, path = self.max_distance if self.use_bias else 1, None
        if self.attention == "augment" and pairs > 1:
            path = pairs
        if self.attention in ("sparse", "augment") or (
            self.attention == "periodic" and self.full_every > self.num_layers
        ):
            pairs = 1
        return [
            AttentionEdges(
                path=self.attention == "augment",
                max_distance=pairs,
                edge_types=self.num_edge_types > 1,
                path_distance=path,
                edge_features=self._edge_names(),
                target_type=self.target_type,
            )
        ]

    def _edge_names(self) -> tuple[str, ...]:
        return () if self.edge_encoder is None else tuple(self.edge_encoder.inputs)

    def auto_plan(self) -> Plan:
        """Return the plan of loaders with `"auto"`."""
        from keras_bandgnn.preprocessing.attention.attention_plan import AttentionPlan

        return AttentionPlan()

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the inputs of the encoders, and the features of pairs."""
        edge = ("attend", "distance", *self._edge_names())
        return {"node": tuple(self.encoder.inputs), "edge": edge, "graph": ()}

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if graphs do not fit."""
        self.encoder.check(graphs.node, graphs.sets)
        if "attend" not in graphs.edge:
            raise ValueError(
                "Expected graphs with the edge feature 'attend'. Received: edge "
                f"features {sorted(graphs.edge)}. Pass "
                "GraphPreprocessor(backbone.graph_layers()) to the task."
            )
        if self.target_type is not None and "target" not in graphs.edge:
            raise ValueError(
                "Expected graphs with the edge feature 'target', as target_type="
                f"{self.target_type}. Received: edge features {sorted(graphs.edge)}. "
                "Pass GraphPreprocessor(backbone.graph_layers()) to the task."
            )
        if self.edge_encoder is not None:
            self.edge_encoder.check(graphs.edge)
        check_length(graphs, self.max_length)

    def adapt(self, parts: Sequence[FlatGraphs]) -> bool:
        """Decide `"conditions"` from the training graphs, unless already decided.

        Args:
            parts: The graphs, each part a `FlatGraphs`.

        Returns:
            Whether the pattern changed: programs compiled before hold the other one.
        """
        from keras_bandgnn.preprocessing.attention.conditions import (
            attention_conditions,
        )

        if self.attention != "conditions" or self.conditions_hold is not None:
            return False
        starts = np.cumsum([0, *(len(part) for part in parts)])
        number = min(int(starts[-1]), _CHECKED)
        for index in np.linspace(0, starts[-1] - 1, number).astype(int):
            part = int(np.searchsorted(starts, index, side="right")) - 1
            conditions = attention_conditions(
                parts[part][int(index - starts[part])],
                self.num_layers,
                global_token=self.global_token,
            )
            if not conditions.sparse_suffices:
                break
        self.verdict = conditions
        self._decide(conditions.sparse_suffices)
        _LOG.info("%s attention: %s", self.pattern_of(0), conditions)
        return bool(self.conditions_hold)

    def _decide(self, holds: bool) -> None:
        self.conditions_hold = bool(holds)
        for number, block in enumerate(self.blocks):
            block.attention.pattern = self.pattern_of(number)

    @property
    def variant(self) -> bool | None:
        """Return whether `"conditions"` hold, which sets the pattern of attention."""
        return self.conditions_hold

    def save_own_variables(self, store: Values) -> None:
        """Save the result of `"conditions"` with the weights."""
        super().save_own_variables(store)
        if self.conditions_hold is not None:
            store[_DECIDED] = np.array(self.conditions_hold, np.int32)

    def load_own_variables(self, store: Values) -> None:
        """Load the result of `"conditions"` with the weights."""
        names = [name for name in store.keys() if name != _DECIDED]
        if _DECIDED in store.keys() and self.attention == "conditions":
            self._decide(bool(np.asarray(store[_DECIDED])))
        super().load_own_variables({name: store[name] for name in names})

    def first_states(self, batch: Batch, training: bool) -> Tensor:
        """Return the embedded features [G, N, H]."""
        del training
        return self.encoder(batch)

    def _steps(self, batch, training: bool):
        """Yield states, and tokens or None: the first ones, then after each block."""
        states = self.first_states(batch, training)
        states = self.dropout_layer(states, training=training)
        biases = self.biases(batch, as_table=takes_tables())
        tokens = None
        if self.global_token:
            slots = ops.shape(batch["graph"]["mask"])
            token = ops.cast(ops.convert_to_tensor(self.token), states.dtype)
            tokens = ops.broadcast_to(token, (*slots, self.hidden_dim))
        yield states, tokens
        for block in self.blocks:
            out = block(states, batch, *biases, tokens, training=training)
            states, tokens = (out, None) if tokens is None else out
            yield states, tokens

    def biases(self, batch: Batch, as_table: bool = False) -> tuple[Tensor | None, ...]:
        """Return the biases of edges, self-loops and tokens; None without any.

        Args:
            batch: A batch.
            as_table: Whether biases of edges may be a `LookedUp`.
        """
        if self.bias is None:
            biases = (None, None, None)
        else:
            as_table = as_table and self.edge_encoder is None
            biases = self.bias(batch, as_table=as_table)
        if self.edge_encoder is None:
            return biases
        edge = batch["edge"]
        of_edges = self.edge_encoder(edge)
        # Only edges have features; other pairs are further apart.
        direct = ops.equal(ops.convert_to_tensor(edge["distance"]), 1)
        of_edges = of_edges * ops.expand_dims(ops.cast(direct, of_edges.dtype), -1)
        edges, loops, tokens = biases
        return of_edges if edges is None else edges + of_edges, loops, tokens

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield the first states and those after each block, the last normalised."""
        for number, (states, _) in enumerate(self._steps(batch, training)):
            last = number == self.num_layers
            yield self.last_norm(states) if last else states

    def attention_terms(self, batch: Batch) -> list:
        """Return the terms of attention per layer; see `attention_pairs`."""
        steps = zip(self.blocks, self._steps(batch, False), strict=False)
        return terms(steps, self.biases(batch), batch["edge"])

    def attention_pairs(
        self, number: int, terms: Values, graph: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the pairs of a layer's attention in one graph, and their logits.

        Args:
            number: Index of the layer.
            terms: `attention_terms` of that layer, cut to the graph:
                [n, ...].
            graph: `BatchGraph`.

        Returns:
            Senders and receivers int [P], and float [P, K].
        """
        return pairs(self.blocks[number].attention, terms, graph)

    def call(
        self, batch: Batch, training: bool = False, return_tokens: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return node states [G, N, H]; with `return_tokens` also tokens [G, B, H]."""
        for step in self._steps(batch, training):
            states, tokens = step
        if self.remat and training:
            states = checkpoint(lambda rows: by_rows(self.last_norm, rows), states)
        else:
            states = self.last_norm(states)
        if not return_tokens:
            return states
        if tokens is None:
            raise ValueError(
                "Expected global_token=True for return_tokens=True. Received: False."
            )
        return states, self.last_norm(tokens)

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        decided = {}
        if self.conditions_hold is not None:
            decided["conditions_hold"] = self.conditions_hold
        if self.edge_encoder is not None:
            decided["edge_inputs"] = self.edge_encoder.inputs
        if self.target_type is not None:
            decided["target_type"] = self.target_type
        names = (
            "hidden_dim",
            "num_layers",
            "num_heads",
            "ffn_dim",
            "attention",
            "full_every",
            "max_distance",
            "use_bias",
            "num_edge_types",
            "global_token",
            "dropout",
            "attention_dropout",
            "max_length",
            "fused",
            "remat",
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            **decided,
        }
