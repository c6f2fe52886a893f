"""keras-tuner, or an error that names the extra."""

from keras_bandgnn.optional import optional_import

keras_tuner = optional_import("keras_tuner", "keras-bandgnn[tuner]", "searches")

__all__ = ["keras_tuner"]
