"""Figures (extra: plot)."""

from keras_bandgnn.plotting.bandwidths import plot_bandwidths
from keras_bandgnn.plotting.batch_fill import plot_batch_fill
from keras_bandgnn.plotting.batching import plot_shapes, plot_speedups, plot_step_times
from keras_bandgnn.plotting.calibration import plot_calibration
from keras_bandgnn.plotting.confusion_matrix import plot_confusion_matrix
from keras_bandgnn.plotting.embeddings import plot_embeddings
from keras_bandgnn.plotting.history import plot_history
from keras_bandgnn.plotting.model_graph import layers_to_dot
from keras_bandgnn.plotting.parity import plot_parity
from keras_bandgnn.plotting.schema import plot_schema

__all__ = [
    "layers_to_dot",
    "plot_bandwidths",
    "plot_batch_fill",
    "plot_calibration",
    "plot_confusion_matrix",
    "plot_embeddings",
    "plot_history",
    "plot_parity",
    "plot_schema",
    "plot_shapes",
    "plot_speedups",
    "plot_step_times",
]
