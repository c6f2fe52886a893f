"""`HGTConvolution`: the layer of a heterogeneous graph transformer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn.batch import STATE_ROW
from keras_bandgnn.checks import divisor, positive_int, refuse, sequence
from keras_bandgnn.graph import EdgeSet
from keras_bandgnn.layers.batch_layer import (
    batch_part,
    edge_factor,
    log_factor,
    receiver_rows,
)
from keras_bandgnn.layers.graph_convolution import Convolution
from keras_bandgnn.layers.node_set_dense import (
    NodeSetDense,
    checked_node_sets,
    node_set_ids,
    set_rows,
)
from keras_bandgnn.layers.typed_edges import block_rows, map_senders, typed_senders
from keras_bandgnn.ops.attention import edge_attention
from keras_bandgnn.ops.batched import batched_gather, flat_matmul
from keras_bandgnn.ops.context import is_portable
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor


@serializable
class HGTConvolution(Convolution):
    """Attention over the edges into a node, with maps per node set and edge type.

    Hu et al. 2020, Eqs. 3 to 5, as the HGTConv of PyTorch Geometric computes it. For an
    edge j -> n of type p, s the set of j and t that of n, and each of K heads of d
    channels:

        score = a[p] (h[j] W_k[s] + b_k[s]) A[p] . (h[n] W_q[t] + b_q[t]) / sqrt(d)
        message = (h[j] W_v[s] + b_v[s]) M[p]
        sum[n] = sum over edges into n of softmax over them (score) message
        new[n] = gelu(sum[n]) W_o[t] + b_o[t]
        out[n] = sigmoid(c[t]) new[n] + (1 - sigmoid(c[t])) h[n]

    The softmax is over the edges of all types together, in float32, and the sum of a
    node without edges is 0. Heads are concatenated. If H differs from U, `out` is
    `new`. `batch["plan"]` is ignored.

    Args:
        units: Width U of the new states, all heads together.
        node_sets: Names of the node sets of the graphs.
        num_edge_types: P, the number of edge types in batches: of the edge sets.
        num_heads: K, a divisor of U.
        edge_sets: (source set, relation, target set) of each type of edges, in the
            order of types; batches must have no others. Then keys and messages of a
            type are computed for the nodes of its source set alone, which takes less
            time; results are the same.

    Input shape:
        states: float [G, N, H].
        batch: A batch of graphs with node sets (see `keras_bandgnn.batch`), or the
            result of `prepare`; it reads `batch["edge"]["sender"]`, `["receiver"]` and
            `["type"]`, int32 [G, E], `batch["node"]["state_row"]`, int32 [G, N], and
            `batch["set"][s]["node"]`, int32 [G, M].

    Output shape:
        float [G, N, U].

    Raises:
        ValueError: For arguments out of range, `units` that heads do not divide, or a
            batch without these node sets.

    Reference:
        Hu et al. 2020, https://arxiv.org/abs/2003.01332.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.data.from_sets(
    ...     {"user": 2, "item": 3},
    ...     {("user", "buys", "item"): [[0, 1], [0, 2]]},
    ...     reverse=True,
    ... )
    >>> batch, = kb.preprocessing.GraphLoader([graph], num_edge_types=2)[0]
    >>> states = keras.ops.ones((*batch["node"]["mask"].shape, 8))
    >>> layer = HGTConvolution(8, ["user", "item"], num_edge_types=2, num_heads=2)
    >>> layer(states, batch).shape[-1]
    8
    """

    splits_sequences = False
    reads = {
        "edge": ("sender", "receiver", "type"),
        "node": ("mask", STATE_ROW),
        "set": None,
        "typed": None,
    }

    def __init__(
        self,
        units: int,
        node_sets: Iterable[str],
        num_edge_types: int = 1,
        num_heads: int = 8,
        edge_sets: Iterable[EdgeSet] | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        # === Config ===
        self.node_sets = checked_node_sets(node_sets)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.num_heads = divisor("num_heads", num_heads, "units", self.units)
        self.edge_sets = checked_edge_sets(
            edge_sets, self.node_sets, self.num_edge_types
        )
        # === Layers ===
        options = {"dtype": self.dtype_policy}
        # Each of the three matrices side by side has the fans of one.
        self.projection = NodeSetDense(
            3 * self.units,
            self.node_sets,
            kernel_initializer="lecun_uniform",
            name="projection",
            **options,
        )
        self.output_dense = NodeSetDense(
            self.units, self.node_sets, name="output", **options
        )

    def build_weights(self, states_shape: Shape) -> None:
        """Build the weights.

        W_k, W_q and W_v as one matrix [H, 3 U], W_o [U, U] and the biases, of each set;
        c [S] of S sets; and A and M [P, K, U / K, U / K] and a [P, K] of the types.
        """
        self.projection.build(states_shape)
        self.output_dense.build((*states_shape[:-1], self.units))
        width, heads = self.units // self.num_heads, self.num_heads
        # Fans of one matrix.
        limit = (3.0 / width) ** 0.5
        self.attention_kernel, self.message_kernel = (
            self.add_weight(
                name=name,
                shape=(self.num_edge_types, heads, width, width),
                initializer=keras.initializers.RandomUniform(-limit, limit),
            )
            for name in ("attention_kernel", "message_kernel")
        )
        self.prior = self.add_weight(
            name="prior", shape=(self.num_edge_types, heads), initializer="ones"
        )
        self.skip = None
        if states_shape[-1] == self.units:
            self.skip = self.add_weight(
                name="skip", shape=(len(self.node_sets),), initializer="ones"
            )

    def prepare(self, batch: Batch) -> Batch:
        """Precompute the part of a batch that layers of equal options share."""
        batch_part(batch, "edge")
        batch = self.projection.prepare(batch)
        # In a hop of a sampled batch the call knows the number of senders.
        if "hop" in batch:
            return batch
        num_nodes = ops.shape(batch["node"][STATE_ROW])[1]
        return {**batch, "typed": self._typed(batch, num_nodes)}

    def _typed(self, batch, num_senders) -> dict:
        """Return the row of each edge among the keys and messages of types.

        With edge sets there are M_s T rows of each set s of M_s nodes, the source of T
        types, unless these are more than `typed_senders` has.
        """
        edge = batch["edge"]
        width = self.units // self.num_heads
        if self.edge_sets is None:
            return typed_senders(edge, num_senders, self.num_edge_types, width)
        nodes, row = set_rows(batch, self.node_sets, num_senders)
        sources = self._source_types()
        sizes = [ops.shape(ids)[1] for ids in nodes]
        total = sum(
            size * len(types) for size, types in zip(sizes, sources, strict=True)
        )
        sender, kind = (
            ops.convert_to_tensor(edge[name]) for name in ("sender", "type")
        )
        num_edges = ops.shape(kind)[1]
        # Other runtimes may have no sort, and TensorFlow may trace without sizes.
        if not is_portable() and isinstance(total, int) and isinstance(num_edges, int):
            size, blocks = block_rows(num_edges, self.num_edge_types, width)
            if total > size * blocks:
                return typed_senders(edge, num_senders, self.num_edge_types, width)
        shift, scale = [0] * self.num_edge_types, [1] * self.num_edge_types
        first = begin = 0
        for size, types in zip(sizes, sources, strict=True):
            for place, number in enumerate(types):
                scale[number] = len(types)
                shift[number] = begin - first * len(types) + place
            first, begin = first + size, begin + size * len(types)
        shift, scale = (
            ops.take(ops.cast(ops.stack(ids), "int32"), kind) for ids in (shift, scale)
        )
        out = shift + scale * batched_gather(row, sender)
        # Padded edges may begin at any node.
        out = ops.clip(out, 0, total - 1)
        return {"row": out, "nodes": tuple(nodes), "state_row": row}

    def _source_types(self) -> list[list[int]]:
        """Return the types of edges that begin in each node set."""
        return [
            [p for p, (source, *_) in enumerate(self.edge_sets) if source == name]
            for name in self.node_sets
        ]

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the new states."""
        if "typed" not in batch:
            batch = self.prepare(batch)
        edge, typed = batch["edge"], batch.get("typed")
        if typed is None:
            typed = self._typed(batch, ops.shape(states)[1])
        if "nodes" in typed:
            keys, queries, values = self._mapped_by_set(states, typed)
        else:
            keys, queries, values = self._mapped(self.projection(states, batch), typed)
        bias = log_factor(edge_factor(batch))
        if bias is not None:
            shape = (*ops.shape(bias), self.num_heads)
            bias = ops.broadcast_to(ops.expand_dims(bias, -1), shape)
        sums, _ = edge_attention(
            receiver_rows(queries, batch),
            keys,
            values,
            bias=bias,
            weight=None,
            sender=typed["row"],
            receiver=ops.convert_to_tensor(edge["receiver"]),
            num_heads=self.num_heads,
        )
        sums = ops.cast(sums, self.compute_dtype)
        out = self.output_dense(ops.gelu(sums, approximate=False), batch)
        if self.skip is None:
            return out
        kind = node_set_ids(batch, self.node_sets, ops.shape(out)[1])
        share = ops.cast(ops.sigmoid(self.skip), out.dtype)
        share = ops.matmul(
            ops.one_hot(kind, len(self.node_sets), dtype=out.dtype),
            ops.expand_dims(share, -1),
        )
        return share * out + (1 - share) * receiver_rows(states, batch)

    def _type_kernels(self):
        """Return a[p] A[p] and M[p], [P, K, U / K, U / K]."""
        attention, message, prior = (
            ops.cast(weight, self.compute_dtype)
            for weight in (self.attention_kernel, self.message_kernel, self.prior)
        )
        # Keys have the priors: a score is linear in them.
        return attention * ops.expand_dims(ops.expand_dims(prior, -1), -1), message

    def _mapped(self, rows, typed):
        """Return keys and messages [G, R, U], and queries [G, M, U], of projections."""
        keys, queries, values = ops.split(rows, 3, axis=-1)
        rows = ops.concatenate([keys, values], axis=-1)
        kernel = ops.concatenate(self._type_kernels(), axis=1)
        keys, values = ops.split(map_senders(rows, kernel, typed), 2, axis=-1)
        return keys, queries, values

    def _mapped_by_set(self, states, typed):
        """Return the same of states, by one product of matrices for each node set.

        The maps of a type follow those of its source set: W_k[s] A[p] is one matrix.
        """
        nodes = typed["nodes"]
        rows = batched_gather(states, ops.concatenate(nodes, axis=1))
        kernels = self._type_kernels()
        keys, queries, values, first = [], [], [], 0
        for name, ids, types in zip(
            self.node_sets, nodes, self._source_types(), strict=True
        ):
            size = ops.shape(ids)[1]
            part, first = rows[:, first : first + size], first + size
            dense = getattr(self.projection, f"dense_{name}")
            kernel, bias = (
                ops.cast(weight, self.compute_dtype)
                for weight in (dense.kernel, dense.bias)
            )
            # The bias is the last row of each matrix.
            kernel = ops.concatenate([kernel, ops.expand_dims(bias, 0)])
            key, query, value = ops.split(kernel, 3, axis=-1)
            queries.append(_affine(part, query))
            if types:
                for out, matrix, maps in zip(
                    (keys, values), (key, value), kernels, strict=True
                ):
                    out.append(self._typed_rows(part, matrix, maps, types))
        queries = batched_gather(ops.concatenate(queries, axis=1), typed["state_row"])
        return ops.concatenate(keys, axis=1), queries, ops.concatenate(values, axis=1)

    def _typed_rows(self, rows, kernel, maps, types):
        """Return rows [G, M, H] times a kernel and the maps of types, [G, M T, U]."""
        heads, width = self.num_heads, self.units // self.num_heads
        maps = ops.stack([maps[number] for number in types])
        kernel = ops.reshape(kernel, (-1, heads, width))
        kernel = ops.einsum("hkd,pkde->hpke", kernel, maps)
        rows_of_types = _affine(rows, ops.reshape(kernel, (kernel.shape[0], -1)))
        groups, count = ops.shape(rows)[:2]
        return ops.reshape(rows_of_types, (groups, count * len(types), self.units))


def _affine(rows, kernel):
    """Return rows [G, M, H] times a kernel [H + 1, U], whose last row is the bias."""
    return flat_matmul(rows, kernel[:-1]) + kernel[-1]


def checked_edge_sets(edge_sets, node_sets: list[str], num_edge_types: int):
    """Return the argument `edge_sets` as a list of tuples, or None.

    Args:
        edge_sets: The argument.
        node_sets: Names of the node sets.
        num_edge_types: P.

    Raises:
        ValueError: Unless there are P edge sets, of these node sets.
    """
    if edge_sets is None:
        return None
    names = [
        tuple(key) if isinstance(key, list | tuple) else (key,)
        for key in sequence("edge_sets", edge_sets, "a list of edge sets")
    ]
    for key in names:
        if len(key) != 3 or not {key[0], key[2]} <= {*node_sets}:
            expected = f"(source set, relation, target set) of {node_sets}, each"
            refuse("edge_sets", expected, names)
    if len(names) != num_edge_types:
        expected = f"{num_edge_types} edge sets, as `num_edge_types`"
        refuse("edge_sets", expected, names)
    return names
