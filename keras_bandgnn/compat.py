"""Private parts of Keras, TensorFlow and torch that the library needs, in one place.

No other module uses any. Each function says what it stands for; all were there in
Keras 3.15, TensorFlow 2.21 and torch 2.13. tests/test_compat.py fails when one is gone.
"""

import sys

import keras
from keras.src.backend import in_stateless_scope as in_stateless_scope

# Attribute of a model that holds the metric "loss".
LOSS_TRACKER = "_loss_tracker"


def sublayers(model: keras.Model) -> list:
    """Return the model and all layers in it (`Layer._flatten_layers`)."""
    return list(model._flatten_layers())


# === What `Model.compile` leaves ===


def forget_compiled(model: keras.Model) -> None:
    """Forget losses and metrics of an earlier `compile`, which Keras keeps."""
    model.loss = model._compile_loss = model._compile_metrics = None


def compiled_loss(model: keras.Model):
    """Return the function of labels, outputs and weights that `compile` made."""
    return model._compile_loss


def has_compiled_metrics(model: keras.Model) -> bool:
    """Whether `compile` was given metrics."""
    return model._compile_metrics is not None


def loss_tracker(model: keras.Model):
    """Return the metric "loss", which the steps of all backends update."""
    return model._loss_tracker


def added_loss(model: keras.Model, value):
    """Return a part of the loss as Keras adds it up, scaled for the devices."""
    return model._aggregate_additional_loss(value)


# === Building before the first step ===


def build_step(model: keras.Model, batch) -> None:
    """Make the variables of metrics and optimizer from the shapes of a batch."""
    model._symbolic_build(data_batch=batch)


class BuildHooks(keras.Model):
    """A model that chooses the batch that Keras builds its variables from."""

    def batch_to_build(self, batch):
        """Return the batch whose shapes tell what to build."""
        return batch

    def builds_from_batches(self) -> bool:
        """Whether Keras is to build from the data it is given."""
        return True

    def _symbolic_build(self, iterator=None, data_batch=None):
        super()._symbolic_build(iterator, self.batch_to_build(data_batch))

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Of the TensorFlow trainer alone.
        if self.builds_from_batches():
            super()._maybe_symbolic_build(iterator, data_batch)


# === Backends ===


def gradients_are_summed(optimizer) -> None:
    """Tell an optimizer on TensorFlow that it is given sums over all devices."""
    optimizer._all_reduce_sum_gradients = list


def set_length(dataset, steps: int) -> None:
    """Set how many steps Keras asks a distributed data set of TensorFlow for."""
    dataset._cardinality = steps


def in_xla_context(graph) -> bool:
    """Whether a graph of TensorFlow is part of what XLA compiles."""
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(graph)


def forget_missing_tensorflow() -> None:
    """Let Keras look for TensorFlow again, which it remembers not to have found."""
    utils = sys.modules.get("keras.src.utils.module_utils")
    for name in ("tensorflow", "gfile"):
        lazy = getattr(utils, name, None)
        if getattr(lazy, "_available", None) is False:
            lazy._available = None


def torch_compilations() -> dict:
    """Return torch's counters; "unique_graphs" counts programs compiled so far."""
    # The compiler takes a second to import; eager training does without it.
    from torch._dynamo.utils import counters

    return counters["stats"]


def softplus_in_place(x) -> None:
    """Replace a tensor of torch by its softplus, without a second one."""
    from torch._C import _nn

    _nn.softplus(x, out=x)
