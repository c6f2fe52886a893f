"""Figures (extra: plot)."""

from keras_bandgnn.plotting.bandwidths import plot_bandwidths as plot_bandwidths
from keras_bandgnn.plotting.batching import plot_shapes as plot_shapes
from keras_bandgnn.plotting.batching import plot_speedups as plot_speedups
from keras_bandgnn.plotting.batching import plot_step_times as plot_step_times

__all__ = ["plot_bandwidths", "plot_shapes", "plot_speedups", "plot_step_times"]
