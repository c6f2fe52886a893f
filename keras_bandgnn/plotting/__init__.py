"""Figures (extra: plot)."""

from keras_bandgnn.plotting.bandwidths import plot_bandwidths as plot_bandwidths

__all__ = ["plot_bandwidths"]
