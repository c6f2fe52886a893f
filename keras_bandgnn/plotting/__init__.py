"""Figures (extra: plot)."""

from keras_bandgnn.plotting.bandwidths import plot_bandwidths as plot_bandwidths
from keras_bandgnn.plotting.batch_fill import plot_batch_fill as plot_batch_fill
from keras_bandgnn.plotting.batching import plot_shapes as plot_shapes
from keras_bandgnn.plotting.batching import plot_speedups as plot_speedups
from keras_bandgnn.plotting.batching import plot_step_times as plot_step_times
from keras_bandgnn.plotting.calibration import plot_calibration as plot_calibration
from keras_bandgnn.plotting.confusion_matrix import (
    plot_confusion_matrix as plot_confusion_matrix,
)
from keras_bandgnn.plotting.embeddings import plot_embeddings as plot_embeddings
from keras_bandgnn.plotting.history import plot_history as plot_history
from keras_bandgnn.plotting.parity import plot_parity as plot_parity

__all__ = [
    "plot_bandwidths",
    "plot_batch_fill",
    "plot_calibration",
    "plot_confusion_matrix",
    "plot_embeddings",
    "plot_history",
    "plot_parity",
    "plot_shapes",
    "plot_speedups",
    "plot_step_times",
]
