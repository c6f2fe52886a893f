"""`CumulativeLink`: from a score to log probabilities of ordered classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn.checks import positive_int
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import LayerOptions, Shape, Tensor


@serializable
class CumulativeLink(keras_bases.Layer):
    """Log probabilities of C ordered classes, from one score.

        P(y > k) = sigmoid(s - t_k),  t_0 < t_1 < ... < t_{C-2}

    The proportional odds model: a score per item, and thresholds that all items share.
    The thresholds are learnt as a first one and positive gaps, so they are always in
    order and every class has a probability above 0. Initially the classes are equally
    likely at a score of 0.

    The softmax of the outputs is the outputs' exponential, so that they can be used as
    logits: `SparseCategoricalCrossentropy(from_logits=True)` is the likelihood of the
    model.

    Args:
        num_classes: C, at least 2.

    Input shape:
        float [..., 1].

    Output shape:
        float [..., C].

    Raises:
        ValueError: For fewer than two classes.

    Reference:
        McCullagh 1980, Regression Models for Ordinal Data. Cao et al. 2020 (CORAL)
        share weights in the same way, and train on the sum of C - 1 binary losses.

    Example:
    >>> import keras
    >>> logs = keras.ops.convert_to_numpy(CumulativeLink(4)(keras.ops.zeros((1, 1))))
    >>> np.exp(logs[0]).round(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    splits_sequences = True

    def __init__(self, num_classes: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(autocast=False, **kwargs)
        # === Config ===
        self.num_classes = positive_int("num_classes", num_classes, minimum=2)

    def build(self, scores_shape: Shape | None = None) -> None:
        """Build the thresholds."""
        self.steps = self.add_weight(
            name="steps",
            shape=(self.num_classes - 1,),
            initializer="zeros",
            # Thresholds keep their precision, even under mixed precision.
            autocast=False,
        )
        self.built = True

    def thresholds(self) -> Tensor:
        """Return t, [C - 1], in increasing order."""
        return ops.cumsum(self._steps())

    def _steps(self):
        """Return the first threshold and the gaps between the others, [C - 1]."""
        shares = np.arange(1, self.num_classes) / self.num_classes
        equal = np.log(shares / (1 - shares))
        start = np.concatenate([equal[:1], np.log(np.expm1(np.diff(equal)))])
        steps = ops.convert_to_tensor(start.astype("float32"), self.variable_dtype)
        steps = steps + ops.convert_to_tensor(self.steps)
        first = np.arange(self.num_classes - 1) == 0
        return ops.where(ops.convert_to_tensor(first), steps, ops.softplus(steps))

    def call(self, scores: Tensor) -> Tensor:
        """Return the log probabilities."""
        scores = ops.cast(scores, self.variable_dtype)
        steps = self._steps()
        distance = scores - ops.cumsum(steps)
        # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)), of which
        # no factor cancels, however far the score is from the class.
        above, below = ops.log_sigmoid(distance), ops.log_sigmoid(-distance)
        no_padding = [(0, 0)] * (len(scores.shape) - 1)
        logs = ops.pad(below, [*no_padding, (0, 1)]) + ops.pad(
            above, [*no_padding, (1, 0)]
        )
        if self.num_classes > 2:
            between = ops.log(-ops.expm1(-steps[1:]))
            logs = logs + ops.pad(between, [(1, 1)])
        return ops.cast(logs, self.compute_dtype)

    def compute_output_shape(self, scores_shape: Shape) -> Shape:
        """[..., C]."""
        return (*scores_shape[:-1], self.num_classes)
