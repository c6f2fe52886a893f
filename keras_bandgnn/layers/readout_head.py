"""`ReadoutHead`: linear map of the output of a readout layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self, Unpack

import keras
from keras import ops

from keras_bandgnn.checks import boolean, one_of, refuse
from keras_bandgnn.layers.batch_layer import Readout
from keras_bandgnn.layers.graph_readout import REDUCTIONS, GraphReadout
from keras_bandgnn.registration import layer_entry, registered_layer

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, Config, Layer, LayerOptions, Shape, Tensor


def make_head(
    units: int, readout, hidden: int | None, activation, use_bias: bool
) -> Layer:
    """Return the head of a task that reads whole graphs.

    Args:
        units: Width of the output.
        readout: `"sum"`, `"mean"` or `"attention"` of a `GraphReadout`; a layer for
            `ReadoutHead`; or its entry from `head_arguments`.
        hidden: See `GraphReadout`.
        activation: See `GraphReadout`.
        use_bias: Whether the head has biases.
    """
    options = {"dtype": "float32", "name": "head"}
    if isinstance(readout, str):
        one_of("readout", readout, REDUCTIONS)
        return GraphReadout(units, readout, hidden, activation, use_bias, **options)
    if hidden is not None:
        raise ValueError(
            "Expected `hidden` only with readouts by name. Received: "
            f"hidden={hidden!r} and a layer as `readout`."
        )
    if isinstance(readout, Mapping):
        readout = registered_layer("readout", readout)
    return ReadoutHead(units, readout, use_bias, **options)


def head_arguments(head: Layer) -> dict:
    """Return plain arguments for `make_head`."""
    if isinstance(head, GraphReadout):
        config = head.get_config()
        names = ("hidden", "activation", "use_bias")
        return {"readout": head.reduce, **{name: config[name] for name in names}}
    return {"readout": layer_entry(head.readout), "use_bias": head.use_bias}


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ReadoutHead(Readout):
    """Linear map of the output of a readout layer.

    Args:
        units: Width D of the output.
        readout: A layer such as `GRUReadout(64)` that maps the states [G, N, C] and the
            batch to [G, B, readout.units], and whose `build` needs only the shape of
            the states.
        use_bias: Whether the map has a bias.

    Input shape:
        states: float [G, N, C].
        batch: The batch (see `keras_bandgnn.batch`).

    Output shape:
        float [G, B, D].

    Raises:
        ValueError: If `readout` is not a layer with `units`.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(3, [0, 1], [1, 2], node={"h": [[1.0, 2.0]] * 3})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> head = ReadoutHead(5, kb.layers.GRUReadout(2))
    >>> head(batch["node"]["h"], batch).shape[-1]
    5
    """

    splits_sequences = True

    def __init__(
        self,
        units: int,
        readout: Layer,
        use_bias: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(units, **kwargs)
        if not (isinstance(readout, keras.layers.Layer) and hasattr(readout, "units")):
            refuse(
                "readout", "a layer that has `units`, such as GRUReadout(64)", readout
            )
        # === Config ===
        self.use_bias = boolean("use_bias", use_bias)
        # === Layers ===
        self.readout = readout
        self.output_dense = keras.layers.Dense(
            self.units,
            use_bias=self.use_bias,
            dtype=self.dtype_policy,
            name="output",
        )

    def build_weights(self, states_shape: Shape) -> None:
        """Build the weights of the readout and of the map."""
        if not self.readout.built:
            self.readout.build(states_shape)
        self.output_dense.build((None, None, self.readout.units))

    def call(self, states: Tensor, batch: Batch) -> Tensor:
        """Return one vector per graph."""
        return self.output_dense(self.readout(states, batch))

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the vectors in which the output is linear; see `GraphReadout`."""
        values = self.readout(states, batch)
        if self.use_bias:
            values = ops.concatenate([values, ops.ones_like(values[..., :1])], axis=-1)
        return values

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "units": self.units,
            "readout": keras.saving.serialize_keras_object(self.readout),
            "use_bias": self.use_bias,
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Build the layer from `get_config()`."""
        readout = keras.saving.deserialize_keras_object(config["readout"])
        return cls(**{**config, "readout": readout})
