"""`GraphormerBackbone`: a transformer with degrees and shortest paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import mapping, positive_int
from keras_bandgnn.models.graph_transformer.graph_transformer_backbone import (
    GraphTransformerBackbone,
)
from keras_bandgnn.preprocessing.structural_encoding import StructuralEncoding

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Config, TransformerOptions


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GraphormerBackbone(GraphTransformerBackbone):
    """Graphormer, with full, sparse or interleaved attention.

        h(0) = x + z-[in-degree] + z+[out-degree]
        s_ij = q_i . k_j / sqrt(d) + b[shortest-path distance] + c(features of j -> i)

    followed by pre-norm blocks; the biases b and c are shared by all layers. c, with
    `edge_inputs`, is that of the paper's Eq. 7 for pairs that are edges, and 0 for
    pairs further apart, whose paths are not followed. The defaults are
    GraphormerSlim; GraphormerLarge is `hidden_dim=768, num_layers=12, num_heads=32`.
    `graph_layers()` are the preprocessing layers that it needs; tasks use them by
    themselves unless they are given a preprocessor.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`, without degrees.
        hidden_dim: H.
        num_layers: L.
        num_heads: K, a divisor of H.
        max_degree: Larger degrees count as this one.
        **options: `ffn_dim`, `attention`, `full_every`, `max_distance`,
            `num_edge_types`, `global_token`, `dropout`, `attention_dropout`,
            `max_length`, `fused`, `remat`, `edge_inputs` and `target_type`, see
            `GraphTransformerBackbone`.

    Input shape:
        A batch (see `keras_bandgnn.batch`) of graphs from `graph_layers()`.

    Output shape:
        float [G, N, H]; with `call(batch, return_tokens=True)` also [G, B, H].

    Raises:
        ValueError: For arguments out of range or graphs that do not fit.

    Reference:
        Ying et al. 2021; Zhang et al. 2024 (TorchGT), Eqs. 2 and 3, Table IV.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [kb.Graph(4, [0, 1, 2], [1, 2, 3], node={"kind": [0, 1, 0, 1]})] * 4
    >>> backbone = GraphormerBackbone({"kind": 2}, 8, num_layers=1, num_heads=2)
    >>> prepared = kb.preprocessing.GraphPreprocessor(backbone.graph_layers())
    >>> batch, = prepared.loader(graphs, plan=backbone.auto_plan())[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        num_layers: int = 4,
        *,
        num_heads: int = 8,
        max_degree: int = 64,
        **options: Unpack[TransformerOptions],
    ):
        self.own_inputs = dict(mapping("inputs", inputs))
        degrees = positive_int("max_degree", max_degree)
        inputs = {**inputs, "in_degree": degrees + 1, "out_degree": degrees + 1}
        super().__init__(inputs, hidden_dim, num_layers, num_heads=num_heads, **options)
        self.max_degree = degrees

    def graph_layers(self) -> list:
        """Return the preprocessing layers that graphs need for this model, in order."""
        return [StructuralEncoding(self.max_degree), *super().graph_layers()]

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "inputs": self.own_inputs,
            "max_degree": self.max_degree,
        }
