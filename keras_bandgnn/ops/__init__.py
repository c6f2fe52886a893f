"""Tensor functions that Keras lacks or has slower, one file per backend."""

import keras

if keras.backend.backend() == "jax":
    from keras_bandgnn.ops.backend.jax import gather as gather
    from keras_bandgnn.ops.backend.jax import has_accelerator as has_accelerator
    from keras_bandgnn.ops.backend.jax import scatter_add as scatter_add
    from keras_bandgnn.ops.backend.jax import seed_global as seed_global
    from keras_bandgnn.ops.backend.jax import segment_sum as segment_sum
elif keras.backend.backend() == "tensorflow":
    from keras_bandgnn.ops.backend.tensorflow import gather as gather
    from keras_bandgnn.ops.backend.tensorflow import has_accelerator as has_accelerator
    from keras_bandgnn.ops.backend.tensorflow import scatter_add as scatter_add
    from keras_bandgnn.ops.backend.tensorflow import seed_global as seed_global
    from keras_bandgnn.ops.backend.tensorflow import segment_sum as segment_sum
elif keras.backend.backend() == "torch":
    from keras_bandgnn.ops.backend.torch import gather as gather
    from keras_bandgnn.ops.backend.torch import has_accelerator as has_accelerator
    from keras_bandgnn.ops.backend.torch import scatter_add as scatter_add
    from keras_bandgnn.ops.backend.torch import seed_global as seed_global
    from keras_bandgnn.ops.backend.torch import segment_sum as segment_sum
else:
    raise ImportError(
        "Expected KERAS_BACKEND to be 'jax', 'tensorflow' or 'torch'. "
        f"Received: {keras.backend.backend()!r}."
    )

from keras_bandgnn.ops.batched import batched_gather as batched_gather
from keras_bandgnn.ops.batched import batched_segment_sum as batched_segment_sum
from keras_bandgnn.ops.batched import offset_ids as offset_ids

__all__ = [
    "batched_gather",
    "batched_segment_sum",
    "gather",
    "has_accelerator",
    "offset_ids",
    "scatter_add",
    "seed_global",
    "segment_sum",
]
