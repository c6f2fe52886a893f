"""Training on several devices."""

from keras_bandgnn.distribution.data_parallel import data_parallel as data_parallel

__all__ = ["data_parallel"]
