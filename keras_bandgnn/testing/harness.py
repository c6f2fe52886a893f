"""Checks that every layer passes."""

import keras
import numpy as np


def run_layer_test(layer, *inputs, mixed: bool = True):
    """Checks a layer's config round trip, symbolic shape and reduced precision.

    Args:
        layer: A layer that was not called yet.
        *inputs: Arrays or nested dicts of arrays for its call.
        mixed: Whether to run the layer under "mixed_bfloat16" too.

    Returns:
        The layer's output, as NumPy.
    """
    cls, config = type(layer), layer.get_config()
    assert cls.from_config(config).get_config() == config
    revived = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert type(revived) is cls
    output = np.asarray(keras.ops.convert_to_numpy(layer(*inputs)))
    assert np.isfinite(output).all()

    def symbolic(array):
        array = np.asarray(array)
        return keras.KerasTensor(array.shape, array.dtype.name)

    spec = cls.from_config(config)(*keras.tree.map_structure(symbolic, inputs))
    assert tuple(spec.shape) == output.shape
    assert spec.dtype == output.dtype.name
    if mixed:
        reduced = cls.from_config({**config, "dtype": "mixed_bfloat16"})
        result = reduced(*inputs)
        assert keras.backend.standardize_dtype(result.dtype) == "bfloat16"
        weights = {keras.backend.standardize_dtype(w.dtype) for w in reduced.weights}
        assert weights <= {"float32"}
    return output
