"""Classes of Keras that the library's classes derive from.

Type checkers read `keras_bases.pyi`, since Keras does not ship its types: without it a
task would have every method for them. Like `host_keras`, it imports without a backend.
"""

from keras_bandgnn.default_backend import imports_keras
from keras_bandgnn.host_keras import keras

Layer = keras.layers.Layer
PyDataset = keras.utils.PyDataset
if imports_keras():
    Callback = keras.callbacks.Callback
    Dense = keras.layers.Dense
    Dropout = keras.layers.Dropout
    LayerNormalization = keras.layers.LayerNormalization
    LearningRateSchedule = keras.optimizers.schedules.LearningRateSchedule
    Loss = keras.losses.Loss
    MeanMetricWrapper = keras.metrics.MeanMetricWrapper
    Metric = keras.metrics.Metric
    Model = keras.Model
