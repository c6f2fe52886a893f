"""Losses and metrics of one edge that is chosen in each graph."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ChoiceCrossentropy(keras.losses.Loss):
    """Minus the log-probability of the right edge.

    Args:
        reduction: Keras' loss reduction; the default averages over real graphs.
        name: Name of the loss.

    Example:
    >>> loss = ChoiceCrossentropy()
    >>> loss.name
    'choice_crossentropy'
    """

    def __init__(
        self,
        reduction: str = "mean_with_sample_weight",
        name: str = "choice_crossentropy",
        **kwargs,
    ):
        super().__init__(name=name, reduction=reduction, **kwargs)

    def call(self, y_true, y_pred):
        """Return the losses [n] of entries [n, 2]."""
        del y_true
        return -y_pred[:, 0]


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ChoiceAccuracy(keras.metrics.MeanMetricWrapper):
    """How often the right edge is the most probable one of its graph.

    Args:
        name: Name of the metric.
        dtype: Dtype of the mean.

    Example:
    >>> ChoiceAccuracy().name
    'accuracy'
    """

    def __init__(self, name: str = "accuracy", dtype=None):
        super().__init__(_is_best, name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {"name": self.name, "dtype": self.dtype}


def _is_best(y_true, y_pred):
    del y_true
    return ops.cast(y_pred[:, 0] >= y_pred[:, 1], "float32")
