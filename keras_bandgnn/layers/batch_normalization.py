"""`MaskedBatchNormalization`: batch normalisation over the real rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from keras import ops

from keras_bandgnn.checks import boolean, fraction, one_of, positive_number
from keras_bandgnn.layers.batch_layer import StateLayer, batch_part
from keras_bandgnn.ops.backend import current as backend
from keras_bandgnn.registration import serializable

if TYPE_CHECKING:
    from keras_bandgnn.aliases import Batch, LayerOptions, Shape, Tensor

LEVELS = ("node", "edge")


@serializable
class MaskedBatchNormalization(StateLayer):
    """Batch normalisation of node or edge states that does not see padding.

        out = gamma (x - mean) / sqrt(variance + epsilon) + beta

    In training mean and variance are those of each channel over all real rows of the
    batch, on all devices of `data_parallel`; otherwise they are moving averages. As in
    torch, the moving variance is the unbiased one, of R - 1 of the R rows.
    Statistics are computed in float32. Rows of padding have no meaning.

    `keras.layers.BatchNormalization` counts rows of padding, whose states differ from
    those of nodes, so that a prediction depends on the size of the batch.

    Args:
        momentum: Share of the old moving average that remains per step; torch's
            `momentum` is 1 minus this one.
        epsilon: Added to the variance.
        center: Whether to add beta.
        scale: Whether to multiply by gamma.
        level: "node" for states [G, N, H], or "edge" for states [G, E, H].

    Input shape:
        states: float [G, N, H], or [G, E, H] with level="edge".
        batch: A batch (see `keras_bandgnn.batch`); it reads `batch[level]["mask"]`.

    Output shape:
        That of the states.

    Raises:
        ValueError: For arguments out of range.

    Reference:
        Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, Algorithms 1 and 2.

    Example:
    >>> import keras_bandgnn as kb
    >>> graph = kb.Graph(2, [0], [1], node={"h": [[1.0], [3.0]]})
    >>> batch, = kb.preprocessing.GraphLoader([graph])[0]
    >>> out = MaskedBatchNormalization()(batch["node"]["h"], batch, training=True)
    >>> ops.convert_to_numpy(out)[0, :2, 0].round(2).tolist()
    [-1.0, 1.0]
    """

    splits_sequences = False

    def __init__(
        self,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        level: str = "node",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        # === Config ===
        self.momentum = fraction("momentum", momentum)
        self.epsilon = positive_number("epsilon", epsilon)
        self.center = boolean("center", center)
        self.scale = boolean("scale", scale)
        self.level = one_of("level", level, LEVELS)
        # Edge states have other shapes than the nodes of the batch.
        self.takes_states = self.level == "node"
        self.reads = {self.level: ("mask",)}

    def build_weights(self, states_shape: Shape) -> None:
        """Build gamma, beta and the moving averages, each [H]."""
        shape = (states_shape[-1],)
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
        if self.center:
            self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros")
        # Averages of many steps need their digits, whatever the policy.
        options = {"dtype": "float32", "trainable": False, "autocast": False}
        self.moving_mean = self.add_weight(
            name="moving_mean", shape=shape, initializer="zeros", **options
        )
        self.moving_variance = self.add_weight(
            name="moving_variance", shape=shape, initializer="ones", **options
        )

    def call(self, states: Tensor, batch: Batch, training: bool = False) -> Tensor:
        """Return the normalised states, and update the moving averages in training."""
        rows = ops.cast(states, "float32")
        scale, shift = (
            None if weight is None else ops.cast(weight, "float32")
            for weight in (self.gamma, self.beta)
        )
        if not (training and self.trainable):
            mean = ops.convert_to_tensor(self.moving_mean)
            variance = ops.convert_to_tensor(self.moving_variance)
            out = self._normalized(rows, mean, variance, scale, shift)
        else:
            out = self._normalized_in_training(rows, batch, scale, shift)
        return ops.cast(out, self.compute_dtype)

    def _normalized(self, rows, mean, variance, scale, shift):
        factor = ops.rsqrt(variance + self.epsilon)
        out = (rows - mean) * (factor if scale is None else factor * scale)
        return out if shift is None else out + shift

    def _normalized_in_training(self, rows, batch, scale, shift):
        """Normalise by the statistics of the real rows."""
        mask = ops.convert_to_tensor(batch_part(batch, self.level)["mask"], "bool")
        if backend.normalized_rows is not None:
            averages = [ops.convert_to_tensor(average) for average in self._averages]
            result = backend.normalized_rows(
                rows, mask, scale, shift, averages, self.momentum, self.epsilon
            )
            if result is not None:
                out, new = result
                for average, value in zip(self._averages, new, strict=True):
                    average.assign(value)
                return out
        # XLA on CPUs is three times as fast with two axes.
        shape = ops.shape(rows)
        rows = ops.reshape(rows, (-1, shape[-1]))
        mask = ops.reshape(mask, (-1, 1))

        def total(values):
            values = ops.where(mask, values, 0.0)
            return backend.sum_over_replicas(backend.column_sum(values))

        count = total(ops.ones_like(mask, dtype="float32"))
        some = ops.maximum(count, 1.0)
        mean = total(rows) / some
        # Relative to a constant, gradients of the mean need no sum over rows; it is the
        # mean itself, so that nothing is rounded.
        center = ops.stop_gradient(mean)
        rows, offset = rows - center, mean - center
        variance = total(ops.square(rows)) / some - ops.square(offset)
        unbiased = variance * (some / ops.maximum(some - 1.0, 1.0))
        # A batch without rows changes nothing.
        momentum = ops.where(count > 0, self.momentum, 1.0)
        for average, value in zip(self._averages, (mean, unbiased), strict=True):
            value = ops.stop_gradient(value)
            average.assign(average * momentum + value * (1.0 - momentum))
        factor = ops.rsqrt(variance + self.epsilon)
        factor = factor if scale is None else factor * scale
        shift = -offset * factor if shift is None else shift - offset * factor
        return ops.reshape(rows * factor + shift, shape)

    @property
    def _averages(self) -> tuple:
        return self.moving_mean, self.moving_variance
