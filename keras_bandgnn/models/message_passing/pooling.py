"""Pooling between the layers of a message-passing backbone."""

from collections.abc import Mapping

import keras

from keras_bandgnn.checks import refuse
from keras_bandgnn.layers.top_k_pooling import NodePooling, pooled_batch
from keras_bandgnn.ops.batched import batched_gather
from keras_bandgnn.registration import registered_layer

_EXPECTED = "TopKPooling, SAGPooling, or a list of them and None"


def pooling_layers(pooling, num_layers: int, dtype) -> list:
    """Return the pooling layers after all layers but the last.

    Args:
        pooling: A `NodePooling`, of which each place gets one with weights of its own;
            or a list of `NodePooling`, results of `layer_entry`, and None.
        num_layers: L.
        dtype: The dtype policy.

    Returns:
        `NodePooling` or None for each of the L - 1 places.

    Raises:
        ValueError: For another argument, or a list of another length.
    """
    places = num_layers - 1
    if not isinstance(pooling, list | tuple):
        if not places:
            refuse("pooling", "None for a single layer", pooling)
        pooling = [pooling] * places
    if len(pooling) != places:
        expected = f"a list of {places}, for the places between {num_layers} layers"
        refuse("pooling", expected, pooling)
    return [_copy(layer, number, dtype) for number, layer in enumerate(pooling)]


def _copy(layer, number: int, dtype) -> NodePooling | None:
    """Return a new layer with the arguments of a layer, or of an entry in a file."""
    if layer is None:
        return None
    if isinstance(layer, Mapping):
        layer = registered_layer("pooling", layer)
    if not isinstance(layer, NodePooling):
        advice = "Clusters are a readout of tasks: readout=MinCutPooling(64, 8)."
        refuse("pooling", _EXPECTED, layer, advice)
    config = {**layer.get_config(), "name": f"pooling_{number}"}
    config["dtype"] = keras.saving.serialize_keras_object(dtype)
    return type(layer).from_config(config)


def pool(layer: NodePooling, states, edge_states, batch, num_edge_types: int) -> tuple:
    """Return the states, the edge states and the batch after a pooling layer.

    Args:
        layer: The layer.
        states: float [G, N, H].
        edge_states: float [G, E, H], or None.
        batch: The batch.
        num_edge_types: P, types of edges that later layers tell apart.
    """
    states, mask = layer(states, batch)
    batch, order = pooled_batch(batch, mask, num_edge_types)
    if edge_states is not None:
        edge_states = batched_gather(edge_states, order)
    return states, edge_states, batch
