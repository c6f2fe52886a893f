"""`LayeredBackbone`: what GCN and GAT share."""

from collections.abc import Mapping

import keras

from keras_bandgnn.checks import fraction, positive_int
from keras_bandgnn.layers.node_encoder import NodeEncoder
from keras_bandgnn.models.backbone import Backbone


class LayeredBackbone(Backbone):
    """Node features through one layer after the other, each with its own weights.

    Subclasses make `convolutions`, call `build`, and override `convolve`.

    Args:
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden_dim: H.
        num_layers: L.
        num_edge_types: P, types of edges that graphs may have; they are not read.
        dropout: Share that is dropped of the features given as `{"features": F}`, and
            of the states between two layers.
    """

    # Between two layers.
    activation: str

    def __init__(
        self,
        inputs: Mapping,
        hidden_dim: int,
        num_layers: int,
        num_edge_types: int,
        dropout: float,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.hidden_dim = positive_int("hidden_dim", hidden_dim)
        self.num_layers = positive_int("num_layers", num_layers)
        self.num_edge_types = positive_int("num_edge_types", num_edge_types)
        self.dropout = fraction("dropout", dropout)
        # === Layers ===
        self.encoder = NodeEncoder(
            self.hidden_dim, inputs, dtype=self.dtype_policy, name="node_encoder"
        )
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)

    def build(self, input_shape=None):
        """Build every weight from the configuration."""
        self.encoder.build()
        for layer in self.convolutions:
            layer.build((None, None, self.hidden_dim))
        self.built = True

    def features_read(self):
        """Return the inputs of the encoder."""
        return {"node": tuple(self.encoder.inputs), "edge": (), "graph": ()}

    def check(self, graphs) -> None:
        """Raise a ValueError if the features of a `FlatGraphs` do not fit."""
        self.encoder.check(graphs.node)

    def prepare(self, batch):
        """What `convolve` takes of a batch, the same for all layers."""
        return batch

    def convolve(self, layer, states, prepared, training: bool):
        """New states [G, N, H] from one of `convolutions`."""
        raise NotImplementedError

    def hidden_states(self, batch, training=False):
        """Yield the embedded features and the states after each layer."""
        node = dict(batch["node"])
        for name, spec in self.encoder.inputs.items():
            if "features" in spec and name in node:
                node[name] = self.dropout_layer(node[name], training=training)
        states = self.encoder({**batch, "node": node})
        yield states
        prepared = self.prepare(batch)
        for number, layer in enumerate(self.convolutions):
            states = self.inputs_of(number, states)
            if number:
                states = self.dropout_layer(states, training=training)
            states = self.convolve(layer, states, prepared, training)
            yield states

    def inputs_of(self, number: int, states):
        """What a layer takes of the states before it."""
        return keras.activations.get(self.activation)(states) if number else states

    def call(self, batch, training=False):
        """Return the node states after the last layer, which has no activation."""
        for states in self.hidden_states(batch, training):
            last = states
        return last

    def get_config(self):
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "inputs": self.encoder.inputs,
            "hidden_dim": self.hidden_dim,
            "num_layers": self.num_layers,
            "num_edge_types": self.num_edge_types,
            "dropout": self.dropout,
        }
