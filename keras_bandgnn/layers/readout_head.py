"""`ReadoutHead`: numbers per graph from the output of a readout layer."""

import keras

from keras_bandgnn.checks import boolean, positive_int


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ReadoutHead(keras.layers.Layer):
    """A linear map of what a readout gives per graph.

    Args:
        units: Width D of the output.
        readout: A layer such as `GRUReadout(64)`: called with the states [G, N, C] and
            the batch it gives [G, B, readout.units], and its `build` needs no more
            than the shape of the states.
        use_bias: Whether the map has a bias.

    Input shape:
        states: float [G, N, C].
        x: The batch (see `keras_bandgnn.batch`).

    Output shape:
        float [G, B, D].

    Raises:
        ValueError: If `readout` is no layer with `units`.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> x, = kb.data.GraphLoader([graph])[0]
    >>> head = ReadoutHead(5, kb.layers.GRUReadout(2))
    >>> head(x["node"]["h"], x).shape[-1]
    5
    """

    splits_sequences = True

    def __init__(
        self, units: int, readout: keras.layers.Layer, use_bias: bool = True, **kwargs
    ):
        super().__init__(**kwargs)
        if not (isinstance(readout, keras.layers.Layer) and hasattr(readout, "units")):
            raise ValueError(
                "Expected `readout` to be a layer that has `units`, such as "
                f"GRUReadout(64). Received: readout={readout!r}."
            )
        # === Config ===
        self.units = positive_int("units", units)
        self.use_bias = boolean("use_bias", use_bias)
        # === Layers ===
        self.readout = readout
        self.output_dense = keras.layers.Dense(
            self.units,
            use_bias=self.use_bias,
            dtype=self.dtype_policy,
            name="output",
        )

    def build(self, states_shape, x_shape=None):
        """Makes the weights of the readout and of the map."""
        if not self.readout.built:
            self.readout.build(states_shape)
        self.output_dense.build((None, None, self.readout.units))
        self.built = True

    def call(self, states, x):
        """Returns one vector per graph."""
        return self.output_dense(self.readout(states, x))

    def compute_output_shape(self, states_shape, x_shape=None):
        """[G, B, D]."""
        if x_shape is None:  # As in `summary`, which knows what `build` was given.
            return (states_shape[0], None, self.units)
        return (*x_shape["graph"]["n_node"], self.units)

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "units": self.units,
            "readout": keras.saving.serialize_keras_object(self.readout),
            "use_bias": self.use_bias,
        }

    @classmethod
    def from_config(cls, config):
        """Builds the layer from `get_config()`."""
        readout = keras.saving.deserialize_keras_object(config["readout"])
        return cls(**{**config, "readout": readout})
