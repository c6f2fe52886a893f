"""`ROCAUC`: the area under the ROC curve, per target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_bandgnn import keras_bases
from keras_bandgnn import ops as graph_ops
from keras_bandgnn.checks import optional, positive_int

if TYPE_CHECKING:
    from keras_bandgnn.aliases import DType, Tensor

# Larger logits are this one: infinity / infinity has no bin.
_LARGEST = 1e30


@keras.saving.register_keras_serializable(package="keras_bandgnn")
class ROCAUC(keras_bases.Metric):
    """Mean area under the ROC curve over the targets.

    The area of a target is the fraction of pairs of a positive and a negative entry in
    which the positive one has the larger logit; ties count half. The mean skips targets
    without positive or without negative entries, as in OGB. Logits are binned into
    `num_bins` bins of logit / (1 + |logit|); logits in the same bin are ties.

    Args:
        num_targets: T, the targets per graph: entry i belongs to target i modulo T.
            None for those of the task that is compiled with it, or 1 on its own.
        num_bins: Number of bins.
        name: Name of the metric.
        dtype: Dtype of the counts.

    Raises:
        ValueError: For counts below 1; from `compile` for another T than the task's.

    Example:
    >>> import numpy as np
    >>> metric = ROCAUC()
    >>> metric.update_state(np.array([0, 1, 1]), np.array([-1.0, 2.0, -3.0]))
    >>> float(metric.result())
    0.5
    """

    def __init__(
        self,
        num_targets: int | None = None,
        num_bins: int = 16384,
        name: str = "roc_auc",
        dtype: DType = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.num_targets = optional(positive_int, "num_targets", num_targets)
        self.num_bins = positive_int("num_bins", num_bins)
        self.positive = self.negative = None
        if num_targets is not None:
            self.count_targets(num_targets)

    def count_targets(self, num_targets: int) -> None:
        """Make the counts for the targets of a task, unless they are made.

        Args:
            num_targets: T.

        Raises:
            ValueError: If the metric has counts for another number of targets.
        """
        if self.positive is not None:
            counted = self.positive.shape[0]
            if counted != num_targets:
                raise ValueError(
                    f"Expected ROCAUC({num_targets}), as the task has {num_targets} "
                    f"targets. Received: num_targets={counted}. Leave it out: "
                    "ROCAUC() takes that of the task."
                )
            return
        self.positive, self.negative = (
            self.add_variable(
                shape=(num_targets, self.num_bins), initializer="zeros", name=name
            )
            for name in ("positive", "negative")
        )

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Count entries.

        Args:
            y_true: 0 or 1, T entries per graph, any shape.
            y_pred: Logits of these entries.
            sample_weight: Weights of these entries.
        """
        if self.positive is None:
            self.count_targets(1)
        targets = self.positive.shape[0]
        logit = ops.reshape(ops.cast(y_pred, self.dtype), (-1,))
        label = ops.reshape(ops.cast(y_true, self.dtype), (-1,))
        weight = ops.ones_like(label)
        if sample_weight is not None:
            weight = ops.reshape(ops.cast(sample_weight, self.dtype), (-1,))
        # NaN has no bin either: it makes the area NaN, unless its weight is 0.
        missing = ops.isnan(logit)
        weight = ops.where(ops.logical_and(missing, weight != 0), float("nan"), weight)
        logit = ops.clip(ops.where(missing, 0.0, logit), -_LARGEST, _LARGEST)
        share = 0.5 + 0.5 * logit / (1.0 + ops.abs(logit))
        place = ops.cast(share * self.num_bins, "int32")
        place = ops.clip(place, 0, self.num_bins - 1)
        place = ops.reshape(place, (-1, targets))
        place = place + self.num_bins * ops.arange(targets, dtype="int32")
        place = ops.reshape(place, (-1,))
        size = targets * self.num_bins
        for counts, values in (
            (self.positive, weight * label),
            (self.negative, weight * (1.0 - label)),
        ):
            new = graph_ops.segment_sum(values, place, size)
            counts.assign_add(ops.reshape(new, (targets, self.num_bins)))

    def result(self) -> Tensor:
        """Return the mean area; 0 if no target has both kinds of entries.

        It is NaN if an output was NaN.
        """
        if self.positive is None:
            self.count_targets(1)
        positive = ops.convert_to_tensor(self.positive)
        negative = ops.convert_to_tensor(self.negative)
        below = ops.cumsum(negative, axis=1) - 0.5 * negative
        wins = ops.sum(positive * below, axis=1)
        pairs = ops.sum(positive, axis=1) * ops.sum(negative, axis=1)
        defined = pairs != 0
        area = ops.where(defined, wins / ops.where(defined, pairs, 1.0), 0.0)
        count = ops.sum(ops.cast(defined, area.dtype))
        return ops.sum(area) / ops.maximum(count, 1.0)

    @classmethod
    def from_config(cls, config: dict) -> ROCAUC:
        """Build the metric; 1 is None, as in files of 0.2.0 that named no number."""
        if config.get("num_targets") == 1:
            config = {**config, "num_targets": None}
        return cls(**config)

    def get_config(self) -> dict:
        """Return the arguments of the constructor."""
        return {
            **super().get_config(),
            "num_targets": self.num_targets,
            "num_bins": self.num_bins,
        }
