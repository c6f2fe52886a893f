"""`EmbeddingBackbone`: embedded node features, without messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Unpack

import keras

from keras_bandgnn.checks import fraction, positive_int
from keras_bandgnn.layers.dropout import Dropout
from keras_bandgnn.layers.node_encoder import NodeEncoder
from keras_bandgnn.models.backbone import Backbone

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, BatchShape, Config, ModuleOptions, Tensor
    from keras_bandgnn.data.flat import FlatGraphs


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class EmbeddingBackbone(Backbone):
    """The sum of the embedded features of each node, without its neighbours.

    Over the node's own number, `node={"id": np.arange(N)}` and `{"id": N}`, it is the
    table of embeddings of DistMult and ComplEx, see `LinkPredictor`. Over other
    features it is a baseline that shows the benefit of messages.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        dropout: Dropout rate of the states.

    Input shape:
        A batch (see `keras_bandgnn.batch`); it reads `"node"`.

    Output shape:
        float [G, N, H].

    Raises:
        ValueError: For arguments out of range.

    Example:
    >>> import keras_bandgnn as kb
    >>> backbone = EmbeddingBackbone({"id": 3}, hidden_dim=8)
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"id": [0, 1, 2]})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> backbone(batch).shape[-1]
    8
    """

    # Nodes are independent, and edges are not read.
    splits_sequences = True
    num_edge_types = 0
    is_local = True

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int = 64,
        *,
        dropout: float = 0.0,
        **kwargs: Unpack[ModuleOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.dropout = fraction("dropout", dropout)
        # === Layers ===
        policy = self.dtype_policy
        self.encoder = NodeEncoder(
            self.hidden_dim, inputs, dtype=policy, name="node_encoder"
        )
        self.dropout_layer = Dropout(self.dropout, dtype=policy)
        self.build()

    def build(self, input_shape: BatchShape | None = None) -> None:
        """Build every weight from the configuration."""
        self.encoder.build()
        self.built = True

    def features_read(self) -> dict[str, tuple[str, ...]] | None:
        """Return the inputs of the encoder."""
        return {"node": tuple(self.encoder.inputs), "edge": (), "graph": ()}

    def check(self, graphs: FlatGraphs) -> None:
        """Raise a ValueError if the features of a `FlatGraphs` do not fit."""
        self.encoder.check(graphs.node, graphs.sets)

    def hidden_states(self, batch: Batch, training: bool = False) -> Iterator[Tensor]:
        """Yield the embedded features."""
        yield self.dropout_layer(self.encoder(batch), training=training)

    def call(self, batch: Batch, training: bool = False) -> Tensor:
        """Return the node states."""
        return next(self.hidden_states(batch, training))

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "inputs": self.encoder.inputs,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
        }
