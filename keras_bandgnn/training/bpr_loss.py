"""`BPRLoss`: Bayesian personalised ranking, the order of a positive and negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import keras
from keras import ops

from keras_bandgnn import keras_bases

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LossOptions, Tensor


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class BPRLoss(keras_bases.Loss):
    """Mean of -log sigmoid(s[i] - s[j]) over the other columns j of an entry.

    An entry has the score s[i] of what is right, and those of C - 1 others. In
    `LinkPredictor(objective="bpr")` these are the score of a positive pair and those of
    the negatives drawn for it.

    Args:
        reduction: Keras' loss reduction; the default averages over real entries.
        name: Name of the loss.

    Raises:
        ValueError: For entries of a single score.

    Reference:
        Rendle et al. 2009, https://arxiv.org/abs/1205.2618, without the penalty of
        weights.

    Example:
    >>> import numpy as np
    >>> loss = BPRLoss()
    >>> round(float(loss(np.array([[0]]), np.array([[1.0, 1.0, 1.0]]))), 4)
    0.6931
    """

    def __init__(
        self,
        reduction: str = "mean_with_sample_weight",
        name: str = "bpr_loss",
        **kwargs: Unpack[LossOptions],
    ):
        super().__init__(name=name, reduction=reduction, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the losses [n] of right columns [n] or [n, 1] and scores [n, C]."""
        count = y_pred.shape[-1]
        if count == 1:
            raise ValueError(
                "Expected the scores of a positive and of its negatives, [n, C] with C "
                f"of at least 2. Received: shape {tuple(y_pred.shape)}. Pass "
                'negatives=NegativeSampler(1, kind="source").'
            )
        y_pred = ops.convert_to_tensor(y_pred)
        right = ops.cast(ops.reshape(y_true, ops.shape(y_pred)[:-1]), "int32")
        places = ops.arange(count, dtype="int32")
        others = ops.cast(ops.expand_dims(right, -1) != places, y_pred.dtype)
        score = ops.sum((1 - others) * y_pred, axis=-1, keepdims=True)
        return ops.sum(others * ops.softplus(y_pred - score), axis=-1) / (count - 1)
