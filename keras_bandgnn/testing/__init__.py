"""Test helpers for custom layers: random graphs, gradients, a layer test."""

from keras_bandgnn.testing.graphs import random_graph as random_graph
from keras_bandgnn.testing.harness import gradients_of as gradients_of
from keras_bandgnn.testing.harness import run_layer_test as run_layer_test

__all__ = ["gradients_of", "random_graph", "run_layer_test"]
