"""`SelectionCrossentropy`: cross-entropy over candidates, without padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import fraction

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LossOptions, Tensor

MASKED_LOGIT = -1e9


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class SelectionCrossentropy(keras_bases.Loss):
    """Cross-entropy of the correct candidate, with label smoothing that skips padding.

    With C candidates in a graph and smoothing s the target is 1 - s + s / C for the
    correct one and s / C for the others. Masked candidates have logit -1e9 and
    target 0.

    Args:
        label_smoothing: s in [0, 1).
        reduction: Keras' loss reduction; the default averages over real graphs.
        name: Name of the loss.

    Example:
    >>> import numpy as np
    >>> loss = SelectionCrossentropy(label_smoothing=0.1)
    >>> float(loss(np.array([[0]]), np.array([[[9.0, 0.0]]]))) < 0.5
    True
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: str = "mean_with_sample_weight",
        name: str = "selection_crossentropy",
        **kwargs: Unpack[LossOptions],
    ):
        super().__init__(name=name, reduction=reduction, **kwargs)
        self.label_smoothing = fraction("label_smoothing", label_smoothing)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the losses [G, B] of labels [G, B] and logits [G, B, C]."""
        log_share = ops.log_softmax(y_pred, axis=-1)
        labels = ops.cast(ops.reshape(y_true, ops.shape(y_pred)[:-1]), "int32")
        places = ops.arange(ops.shape(y_pred)[-1], dtype="int32")
        right = ops.cast(ops.expand_dims(labels, -1) == places, y_pred.dtype)
        target = right
        if self.label_smoothing:
            real = ops.cast(y_pred > 0.1 * MASKED_LOGIT, y_pred.dtype)
            count = ops.maximum(ops.sum(real, axis=-1, keepdims=True), 1.0)
            target = (1 - self.label_smoothing) * right
            target = target + self.label_smoothing * real / count
        # Masked entries must not contribute to the sum in any form.
        log_share = ops.where(target > 0, log_share, 0.0)
        return -ops.sum(target * log_share, axis=-1)

    def get_config(self) -> dict:
        """Return the constructor arguments."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
