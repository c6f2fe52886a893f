"""`GTBackbone`: a transformer with Laplacian eigenvectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import mapping, positive_int
from keras_bandgnn.models.graph_transformer.graph_transformer_backbone import (
    GraphTransformerBackbone,
)
from keras_bandgnn.ops.sequence import same_on_devices
from keras_bandgnn.preprocessing.structural_encoding import StructuralEncoding

if TYPE_CHECKING:
    from keras_bandgnn.aliases import (
        Batch,
        BatchShape,
        Config,
        Tensor,
        TransformerOptions,
    )


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class GTBackbone(GraphTransformerBackbone):
    """The graph transformer GT, with sparse, full or interleaved attention.

        h(0) = x + W (eigenvectors of the Laplacian)

    followed by pre-norm blocks without biases by distance. Eigenvectors are known up to
    their sign, so training draws a sign for each graph and vector.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`, without eigenvectors.
        hidden_dim: H.
        num_layers: L.
        num_heads: K, a divisor of H.
        laplacian: Number of eigenvectors, 0 for none.
        **options: `ffn_dim`, `attention`, `full_every`, `num_edge_types` (biases by
            type of edge if more than 1), `global_token`, `dropout`,
            `attention_dropout`, `max_length`, `fused`, `remat`, `target_type` (for
            tasks over edges) and `edge_inputs` (biases by edge features; the paper
            multiplies the scores with them and updates them, which these biases do
            not), see `GraphTransformerBackbone`.

    Input shape:
        A batch (see `keras_bandgnn.batch`) of graphs from `graph_layers()`.

    Output shape:
        float [G, N, H]; with `call(batch, return_tokens=True)` also [G, B, H].

    Raises:
        ValueError: For arguments out of range or graphs that do not fit.

    Reference:
        Dwivedi and Bresson 2021; Zhang et al. 2024 (TorchGT), Table IV: L = 4,
        H = 128, K = 8.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [kb.Graph(4, [0, 1, 2], [1, 2, 3], node={"kind": [0, 1, 0, 1]})] * 4
    >>> backbone = GTBackbone({"kind": 2}, 8, num_layers=1, num_heads=2, laplacian=2)
    >>> prepared = kb.preprocessing.GraphPreprocessor(backbone.graph_layers())
    >>> batch, = prepared.loader(graphs, plan=backbone.auto_plan())[0]
    >>> backbone(batch).shape[-1]
    8
    """

    splits_sequences = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 128,
        num_layers: int = 4,
        *,
        num_heads: int = 8,
        laplacian: int = 8,
        **options: Unpack[TransformerOptions],
    ):
        self.own_inputs = dict(mapping("inputs", inputs))
        vectors = positive_int("laplacian", laplacian, 0)
        inputs = dict(inputs)
        if vectors:
            inputs["laplacian"] = {"features": vectors}
        typed = options.get("num_edge_types", 1) > 1
        typed = typed or "type" in (options.get("edge_inputs") or {})
        options = {"use_bias": typed, **options}
        super().__init__(inputs, hidden_dim, num_layers, num_heads=num_heads, **options)
        self.laplacian = vectors

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration, and the state of the signs."""
        self.seed_generator = keras.random.SeedGenerator()
        super().build(input_shape)

    def graph_layers(self) -> list:
        """Return the preprocessing layers that graphs need for this model, in order."""
        layers = super().graph_layers()
        if self.laplacian:
            layers.insert(0, StructuralEncoding(laplacian=self.laplacian))
        return layers

    def first_states(self, batch: Batch, training: bool) -> Tensor:
        """Return the embedded features and eigenvectors [G, N, H]."""
        node = batch["node"]
        if not (training and self.laplacian):
            return self.encoder(batch)
        vectors = ops.convert_to_tensor(node["laplacian"])
        shape = (*ops.shape(batch["graph"]["mask"]), self.laplacian)
        # Dropout draws 0 or 2, so that recorded steps draw signs, too.
        twice = graph_ops.dropout(
            ops.ones(shape, vectors.dtype), 0.5, self.seed_generator
        )
        signs = same_on_devices(twice - 1.0)
        signs = graph_ops.batched_gather(signs, ops.convert_to_tensor(node["graph_id"]))
        return self.encoder({**batch, "node": {**node, "laplacian": vectors * signs}})

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "inputs": self.own_inputs,
            "laplacian": self.laplacian,
        }
