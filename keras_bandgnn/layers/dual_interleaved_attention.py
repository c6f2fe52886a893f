"""`DualInterleavedAttention`: attention along edges, between all nodes, or in tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.batch import explained
from keras_bandgnn.checks import boolean, fraction, one_of, optional, positive_int
from keras_bandgnn.layers.batch_layer import BatchLayer, log_factor
from keras_bandgnn.layers.dense import FlatDense
from keras_bandgnn.ops.attention import (
    EMPTY,
    attend_to_one,
    edge_attention,
    full_attention,
    fused_attention,
    join,
    tiles_and_rest,
    with_itself,
)
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.ops.context import is_portable
from keras_bandgnn.ops.lookup import LookedUp
from keras_bandgnn.ops.remat import by_rows
from keras_bandgnn.ops.sequence import sequence_axis
from keras_bandgnn.primitives.base import part_of
from keras_bandgnn.primitives.tiles import Tiles
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, LayerOptions, Shape, Tensor


class AttentionRows:
    """The padded layout [sequence, length] of nodes for full attention.

    Args:
        batch: A batch.
        length: L, nodes of a sequence, which is a graph; None for whole supergraphs.
    """

    def __init__(self, batch, length: int | None):
        self.graph = ops.convert_to_tensor(batch["node"]["graph_id"])
        real = ops.convert_to_tensor(batch["node"]["mask"])
        self.groups, self.nodes = ops.shape(self.graph)
        self.length = length
        counts = ops.convert_to_tensor(batch["graph"]["n_node"])
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
        place = place - graph_ops.batched_gather(self.first, self.graph)
        self.place = ops.clip(place, 0, length - 1) + self.graph * length

    def spread(self, values):
        """[G, N, C] as sequences [R, L, C]."""
        if self.length is None:
            return values
        out = graph_ops.batched_gather(values, self.node)
        return ops.reshape(out, (-1, self.length, ops.shape(values)[-1]))

    def collect(self, values):
        """Sequences [R, L, C] as [G, N, C]."""
        if self.length is None:
            return values
        rows = (self.groups, self.slots * self.length, ops.shape(values)[-1])
        return graph_ops.batched_gather(ops.reshape(values, rows), self.place)

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
            loop_bias = ops.broadcast_to(
                ops.cast(self_bias, "float32"), (*ops.shape(node), num_heads)
            )
            columns.append((node, node, ops.ones_like(node) > 0, loop_bias))
        sender, receiver, real, bias = (
            ops.concatenate(parts, axis=1) for parts in zip(*columns, strict=True)
        )
        bias = ops.reshape(bias, (-1, num_heads))
        group = ops.expand_dims(ops.arange(self.groups, dtype="int32"), 1)
        if self.length is None:
            sequence = ops.broadcast_to(group, ops.shape(receiver))
            row, column, end = receiver, sender, self.nodes
        else:
            place = graph_ops.batched_gather(self.place, receiver)
            sequence = group * self.slots + place // self.length
            row, end = place % self.length, self.length
            column = graph_ops.batched_gather(self.place, sender) % self.length
        row = ops.where(real, row, end)
        return [ops.reshape(ids, (-1,)) for ids in (sequence, row, column)], bias


PATTERNS = ("sparse", "full")


@serializable
class DualInterleavedAttention(BatchLayer):
    """Multi-head attention of nodes, along edges or over all nodes of a graph.

    Graph transformer backbones interleave the two patterns: with `attention="periodic"`
    every `full_every`-th layer is full, the others are sparse.

        s_ij = (W_q h_i) . (W_k h_j) / sqrt(d) + bias_ij   for each of K heads
        out_i = W_o sum over j of softmax over j (s_ij) W_v h_j

    `"sparse"`: j ranges over the senders of the edges into i (the topology-induced
    pattern) and, with `self_loops`, i itself. Where the batch lists dense tiles
    (`AttentionPlan(block_size=...)`) the edges inside them are computed as products of
    blocks. `"full"`: j ranges over all nodes of the graph. With `tokens` each node also
    attends to the token of its graph, and the token to all nodes of the graph and
    itself. Biases, the factor 1/sqrt(d) and dropout are the same in every pattern, so
    layers can change between patterns with the same weights. Softmax runs in float32.

    Args:
        num_heads: K.
        key_dim: d, width of a head.
        pattern: `"sparse"` or `"full"`; `call` may name another.
        self_loops: Whether nodes attend to themselves in the sparse pattern.
        dropout: Dropout rate of the attention weights.
        max_length: L, maximum number of nodes per graph; full attention then runs per
            graph, padded to L. None: over whole supergraphs in chunks, which suits one
            large graph or sequence per supergraph.
        fused: Whether full attention uses `keras.ops.dot_product_attention`. That has
            neither biases nor dropout nor tokens.
        use_bias: Whether the four linear maps have biases.
        usual_length: Without `max_length`: the number of nodes that few graphs exceed.
            Full attention then runs per graph, padded to that, in batches without
            larger graphs where this is the cheaper way, and over whole supergraphs in
            the others.

    Input shape:
        states: float [G, N, H].
        batch: A batch; it reads `edge` (`sender`, `receiver`, optionally `attend`),
            `node` (`graph_id`, `mask`), `graph["n_node"]`, and `plan`.
        edge_bias: float [G, E, K] or None, biases of the edges relative to pairs
            without an edge; or a `LookedUp` of them. Full attention adds them, too.
        self_bias: float [K] or None, likewise of a node to itself.
        token_bias: float [K] or None, likewise of nodes and tokens.
        tokens: float [G, B, H] or None, one per graph.

    Output shape:
        float [G, N, H]; with tokens a pair, that and [G, B, H].

    Raises:
        ValueError: For arguments out of range or that exclude each other.

    Reference:
        Zhang et al. 2024 (TorchGT), section III-B; Ying et al. 2021 (Graphormer).

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0], [2.0], [3.0]]})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> layer = DualInterleavedAttention(num_heads=2, key_dim=4)
    >>> states = keras.random.normal((*batch["node"]["mask"].shape, 8))
    >>> layer(states, batch).shape[-1], layer(states, batch, pattern="full").shape[-1]
    (8, 8)
    """

    splits_sequences = True

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        pattern: str = "sparse",
        self_loops: bool = True,
        dropout: float = 0.0,
        max_length: int | None = None,
        fused: bool = False,
        use_bias: bool = True,
        usual_length: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.num_heads = positive_int("num_heads", num_heads)
        self.key_dim = positive_int("key_dim", key_dim)
        self.pattern = one_of("pattern", pattern, PATTERNS)
        self.self_loops = boolean("self_loops", self_loops)
        self.dropout = fraction("dropout", dropout)
        self.max_length = optional(positive_int, "max_length", max_length)
        self.usual_length = optional(positive_int, "usual_length", usual_length)
        self.fused = boolean("fused", fused)
        self.use_bias = boolean("use_bias", use_bias)
        if self.fused and self.dropout:
            raise ValueError(
                "Expected no dropout with fused=True. "
                f"Received: dropout={dropout}. Use fused=False."
            )
        self.seed_generator = keras.random.SeedGenerator()

    def build(
        self, states_shape: Shape, *args: Shape | None, **kwargs: Shape | None
    ) -> None:
        """Build W_q, W_k, W_v [H, K d] and W_o [K d, H]."""
        width = self.num_heads * self.key_dim
        for name, rows, columns in (
            ("query", states_shape[-1], width),
            ("key", states_shape[-1], width),
            ("value", states_shape[-1], width),
            ("output", width, states_shape[-1]),
        ):
            layer = FlatDense(
                columns, use_bias=self.use_bias, dtype=self.dtype_policy, name=name
            )
            layer.build((None, None, rows))
            setattr(self, f"{name}_dense", layer)
        self.built = True

    def call(
        self,
        states: Tensor,
        batch: Batch,
        edge_bias: Tensor | None = None,
        self_bias: Tensor | None = None,
        token_bias: Tensor | None = None,
        tokens: Tensor | None = None,
        pattern: AttentionRows | None = None,
        training: bool = False,
        norm: Callable[..., Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the new states, and the new tokens if there are any.

        `norm`, if given, is applied to states and tokens first. Unlike a norm before
        the call it is computed again with the maps in `checkpoint`, see `by_rows`.
        """
        pattern = one_of("pattern", pattern or self.pattern, PATTERNS)
        axis = sequence_axis()
        dropping = bool(training) and self.dropout > 0
        q, k, v = self._project(states, norm)
        if axis is not None:
            # Reshard from nodes to heads.
            self._check_heads(axis)
            q, k, v = axis.to_heads(ops.stack([q, k, v]))
            batch = axis.whole(batch)
        if pattern == "full" and self.fused:
            if tokens is not None or edge_bias is not None or self_bias is not None:
                raise ValueError(
                    "Expected neither biases nor tokens with fused=True. Received: "
                    "some. Use fused=False."
                )
            return self._output(self._fused(q, k, v, batch))
        if isinstance(edge_bias, LookedUp) and not self._takes_table(pattern, batch):
            edge_bias = edge_bias.rows()
        if pattern == "full":
            options = edge_bias, self_bias, dropping, tokens is None
            parts = [self._full(q, k, v, batch, *options)]
        else:
            parts = self._sparse(q, k, v, batch, edge_bias, dropping)
        if tokens is None:
            if pattern == "full" or not self.self_loops:
                return self._output(self._joined(parts, states))
            return self._with_itself(parts, q, k, v, self_bias, dropping, states.dtype)
        if pattern == "sparse" and self.self_loops:
            parts.append(self._one(q, k, v, self_bias, dropping))
        token_q, token_k, token_v = self._project(tokens, norm)
        if axis is not None:
            token_q, token_k, token_v = map(
                axis.local_columns, (token_q, token_k, token_v)
            )
        graph = ops.convert_to_tensor(batch["node"]["graph_id"])
        token_rows = (graph_ops.batched_gather(t, graph) for t in (token_k, token_v))
        parts.append(self._one(q, *token_rows, token_bias, dropping))
        gathered = [
            self._to_tokens(token_q, k, v, batch, dropping),
            self._one(token_q, token_k, token_v, None, dropping),
        ]
        gathered = self._joined(gathered, tokens)
        if axis is not None:
            gathered = axis.columns(gathered)
        return self._output(self._joined(parts, states)), self.output_dense(gathered)

    @property
    def _heads(self) -> int:
        """Number of heads on this device."""
        axis = sequence_axis()
        return self.num_heads if axis is None else self.num_heads // axis.size

    def _check_heads(self, axis):
        if self.num_heads % axis.size:
            raise ValueError(
                f"Expected `num_heads` to be a multiple of the {axis.size} devices of "
                f"a sequence. Received: num_heads={self.num_heads}. Take fewer devices "
                "per sequence, or other heads."
            )

    def _project(self, rows, norm):
        """Return queries, keys and values [..., K d] of rows [..., H]."""

        def maps(rows):
            rows = rows if norm is None else norm(rows)
            layers = (self.query_dense, self.key_dense, self.value_dense)
            return tuple(layer(rows) for layer in layers)

        return by_rows(maps, rows)

    def _output(self, rows):
        axis = sequence_axis()
        if axis is not None:
            return self.output_dense(axis.to_rows(rows))
        return by_rows(self.output_dense, rows)

    def _joined(self, parts, like):
        return ops.cast(join(parts, self._heads), like.dtype)

    def _with_itself(self, parts, q, k, v, bias, dropping, dtype):
        """Return the new states from attention along edges and to the node itself."""
        weight = self._row_weights(q, dropping)
        rows = [q, k, v, *(t for part in parts for t in part)]
        rows += [] if weight is None else [weight]

        def joined(q, k, v, *sums):
            weight = sums[-1] if dropping else None
            if len(parts) == 1:
                tensors = sums[:2], q, k, v, bias, weight
                return ops.cast(with_itself(*tensors, self._heads), dtype)
            itself = attend_to_one(q, k, v, bias, weight, self._heads)
            pairs = zip(sums[::2], sums[1::2], strict=False)
            return ops.cast(join([*pairs, itself], self._heads), dtype)

        if sequence_axis() is not None:
            return self._output(joined(*rows))
        return by_rows(lambda *rows: self.output_dense(joined(*rows)), *rows)

    def _weights(self, like, dropping):
        """Return dropout factors, or None."""
        if not dropping:
            return None
        return graph_ops.dropout(ops.ones_like(like), self.dropout, self.seed_generator)

    @staticmethod
    def _takes_table(pattern, batch):
        tiles = part_of(batch["plan"], Tiles)
        return pattern == "sparse" and not tiles and explained(batch, "edge") is None

    def _sparse(self, q, k, v, batch, edge_bias, dropping):
        edge = batch["edge"]
        sender, receiver = (
            ops.convert_to_tensor(edge[name]) for name in ("sender", "receiver")
        )
        keep = None
        if "attend" in edge:
            keep = ops.convert_to_tensor(edge["attend"]) > 0
        times = log_factor(explained(batch, "edge"))
        if times is not None:
            start = 0.0 if edge_bias is None else ops.cast(edge_bias, "float32")
            edge_bias = start + ops.expand_dims(times, -1)
        shape = (*ops.shape(sender), self._heads)
        weight = self._weights(ops.ones(shape), True) if dropping else None
        edges = {
            "weight": weight,
            "sender": sender,
            "receiver": receiver,
            "num_heads": self._heads,
        }
        if isinstance(edge_bias, LookedUp):
            return [edge_attention(q, k, v, bias=edge_bias, keep=keep, **edges)]
        _, tiles = part_of(batch["plan"], Tiles) or (None, None)
        if tiles is None and (edge_bias is None or len(edge_bias.shape) == 1):
            # Softmax over edges is invariant to a bias that all of them share.
            out, logs = edge_attention(q, k, v, bias=None, keep=keep, **edges)
            if edge_bias is not None:
                more = ops.cast(edge_bias, "float32")
                logs = ops.where(logs > 0.5 * EMPTY, logs + more, logs)
            return [(out, logs)]
        start = 0.0 if edge_bias is None else edge_bias
        edge_bias = ops.broadcast_to(ops.cast(start, "float32"), shape)
        if keep is not None:
            edge_bias = ops.where(ops.expand_dims(keep, -1), edge_bias, EMPTY)
        if tiles is None:
            return [edge_attention(q, k, v, bias=edge_bias, **edges)]
        return tiles_and_rest(q, k, v, bias=edge_bias, tiles=tiles, **edges)

    def _one(self, q, k, v, bias, dropping):
        """Compute the attention of each row to exactly one key and value."""
        weight = self._row_weights(q, dropping)
        return attend_to_one(q, k, v, bias, weight, self._heads)

    def _row_weights(self, rows, dropping):
        """Return dropout factors of attention to one key each, or None."""
        shape = (*ops.shape(rows)[:-1], self._heads)
        return self._weights(ops.ones(shape), True) if dropping else None

    def _to_tokens(self, q, k, v, batch, dropping):
        """Compute the attention of tokens to the nodes of their graphs."""
        graph = ops.convert_to_tensor(batch["node"]["graph_id"])
        real = ops.convert_to_tensor(batch["node"]["mask"])
        groups, count = ops.shape(graph)
        bias = ops.where(ops.expand_dims(real, -1), 0.0, EMPTY)
        bias = ops.broadcast_to(bias, (groups, count, self._heads))
        sender = ops.broadcast_to(ops.arange(count, dtype="int32"), (groups, count))
        weight = self._weights(bias, dropping)
        return edge_attention(q, k, v, bias, weight, sender, graph, self._heads)

    def _full(self, q, k, v, batch, edge_bias, self_bias, dropping, alone):
        factor = explained(batch, "edge")
        if factor is not None and edge_bias is not None:
            # Pairs without an edge have no bias, and all nodes are seen.
            edge_bias = ops.cast(edge_bias, "float32") * ops.expand_dims(factor, -1)
        seed = self.seed_generator.next() if dropping else None

        def attend(rows):
            pairs, bias = None, None
            if edge_bias is not None or self_bias is not None:
                biases = edge_bias, self_bias
                pairs, bias = rows.pairs(batch["edge"], *biases, self._heads)
            out, logs = full_attention(
                *(rows.spread(t) for t in (q, k, v)),
                rows.mask,
                bias,
                pairs,
                self._heads,
                self.dropout if dropping else 0.0,
                seed,
                not alone,
            )
            out = rows.collect(out)
            return out if alone else (out, rows.collect(logs))

        result = self._by_rows(attend, batch)
        return (result, None) if alone else result

    def _fused(self, q, k, v, batch):
        def attend(rows):
            sequences = (rows.spread(t) for t in (q, k, v))
            return rows.collect(fused_attention(*sequences, rows.mask, self._heads))

        return self._by_rows(attend, batch)

    def _by_rows(self, attend, batch):
        """Return `attend(AttentionRows)` for sequences that hold the batch's graphs."""
        usual, (_, nodes) = self.usual_length, ops.shape(batch["node"]["mask"])
        counts = ops.convert_to_tensor(batch["graph"]["n_node"])
        slots = ops.shape(counts)[1]
        is_static = type(slots) is int and type(nodes) is int
        if (
            self.max_length is not None
            or usual is None
            or not is_static
            or slots * usual**2 >= nodes**2
            or is_portable()
            or not backend.can_branch()
        ):
            return attend(AttentionRows(batch, self.max_length))
        return (backend.branch or ops.cond)(
            ops.all(counts <= usual),
            lambda: attend(AttentionRows(batch, usual)),
            lambda: attend(AttentionRows(batch, None)),
        )

    def compute_output_shape(
        self,
        states_shape: Shape,
        batch_shape: BatchShape | None = None,
        edge_bias_shape: Shape | None = None,
        self_bias_shape: Shape | None = None,
        token_bias_shape: Shape | None = None,
        tokens_shape: Shape | None = None,
    ) -> Shape | tuple[Shape, ...]:
        """[G, N, H], and that of the tokens."""
        if tokens_shape is None:
            return tuple(states_shape)
        return tuple(states_shape), tuple(tokens_shape)
