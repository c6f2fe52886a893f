"""Checks that every layer must pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Layer, Tensor
    from keras_bandgnn.models.graph_model import GraphModel


def run_layer_test(layer: Layer, *inputs: Tensor, mixed: bool = True) -> np.ndarray:
    """Check a layer's config round trip, symbolic shape and mixed precision.

    Args:
        layer: A layer that has not been called.
        *inputs: Arrays or nested dicts of arrays to call it with.
        mixed: Whether to also run the layer under "mixed_bfloat16".

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


def gradients_of(task: GraphModel, batch: tuple) -> dict[str, np.ndarray]:
    """Return the gradient of the task's loss for each trainable weight, by path.

    Args:
        task: A compiled task.
        batch: (x, y, sample_weight).
    """
    x, y, weight = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
    variables = task.trainable_variables
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        fixed = [v.value for v in task.non_trainable_variables]

        def loss(values, x, y, weight):
            outputs, _ = task.stateless_call(values, fixed, x)
            return task.compute_loss(x, y, outputs, weight)

        values = [v.value for v in variables]
        gradients = jax.jit(jax.grad(loss))(values, x, y, weight)
    elif backend == "torch":
        for variable in variables:
            variable.value.grad = None
        task.compute_loss(x, y, task(x), weight).backward()
        gradients = [v.value.grad for v in variables]
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = task.compute_loss(x, y, task(x), weight)
        tape_gradients = tape.gradient(loss, [v.value for v in variables])
        gradients = [tf.convert_to_tensor(g) for g in tape_gradients]
    return {
        v.path: np.asarray(keras.ops.convert_to_numpy(g))
        for v, g in zip(variables, gradients, strict=True)
    }
