"""The norms of message-passing backbones, by name."""

import keras

from keras_bandgnn.layers.batch_normalization import MaskedBatchNormalization
from keras_bandgnn.layers.graph_normalization import (
    GraphNormalization,
    PairNormalization,
)
from keras_bandgnn.layers.layer_normalization import LayerNormalization


def norm_layer(norm: str | None, **options) -> keras.layers.Layer | None:
    """Return a new norm.

    Args:
        norm: `"batch"`, `"layer"`, `"graph"`, `"pair"` or None.
        **options: `name` and `dtype` of the layer.
    """
    if norm is None:
        return None
    if norm == "layer":
        return LayerNormalization(epsilon=1e-5, **options)
    kinds = {
        "batch": MaskedBatchNormalization,
        "graph": GraphNormalization,
        "pair": PairNormalization,
    }
    return kinds[norm](**options)
