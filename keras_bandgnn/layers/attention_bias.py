"""`AttentionBias`: biases of attention by distance, type of edge and token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import boolean, positive_int
from keras_bandgnn.layers.batch_layer import batch_part
from keras_bandgnn.ops.lookup import LookedUp
from keras_bandgnn.ops.sequence import sequence_axis
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, LayerOptions, Shape, Tensor


@serializable
class AttentionBias(keras_bases.Layer):
    """Learned bias per head for each shortest-path distance and edge type.

        bias_ij = b[distance(j, i)] + c[type(j -> i)] - b[far] - c[no edge]

    Softmax is invariant to a constant added to all pairs of a node, so biases are
    relative to far pairs without an edge, which need not be listed.

    Args:
        num_heads: K.
        max_distance: D: distances 0 (a node itself) to D have separate biases; D + 1 is
            "far".
        num_edge_types: P; type 0 is "no edge" if P > 1 (see
            `AttentionEdges(edge_types=True)`).
        use_tokens: Whether links to tokens have a separate bias.

    Input shape:
        batch: A batch (see `keras_bandgnn.batch`); it reads
            `batch["edge"]["type"]` and `["distance"]`, int32 [G, E]. Without distances
            all edges have the distance 1.

    Output shape:
        Biases of edges, float [G, E, K], or [K] if all edges have the same (without
        distances and types); of a node to itself, [K]; of links to tokens, [K] or None.

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Ying et al. 2021 (Graphormer), Eq. 6; Zhang et al. 2024 (TorchGT), Eq. 3.

    Example:
    >>> import numpy as np
    >>> edge = {"type": np.zeros((1, 5), int), "distance": np.ones((1, 5), int)}
    >>> edges, own, token = AttentionBias(4, max_distance=2)({"edge": edge})
    >>> edges.shape[-1], own.shape[0], token is None
    (4, 4, True)
    """

    splits_sequences = True

    def __init__(
        self,
        num_heads: int,
        max_distance: int = 1,
        num_edge_types: int = 1,
        use_tokens: bool = False,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.num_heads = positive_int("num_heads", num_heads)
        self.max_distance = positive_int("max_distance", max_distance)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.use_tokens = boolean("use_tokens", use_tokens)

    def build(self, batch_shape: BatchShape | None = None) -> None:
        """Build b [D + 2, K], c [P, K] if P > 1, and the number of tokens."""

        def table(name, rows):
            shape = (rows, self.num_heads)
            start = keras.initializers.RandomNormal(stddev=0.02)
            return self.add_weight(name=name, shape=shape, initializer=start)

        self.distances = table("distances", self.max_distance + 2)
        self.types = self.tokens = None
        if self.num_edge_types > 1:
            self.types = table("types", self.num_edge_types)
        if self.use_tokens:
            self.tokens = table("tokens", 1)
        self.built = True

    def call(
        self, batch: Batch, as_table: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the biases of edges, of nodes themselves and of tokens.

        Args:
            batch: A batch.
            as_table: Whether those of edges, unless all have the same, are a
                `LookedUp` (see `ops.lookup`), which needs one number per edge
                instead of K.
        """
        edge = batch_part(batch, "edge", "layer(batch)")
        axis = sequence_axis()

        def table(weight):
            # Heads are sharded over the devices that share a sequence.
            weight = ops.convert_to_tensor(weight)
            return weight if axis is None else axis.local_columns(weight)

        distances = table(self.distances)
        distances = distances - distances[-1:]
        kinds = ops.convert_to_tensor(edge["type"])
        steps = types = None
        if "distance" in edge:
            steps = ops.clip(
                ops.convert_to_tensor(edge["distance"]), 0, self.max_distance + 1
            )
        if self.types is not None:
            types = table(self.types)
            types = types - types[:1]
        if as_table and (steps is not None or types is not None):
            bias = self._table(distances, steps, types, kinds)
        else:
            bias = distances[1] if steps is None else graph_ops.gather(distances, steps)
            if types is not None:
                bias = bias + graph_ops.gather(types, kinds)
        tokens = None
        if self.tokens is not None:
            tokens = table(self.tokens)[0] - table(self.distances)[-1]
        return bias, distances[0], tokens

    def _table(self, distances, steps, types, kinds) -> LookedUp:
        """Return the bias of each pair of a distance and a type, and those of edges."""
        if types is None:
            return LookedUp(distances, steps)
        if steps is None:
            return LookedUp(distances[1] + types, kinds)
        return LookedUp(distances, steps).added(LookedUp(types, kinds))

    def compute_output_shape(self, batch_shape: BatchShape) -> tuple[Shape | None, ...]:
        """[G, E, K], [K], and [K] or None."""
        edge_shape = batch_part(batch_shape, "edge", "layer(batch)")
        heads = (self.num_heads,)
        several = "distance" in edge_shape or self.num_edge_types > 1
        edges = (*edge_shape["type"], *heads) if several else heads
        return edges, heads, heads if self.use_tokens else None
