"""From the argument `readout` of a task to its head, and back."""

from collections.abc import Mapping

import keras

from keras_bandgnn.checks import one_of
from keras_bandgnn.layers.graph_readout import REDUCTIONS, GraphReadout
from keras_bandgnn.layers.readout_head import ReadoutHead


def make_head(
    units: int, readout, hidden: int | None, activation, use_bias: bool
) -> keras.layers.Layer:
    """The head of a task that reads whole graphs.

    Args:
        units: Width of the output.
        readout: `"sum"`, `"mean"` or `"attention"` of a `GraphReadout`; a layer for
            `ReadoutHead`; or what `head_arguments` made of one.
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
            "Expected `hidden` with readouts by name alone. Received: "
            f"hidden={hidden!r} and a layer as `readout`."
        )
    if isinstance(readout, Mapping):
        readout = _registered(readout)
    return ReadoutHead(units, readout, use_bias, **options)


def _registered(entry: Mapping) -> keras.layers.Layer:
    # A file names a class that this process knows already: nothing is imported.
    cls = keras.saving.get_registered_object(entry.get("registered_name"))
    if not (isinstance(cls, type) and issubclass(cls, keras.layers.Layer)):
        raise ValueError(
            "Expected `readout` to name a registered layer. Received: "
            f"{entry.get('registered_name')!r}. Register your own class with "
            "keras.saving.register_keras_serializable before loading."
        )
    return cls.from_config(entry["config"])


def head_arguments(head: keras.layers.Layer) -> dict:
    """Plain arguments for `make_head`."""
    if isinstance(head, GraphReadout):
        config = head.get_config()
        names = ("hidden", "activation", "use_bias")
        return {"readout": head.reduce, **{name: config[name] for name in names}}
    cls = type(head.readout)
    return {
        "readout": {
            "registered_name": keras.saving.get_registered_name(cls),
            "config": head.readout.get_config(),
        },
        "use_bias": head.use_bias,
    }
