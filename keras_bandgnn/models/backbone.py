"""`Backbone`: what all graph networks without a head share."""

import keras


class Backbone(keras.Model):
    """A model from a batch to node states [G, N, H].

    Backbones build all weights from their configuration, so they need no data to be
    built, saved or loaded. Subclasses set `hidden_dim` and `num_edge_types` (0 if they
    do not read types of edges) and override `build`, `call` and `get_config`.
    """

    hidden_dim: int
    num_edge_types: int
    # Whether several devices may share a supergraph.
    splits_sequences = False

    def receptive_field(self, training: bool):
        """The `ReceptiveField` that is exact for this backbone, or None.

        Args:
            training: Whether dropout acts.
        """
        del training

    def graph_layers(self) -> list:
        """The preprocessing layers that graphs need for this model, in order."""
        return []

    def auto_plan(self):
        """The plan of loaders that are told `"auto"`; None for the cheapest one."""

    def check(self, graphs) -> None:
        """Raises a ValueError if the features of a `FlatGraphs` do not fit."""

    def compute_output_shape(self, input_shape):
        """[G, N, H]."""
        return (*input_shape["node"]["mask"], self.hidden_dim)

    @classmethod
    def from_config(cls, config):
        """Builds the backbone from `get_config()`."""
        return cls(**config)
