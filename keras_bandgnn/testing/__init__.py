"""Shared test harness: random graphs, a plain oracle, checks of every layer."""

from keras_bandgnn.testing.graphs import random_graph as random_graph
from keras_bandgnn.testing.harness import gradients_of as gradients_of
from keras_bandgnn.testing.harness import run_layer_test as run_layer_test
from tests.oracles.dense import ggnn as ggnn
from tests.oracles.dense import selector_logits as selector_logits
from tests.oracles.dense import typed_messages as typed_messages

__all__ = [
    "ggnn",
    "gradients_of",
    "random_graph",
    "run_layer_test",
    "selector_logits",
    "typed_messages",
]
