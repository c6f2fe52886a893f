"""Functional models of Keras with the layers of a backbone or a task."""

from collections.abc import Mapping

import keras

from keras_bandgnn.checks import mapping
from keras_bandgnn.layers.batch_layer import batch_part, is_symbolic
from keras_bandgnn.preprocessing.loading.exports import make_inputs


def functional_model(model, batch: Mapping) -> keras.Model:
    """Return a functional model of the same layers and weights as a model.

    Keras sees the calls of all layers, which are its nodes: `keras.utils.plot_model`
    draws them, and `keras.Model` takes the output of any of them.

    Args:
        model: A backbone or a task.
        batch: A batch of a loader, whose shapes the model has; or inputs of a loader.

    Raises:
        ValueError: If the model computes with arrays outside of layers, as under a plan
            with a schedule.
    """
    batch_part(mapping("batch", batch), "node", "model.functional(batch)")
    inputs = batch
    if not is_symbolic(batch):
        specs = keras.tree.map_structure(lambda a: (a.shape, a.dtype), batch)
        inputs = make_inputs(specs)
    backbone = getattr(model, "backbone", model)
    try:
        outputs = backbone.call(inputs)
        if model is not backbone:
            # A backbone returns the states that a batch has already.
            outputs = model.call({**inputs, "explained": {"states": outputs}})
    except Exception as error:  # Keras and the backends raise several kinds.
        raise ValueError(
            "Expected a model that computes by layers and operations of Keras alone. "
            f"Received: {type(backbone).__name__}, for which tracing ends with "
            f"{type(error).__name__}. Leave a schedule out of the plan, or call the "
            "model as one layer, model(loader.inputs())."
        ) from error
    return keras.Model(inputs, outputs, name=model.name)
