"""The functions of the backend in use, one file per backend.

`current` is the module of the backend that Keras runs on. Nothing else selects one.
"""

import importlib

import keras

if keras.backend.backend() not in ("jax", "tensorflow", "torch"):
    raise ImportError(
        "Expected KERAS_BACKEND to be 'jax', 'tensorflow' or 'torch'. "
        f"Received: {keras.backend.backend()!r}."
    )

current = importlib.import_module(
    f"keras_bandgnn.ops.backend.{keras.backend.backend()}"
)
