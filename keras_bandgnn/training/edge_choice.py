"""Losses and metrics of one edge that is chosen in each graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases

if TYPE_CHECKING:
    from keras_bandgnn.aliases import DType, LossOptions, Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ChoiceCrossentropy(keras_bases.Loss):
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
        **kwargs: Unpack[LossOptions],
    ):
        super().__init__(name=name, reduction=reduction, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the losses [n] of entries [n, 2]."""
        del y_true
        return -y_pred[:, 0]


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ChoiceAccuracy(keras_bases.MeanMetricWrapper):
    """How often the right edge is the most probable one of its graph.

    Args:
        name: Name of the metric.
        dtype: Dtype of the mean.

    Example:
    >>> ChoiceAccuracy().name
    'accuracy'
    """

    def __init__(self, name: str = "accuracy", dtype: DType = None):
        super().__init__(_is_best, name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {"name": self.name, "dtype": self.dtype}


def _is_best(y_true, y_pred):
    del y_true
    return ops.cast(y_pred[:, 0] >= y_pred[:, 1], "float32")
