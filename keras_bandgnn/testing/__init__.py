"""Test helpers for custom layers: random graphs, gradients, a layer test."""

from keras_bandgnn.testing.graphs import random_graph
from keras_bandgnn.testing.harness import gradients_of, run_layer_test

__all__ = ["gradients_of", "random_graph", "run_layer_test"]
