"""Training on several devices."""

from keras_bandgnn.distribution.data_parallel import data_parallel
from keras_bandgnn.distribution.sequence_parallel import sequence_parallel

__all__ = ["data_parallel", "sequence_parallel"]
